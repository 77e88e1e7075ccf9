"""Settings that choose hard negatives among the candidates nearest to a query; importable without torch."""

import math
from dataclasses import dataclass
from typing import ClassVar

from fairseq_clear.errors import UserError
from fairseq_clear.settings import check_settings, setting

__all__ = ["SAMPLES", "MiningSettings"]

SAMPLES = ("top", "random")


@dataclass(kw_only=True)
class MiningSettings:
    """Which candidates become the hard negatives of a pair.

    Candidates are ranked by the cosine of their vector with the query's. The query's own text and its positives have no rank.
    """

    GROUP: ClassVar[str] = "choice of the negatives"

    negatives: int = setting(
        "number of hard negatives of a pair; a pair for which fewer are found is left out", 1, least=1
    )
    first_rank: int = setting(
        "choose among the candidates from this rank on; rank 1 is the nearest to the query. The nearest ones often are "
        "positives that nobody labelled",
        1,
        least=1,
    )
    last_rank: int = setting("choose among the candidates up to this rank", 100, least=1)
    margin: float | None = setting(
        "choose only candidates whose cosine with the query is below that of the pair's positive less X (default: any)",
        None,
    )
    max_similarity: float | None = setting(
        "choose only candidates whose cosine with the query is X or less (default: any)", None
    )
    sample: str = setting(
        "top chooses the nearest of these candidates, random any of them, with --seed", "top", choices=SAMPLES
    )
    seed: int = setting("seed of --sample random", 0, least=0)

    def check(self) -> None:
        """Raise UserError for values that are out of range or contradict each other."""
        check_settings(self)
        ranks = self.last_rank - self.first_rank + 1
        if ranks < self.negatives:
            raise UserError(
                f"--first-rank {self.first_rank} --last-rank {self.last_rank}: {max(ranks, 0)} ranks, fewer than --negatives "
                f"{self.negatives}; give a higher --last-rank"
            )
        for flag, value, bound in (("--margin", self.margin, 2), ("--max-similarity", self.max_similarity, 1)):
            if value is not None and not (math.isfinite(value) and -bound <= value <= bound):
                raise UserError(f"{flag} {value:g}: must be between -{bound} and {bound}, in units of the cosine")
