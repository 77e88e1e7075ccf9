"""How the time of an update changes with the number of GPUs, by a plan for each number.

What is assumed: every GPU reaches the same share of its peak however little it is given, a ring sends at full bandwidth and
without latency, and nothing of it is hidden behind computing. So small shares look faster than they are, and large ones slower.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fairseq_clear.errors import UserError
from fairseq_clear.planning.machine import Machine, Plan, make_plan
from fairseq_clear.planning.recipe import Recipe

__all__ = ["ASSUMPTIONS", "EFFICIENCY", "GPUS", "Point", "make_curve"]

GPUS = tuple(2**power for power in range(13))  # 1 ... 4,096
ASSUMPTIONS = "the same MFU for every share, a ring at full bandwidth without latency, nothing hidden"

EFFICIENCY = "computing without recomputation / (computing + sending)"


@dataclass(frozen=True)
class Point:
    """An update on so many GPUs.

    Attributes:
        gpus: how many.
        texts, update_freq, chunk: of each, as the plan has them.
        compute_seconds, communication_seconds: of an update.
        needed_seconds: of computing, what chunks recompute left out.
        sent: bytes that each sends.
        texts_per_second: of all.
    """

    gpus: int
    texts: int
    update_freq: int
    chunk: int
    compute_seconds: float
    communication_seconds: float
    needed_seconds: float
    sent: float
    texts_per_second: float

    @property
    def efficiency(self) -> float:
        """Seconds of computing without recomputation, over seconds of computing and sending; see EFFICIENCY.

        Encoding in chunks computes twice, so it lowers the efficiency, of one GPU too.
        """
        return self.needed_seconds / (self.compute_seconds + self.communication_seconds)

    @classmethod
    def of(cls, plan: Plan) -> "Point":
        """What of a plan a curve shows."""
        return cls(
            gpus=plan.machine.workers,
            texts=plan.texts,
            update_freq=plan.update_freq,
            chunk=plan.chunk,
            compute_seconds=plan.compute_seconds,
            communication_seconds=plan.communication_seconds,
            needed_seconds=plan.compute_seconds * (1 - plan.operations.recomputed / plan.operations.total),
            sent=plan.sent,
            texts_per_second=plan.global_batch / (plan.compute_seconds + plan.communication_seconds),
        )


def make_curve(
    recipe: Recipe, machine: Machine, texts: int, *, per_gpu: bool = False, gpus: Sequence[int] = GPUS
) -> list[Point]:
    """A plan for each number of GPUs.

    Args:
        recipe: what is trained.
        machine: each GPU, and what is between them; its ``workers`` are not read.
        texts: of an update: on all GPUs, or on each.
        per_gpu: on each, so that the batch grows with the GPUs.
        gpus: numbers of them; those among which the batch cannot be dealt out evenly are left out.

    Raises:
        UserError: no such number is left, or memory does not suffice.
    """
    if not recipe.max_update:
        recipe = replace(recipe, max_update=1)  # an update's time does not depend on how many there are
    numbers = [number for number in gpus if per_gpu or (texts >= number and texts % number == 0)]
    if not numbers:
        raise UserError(
            f"--global-batch {texts}: cannot be dealt out to any of {', '.join(map(str, gpus))} GPUs evenly"
        )
    return [
        Point.of(make_plan(recipe, replace(machine, workers=number), texts * number if per_gpu else texts))
        for number in numbers
    ]
