"""The report of ``refine``: whether the refined encoder is better, as JSON, Markdown and a picture."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_clear.cli.retrieval import shorten
from fairseq_clear.evaluation.reports import Row
from fairseq_clear.evaluation.retrieval import bootstrap
from fairseq_clear.files import versions, write_json
from fairseq_clear.refining.holding_out import HeldOut
from fairseq_clear.refining.refine_settings import RefineSettings
from fairseq_clear.refining.refine_training import Training

__all__ = ["RefineReport", "Trial", "write_report"]

REPORT = "report"  # .json, .md, .png, .svg
FORMAT = 1
UNTOUCHED, REFINED = "untouched", "refined"
COLUMNS = ("MRR@10", "recall@1", "recall@10", "nDCG@10")
SHOWN_CHARACTERS = 160


@dataclass(frozen=True)
class Trial:
    """The MRR@10 (x100) of a recipe on the held-out documents of dev, after a few updates."""

    recipe: str
    updates: int
    score: float


@dataclass
class RefineReport:
    """Everything that ``refine`` measured."""

    settings: RefineSettings
    recipe: str  # that was trained
    counts: HeldOut  # of documents and pairs
    training: Training
    trials: Sequence[Trial]  # of --recipe auto; the first is the untouched encoder
    compared: dict[str, Path]  # report files of ``retrieval`` and ``sts``, by command
    stages: Sequence[dict[str, Any]]  # commands and their seconds
    device: str  # cpu or cuda

    @cached_property
    def reports(self) -> dict[str, Any]:
        """The reports of ``retrieval`` and ``sts``, with the rows of the encoders named."""
        found = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in self.compared.items()}
        for report in found.values():
            for row, label in zip(report["rows"][-2:], (UNTOUCHED, REFINED), strict=True):
                row["label"] = label
        return found

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
        if self.change is None and self.sts_change is None:
            return (
                "Not compared: there are too few held-out documents of several sentences. Give --sts, or --pairs with queries "
                "and passages, to see whether refining helped."
            )
        if self.change is None:
            text = f"The mean STS score changed by {self.sts_change:+.2f}."
        else:
            low, high = self.change["low"], self.change["high"]
            clear = "helped" if low > 0 else "hurt" if high < 0 else "made no clear difference"
            text = (
                f"Refining {clear}: MRR@10 changed by {self.change['MRR@10']:+.2f} (95 % interval {low:+.2f} to {high:+.2f}, "
                f"{self.reports['retrieval']['protocol']['queries']:,} queries)."
            )
            text += f" The mean STS score changed by {self.sts_change:+.2f}." if self.sts_change is not None else ""
        if self.keeps_untouched:
            return f"{text} The folder holds the untouched encoder, which scores higher; --no-keep-best keeps the refined one."
        return text

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "format": FORMAT,
            "command": "refine",
            "verdict": self.verdict(),
            "exported": UNTOUCHED if self.keeps_untouched else REFINED,
            "recipe": self.recipe,
            "updates": self.training.updates,
            "change": self.change,
            "sts_change": self.sts_change,
            "counts": asdict(self.counts),
            "trials": [asdict(trial) for trial in self.trials],
            "settings": self.settings.as_json(),
            "device": self.device,
            "versions": versions(),
            "stages": list(self.stages),
            "reports": self.reports,
        }


def write_report(report: RefineReport, folder: Path) -> None:
    """Write report.json, report.md and, after a comparison by retrieval, report.png and report.svg."""
    write_json(folder / f"{REPORT}.json", report.to_dict(), flag="--dest")
    (folder / f"{REPORT}.md").write_text("\n".join(_markdown(report)) + "\n", encoding="utf-8")
    if "retrieval" in report.reports:
        from fairseq_clear.evaluation.plotting import draw_compare, save_figure  # needs matplotlib

        found = report.reports["retrieval"]["rows"]
        rows = [Row(row["label"], row["scores"], deviations=row["deviations"]) for row in found]
        save_figure(draw_compare(rows, COLUMNS), folder / f"{REPORT}.png")


def _markdown(report: RefineReport) -> Iterator[str]:
    settings, reports = report.settings, report.reports
    yield from (f"# {settings.encoder.name} refined on {', '.join(path.name for path in settings.texts)}", "")
    yield from (report.verdict(), "")
    if "retrieval" in reports:
        found = reports["retrieval"]
        origin = "--pairs" if settings.pairs else "held-out documents: the first sentence must find the rest"
        counts = f"{found['protocol']['queries']:,} queries, {found['protocol']['passages']:,} passages"
        yield from (f"Retrieval ({origin}), {counts}:", "", *_table(found["rows"], COLUMNS), "")
        yield from (f"![scores]({REPORT}.png)", "")
    if "sts" in reports:
        yield from ("STS, Spearman x100:", "", *_table(reports["sts"]["rows"], reports["sts"]["columns"]), "")
    if report.trials:
        yield from (f"Trial of recipes, MRR@10 on {report.counts.dev:,} other held-out documents:", "")
        yield from ("| recipe | updates | MRR@10 |", "|---|---|---|")
        yield from (*(f"| {t.recipe} | {t.updates} | {t.score:.2f} |" for t in report.trials), "")
    yield from (f"## Recipe: {report.recipe}", "", "The commands, with the seconds that they took:", "", "```bash")
    yield from (f"{stage['command']}  # {stage['seconds']:.0f} s" for stage in report.stages)
    yield from ("```", "", *_examples(report))
    yield ", ".join(f"{name} {number}" for name, number in versions().items()) + f"; {report.device}"


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    """A Markdown table; the half-widths of intervals follow the scores, the best of each column is bold."""
    best = {column: max(round(row["scores"][column], 2) for row in rows) for column in columns}
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        cells = []
        for column in columns:
            text = f"{row['scores'][column]:.2f}"
            text = f"**{text}**" if round(row["scores"][column], 2) == best[column] else text
            spread = row["deviations"].get(column)
            cells.append(text + (f" ± {spread:.2f}" if spread is not None else ""))
        lines.append(f"| {row['label']} | " + " | ".join(cells) + " |")
    return lines


def _examples(report: RefineReport) -> Iterator[str]:
    """Some queries and the passages that each encoder finds, the right ones marked."""
    if "retrieval" not in report.reports:
        return
    rows = report.reports["retrieval"]["rows"][-2:]
    yield from ("## Queries, drawn at random", "")
    for examples in zip(*(row["details"]["examples"] for row in rows), strict=True):
        yield from (f"**{_one_line(examples[0]['query'])}**", "")
        for row, example in zip(rows, examples, strict=True):
            yield f"- {row['label']}, rank of the right passage: {example['rank'] or 'not among the first 100'}"
            for n, (text, is_right) in enumerate(zip(example["passages"], example["right"], strict=True), 1):
                yield f"    {n}. {'**right** ' if is_right else ''}{_one_line(text)}"
        yield ""


def _one_line(text: str) -> str:
    line = shorten(text, SHOWN_CHARACTERS)
    for mark in r"\`*_[]<>#|":
        line = line.replace(mark, f"\\{mark}")
    return line
