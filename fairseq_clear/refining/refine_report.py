"""The comparison of ``refine`` and its report: whether the refined encoder is better, as JSON, Markdown and a picture."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.evaluation.reports import Report, Row
from fairseq_clear.evaluation.retrieval import bootstrap, evaluate_retrieval, score_baseline
from fairseq_clear.evaluation.retrieval_data import BASELINES, RetrievalData
from fairseq_clear.evaluation.sts import evaluate_sts, read_sts_tasks
from fairseq_clear.files import versions, write_json
from fairseq_clear.refining.holding_out import HeldOut
from fairseq_clear.refining.refine_settings import CLOZE, RefineSettings

__all__ = ["NOT_COMPARED", "REPORT", "RefineReport", "compare_retrieval", "compare_sts"]

REPORT = "report"  # .json, .md, .png
FORMAT = 2
COLUMNS = ("MRR@10", "recall@1", "recall@10", "nDCG@10")
SHOWN_CHARACTERS = 160
NOT_COMPARED = (
    "Not compared: there are too few held-out documents of several sentences. Give --sts, or --pairs with queries and "
    "passages, to see whether refining helped."
)


def compare_retrieval(encoders: Iterable[CachedEncoder], data: RetrievalData, device: str) -> Report:
    """Score TF-IDF, BM25 and encoders by retrieval; the rows have the ranks, and what each finds for some queries."""
    rows = [score_baseline(name, data) for name in BASELINES]
    rows += [evaluate_retrieval(one, data, device=device) for one in encoders]
    return Report("retrieval", data.describe(), {data.name: data.hashes}, COLUMNS, rows, (0,))


def compare_sts(encoders: Iterable[CachedEncoder], folder: Path) -> Report:
    """Score encoders by STS, Spearman x100."""
    tasks, rows = read_sts_tasks(folder), []
    for one in encoders:
        scores = {name: score.spearman for name, score in evaluate_sts(one, tasks).items()}
        rows.append(Row(one.name, scores, one.describe()))
    return Report("sts", {"metric": "spearman"}, {}, [task.name for task in tasks], rows)


@dataclass
class RefineReport:
    """Everything that ``refine`` measured."""

    settings: RefineSettings
    recipe: str  # that was trained
    counts: HeldOut  # of documents and pairs
    trials: Sequence[dict[str, Any]]  # of --recipe auto
    reports: dict[str, Any]  # of retrieval and sts, with the untouched and the refined encoder as last rows
    commands: Sequence[str]
    device: str  # cpu or cuda

    @cached_property
    def change(self) -> dict[str, float] | None:
        """Change of MRR@10 with its 95 % interval (paired bootstrap over queries); None without retrieval."""
        if "retrieval" not in self.reports:
            return None
        ranks = np.array([row["details"]["ranks"] for row in self.reports["retrieval"]["rows"][-2:]])  # (2, Q)
        reciprocal = np.where((ranks > 0) & (ranks <= 10), 100 / np.maximum(ranks, 1), 0.0)
        difference = (reciprocal[1] - reciprocal[0])[:, None]  # (Q, 1)
        low, high = bootstrap(difference, self.settings.seed)[:, 0]
        return {"MRR@10": float(difference.mean()), "low": float(low), "high": float(high)}

    @property
    def sts_change(self) -> float | None:
        """Change of the mean STS score; None without --sts."""
        if "sts" not in self.reports:
            return None
        before, after = (np.mean(list(row["scores"].values())) for row in self.reports["sts"]["rows"][-2:])
        return float(after - before)

    @property
    def keeps_untouched(self) -> bool:
        """Whether the untouched encoder is exported: it is better by MRR@10, or by STS if there is no retrieval."""
        change = self.change["MRR@10"] if self.change else self.sts_change
        return self.settings.keep_best and change is not None and change < 0

    def verdict(self) -> str:
        """Whether refining helped, in plain words."""
        parts = []
        if self.change is not None:
            low, high = self.change["low"], self.change["high"]
            clear = "helped" if low > 0 else "hurt" if high < 0 else "made no clear difference"
            parts.append(
                f"Refining {clear}: MRR@10 changed by {self.change['MRR@10']:+.2f} (95 % interval {low:+.2f} to {high:+.2f}, "
                f"{self.reports['retrieval']['protocol']['queries']:,} queries)."
            )
        if self.sts_change is not None:
            parts.append(f"The mean STS score changed by {self.sts_change:+.2f}.")
        if not parts:
            return NOT_COMPARED
        if self.keeps_untouched:
            parts.append(
                "The folder holds the untouched encoder, which scores higher; --no-keep-best keeps the refined one."
            )
        return " ".join(parts)

    def caveat(self) -> str:
        """What the comparison does not show; empty if there is nothing to say."""
        if (
            "retrieval" not in self.reports
            or self.settings.pairs is not None
            or not (self.trials or self.recipe == CLOZE)
        ):
            return ""
        return (
            "This question, the rest of a document by its first sentence, is nearly what cloze trains, so it favours that "
            "recipe. It does not show that your own queries find more: compare by them with --pairs."
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "format": FORMAT,
            "recipe": self.recipe,
            "device": self.device,
            "trials": list(self.trials),
            "verdict": self.verdict(),
            "caveat": self.caveat(),
            "exported": "untouched" if self.keeps_untouched else "refined",
            "change": self.change,
            "sts_change": self.sts_change,
            "counts": asdict(self.counts),
            "settings": self.settings.as_json(),
            "commands": list(self.commands),
            "versions": versions(),
            "reports": self.reports,
        }

    def write(self, folder: Path) -> None:
        """Write report.json, report.md and, after a comparison by retrieval, report.png."""
        write_json(folder / f"{REPORT}.json", self.to_dict(), flag="--dest")
        (folder / f"{REPORT}.md").write_text("\n".join(self._markdown()) + "\n", encoding="utf-8")
        if "retrieval" in self.reports:
            from fairseq_clear.evaluation.plots import draw_bars, save_figure  # needs matplotlib

            save_figure(draw_bars(_rows(self.reports["retrieval"]), COLUMNS), folder / f"{REPORT}.png")

    def _markdown(self) -> Iterator[str]:
        yield from (f"# {self.settings.encoder.name} refined on {', '.join(p.name for p in self.settings.texts)}", "")
        for paragraph in filter(None, (self.verdict(), self.caveat())):
            yield from (paragraph, "")
        if "retrieval" in self.reports:
            counts = self.reports["retrieval"]["protocol"]
            origin = "--pairs" if self.settings.pairs else "held-out documents: the first sentence must find the rest"
            yield f"Retrieval ({origin}), {counts['queries']:,} queries, {counts['passages']:,} passages:"
            yield from (*_table(self.reports["retrieval"]), f"![scores]({REPORT}.png)", "")
        if "sts" in self.reports:
            yield from ("STS, Spearman x100:", *_table(self.reports["sts"]))
        if self.trials:
            origin = "pairs" if self.settings.pairs else "held-out documents"
            yield from (f"Trial of recipes, MRR@10 on {self.counts.dev:,} other {origin}:", "")
            yield from (f"- {one['recipe']}, {one['updates']} updates: {one['score']:.2f}" for one in self.trials)
        yield from ("", f"## Recipe: {self.recipe}", "", "```bash", *self.commands, "```", "", *self._examples())
        yield ", ".join(f"{name} {number}" for name, number in versions().items()) + f"; {self.device}"

    def _examples(self) -> Iterator[str]:
        """Some queries and the passages that each encoder finds, the right ones marked."""
        rows = self.reports.get("retrieval", {"rows": []})["rows"][-2:]
        for examples in zip(*(row["details"]["examples"] for row in rows), strict=True):
            yield from (f"## Query: {_one_line(examples[0]['query'])}", "")
            for row, example in zip(rows, examples, strict=True):
                yield f"- {row['label']}, rank of the right passage: {example['rank'] or 'not among the first 100'}"
                for n, (text, is_right) in enumerate(zip(example["passages"], example["right"], strict=True), 1):
                    yield f"    {n}. {'**right** ' if is_right else ''}{_one_line(text)}"
            yield ""


def _rows(report: dict[str, Any]) -> list[Row]:
    return [Row(**row) for row in report["rows"]]


def _table(report: dict[str, Any]) -> list[str]:
    """The table of a report as a block of text; a star marks the best of each column."""
    shown = Report(report["command"], {}, {}, report["columns"], _rows(report))
    return ["", "```text", shown.table(), "```", ""]


def _one_line(text: str) -> str:
    line = textwrap.shorten(text, SHOWN_CHARACTERS, placeholder=" ...")
    for mark in r"\`*_[]<>#|":
        line = line.replace(mark, f"\\{mark}")
    return line
