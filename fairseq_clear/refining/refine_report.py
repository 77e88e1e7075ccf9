"""The comparison of ``refine`` and its report: whether the refined encoder is better, as JSON, Markdown and a picture."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_clear.evaluation.reports import Report, Row
from fairseq_clear.evaluation.retrieval import Doubles, bootstrap
from fairseq_clear.files import versions, write_json
from fairseq_clear.refining.holding_out import HARDER, QUESTION, HeldOut
from fairseq_clear.refining.refine_settings import RefineSettings

REPORT = "report"  # .json, .md, .png
HALF = 0.5  # share of the refined weights
FEWEST = 10  # queries that can tell recipes or shares apart
MRR = "MRR@10"  # the score by which recipes and shares are chosen
COLUMNS = (MRR, "recall@1", "recall@10", "nDCG@10")
SHOWN_CHARACTERS = 160
SATURATED = 95.0  # MRR@10 of the untouched encoder from which the question can hardly show a gain
# what the title or first sentence of a held-out document must find
ASKED = {QUESTION: "the beginning of its text", HARDER: "a sentence from the middle of its text"}
NOT_COMPARED = (
    "Not compared: there are too few queries. They come from --pairs or --train-pairs, or else from documents of several "
    "sentences. Give more of these, or --sts, to see whether refining helped."
)


def reciprocal_ranks(row: dict[str, Any]) -> Doubles:
    """MRR@10 of each query (Q,), x100, from a row of a report of retrieval."""
    ranks = np.array(row["details"]["ranks"])
    return np.where((ranks > 0) & (ranks <= 10), 100 / np.maximum(ranks, 1), 0.0)


def choose_share(found: dict[float, Doubles]) -> float:
    """Choose the share of the refined weights with the highest mean of the scores of the queries (Q,).

    It is a half, unless the best is better than a half by more than two standard errors over FEWEST queries or more: of several
    shares, one is often better by chance. By the judgements of people, the merge of a half lost least in ``examples/refine``.
    """
    best = max(found, key=lambda share: float(found[share].mean()))
    difference = found[best] - found[HALF]
    error = difference.std(ddof=1) / len(difference) ** 0.5
    return HALF if len(difference) < FEWEST or difference.mean() <= 2 * error else best


@dataclass(kw_only=True)
class RefineReport:
    """Everything that ``refine`` chose and measured."""

    settings: RefineSettings
    counts: HeldOut  # of documents and queries
    recipe: str  # that was trained
    trials: Sequence[dict[str, Any]]  # of --recipe auto
    shares: Sequence[dict[str, Any]]  # share of the refined weights in a merge, and its score on dev
    share: float  # the best; 0 is the untouched encoder
    drift: float  # mean cosine between the vectors of the untouched encoder and of the one that is compared
    question: str  # a key of ASKED; the harder one if the other was saturated
    reports: dict[str, Any]  # of retrieval and sts, with the untouched and the refined encoder as last rows
    commands: Sequence[str]
    device: str  # cpu or cuda
    prompts: dict[str, str]  # of queries and of passages, by name; empty without prompts

    @cached_property
    def change(self) -> dict[str, float] | None:
        """Change of MRR@10, its 95 % interval (paired bootstrap over queries) and standard error; None without retrieval."""
        if "retrieval" not in self.reports:
            return None
        before, after = map(reciprocal_ranks, self.reports["retrieval"]["rows"][-2:])
        difference = (after - before)[:, None]  # (Q, 1)
        low, high = bootstrap(difference, self.settings.seed)[:, 0]
        error = float(difference.std(ddof=1)) / len(difference) ** 0.5
        return {MRR: float(difference.mean()), "low": float(low), "high": float(high), "error": error}

    @property
    def sts_change(self) -> float | None:
        """Change of the mean STS score; None without --sts."""
        if "sts" not in self.reports:
            return None
        before, after = (np.mean(list(row["scores"].values())) for row in self.reports["sts"]["rows"][-2:])
        return float(after - before)

    @property
    def exported_share(self) -> float:
        """Share of the refined weights in the exported encoder: 0 if the untouched one is better on dev or on test.

        Smaller changes than one standard error are noise, with few queries above all.
        """
        change = self.change[MRR] + self.change["error"] if self.change else self.sts_change
        worse = self.settings.keep_best and change is not None and change < 0
        return 0.0 if worse else self.share

    def verdict(self) -> str:
        """Whether refining helped, in plain words."""
        parts, share = [], self.exported_share
        if self.change is not None:
            low, high = self.change["low"], self.change["high"]
            clear = "helped" if low > 0 else "hurt" if high < 0 else "made no clear difference"
            counts = self.reports["retrieval"]["protocol"]
            parts.append(
                f"Refining {clear}: {MRR} changed by {self.change[MRR]:+.2f} (95 % interval {low:+.2f} to {high:+.2f}, "
                f"{counts['queries']:,} queries, {counts['passages']:,} passages)."
            )
        if self.sts_change is not None:
            parts.append(f"The mean STS score changed by {self.sts_change:+.2f}.")
        if not parts:
            parts.append(NOT_COMPARED)
        if not share:
            where = f"on the {self.counts.dev:,} queries that choose no merge is better" if not self.share else ""
            why = where or "it scores higher"
            parts.append(f"The folder holds the untouched encoder: {why}; --no-keep-best keeps the refined one.")
        elif share < 1:
            parts.append(
                f"The folder holds a merge, {share:g} of the refined weights and {1 - share:g} of the untouched ones."
            )
        return " ".join(parts)

    def caveat(self) -> str:
        """What the comparison does not show; empty if there is nothing to say."""
        said = []
        if "retrieval" in self.reports and not self.settings.asks_given_pairs:
            said.append(
                f"The question, whether the title or first sentence of a document finds {ASKED[self.question]}, is a "
                "stand-in: on collections that people judged, its answer did not predict whether their queries find more. "
                "Compare by your own with --pairs."
            )
        # of the queries that choose or, without them, of those that compare
        rows = self.reports.get("retrieval", {"rows": []})["rows"][-2:-1]
        scores = [one["score"] for one in self.shares[:1]] or [row["scores"][MRR] for row in rows]
        if any(score >= SATURATED for score in scores):
            said.append(
                f"The question is saturated: the untouched encoder scores {SATURATED:g} or more, so it can hardly show a gain."
            )
        return " ".join(said)

    def describe_drift(self) -> str:
        """How far the encoder moved, in one sentence."""
        missing = "" if "sts" in self.reports else "; --sts shows what that costs in general similarity"
        refined = "" if self.exported_share else " of the refined encoder, which is not in the folder"
        return f"Drift{refined}: a sentence's vectors before and after have a mean cosine of {self.drift:.3f}{missing}."

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            **vars(self),
            "format": 3,
            "verdict": self.verdict(),
            "caveat": self.caveat(),
            "exported": self.exported_share,
            "change": self.change,
            "sts_change": self.sts_change,
            "counts": asdict(self.counts),
            "settings": self.settings.as_json(),
            "versions": versions(),
        }

    def write(self, folder: Path) -> None:
        """Write report.json, report.md and, after a comparison by retrieval, report.png."""
        write_json(folder / f"{REPORT}.json", self.to_dict(), flag="--dest")
        (folder / f"{REPORT}.md").write_text("\n".join(self._markdown()) + "\n", encoding="utf-8")
        if "retrieval" in self.reports:
            from fairseq_clear.evaluation.plots import draw_bars, save_figure  # needs matplotlib

            rows = [Row(**row) for row in self.reports["retrieval"]["rows"]]
            save_figure(draw_bars(rows, COLUMNS), folder / f"{REPORT}.png")

    def _markdown(self) -> Iterator[str]:
        given = [*self.settings.texts, *filter(None, [self.settings.train_pairs])]
        yield from (f"# {self.settings.encoder.name} refined on {', '.join(path.name for path in given)}", "")
        for paragraph in filter(None, (self.verdict(), self.caveat())):
            yield from (paragraph, "")
        if self.prompts:
            yield from (f"Prompts of queries and of passages: `{self.prompts}`", "")
        if "retrieval" in self.reports:
            counts = self.reports["retrieval"]["protocol"]
            origin = f"the title or first sentence of a held-out document must find {ASKED[self.question]}"
            if self.settings.asks_given_pairs:
                origin = "--pairs" if self.settings.pairs else "held-out pairs of --train-pairs"
            yield f"Retrieval ({origin}), {counts['queries']:,} queries, {counts['passages']:,} passages:"
            yield from (*_table(self.reports["retrieval"]), f"![scores]({REPORT}.png)", "")
        if "sts" in self.reports:
            yield from ("STS, Spearman x100:", *_table(self.reports["sts"]))
        on_dev = f"{MRR} on {self.counts.dev:,} other queries"
        if self.trials:
            yield from (f"Trial of recipes, {on_dev}:", "")
            yield from (f"- {one['recipe']}, {one['updates']} updates: {one['score']:.2f}" for one in self.trials)
            yield ""
        if self.shares:
            yield from (f"Merges, {on_dev}, by the share of the refined weights (0: the untouched encoder):", "")
            yield from (f"- {one['share']:g}: {one['score']:.2f}" for one in self.shares)
            yield ""
        yield self.describe_drift()
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


def _table(report: dict[str, Any]) -> list[str]:
    """The table of a report as a block of text; a star marks the best of each column."""
    shown = Report(report["command"], {}, {}, report["columns"], [Row(**row) for row in report["rows"]])
    return ["", "```text", shown.table(), "```", ""]


def _one_line(text: str) -> str:
    line = textwrap.shorten(text, SHOWN_CHARACTERS, placeholder=" ...")
    for mark in r"\`*_[]<>#|":
        line = line.replace(mark, f"\\{mark}")
    return line
