"""A plan as a table, and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fairseq_clear.planning.machine import GIB, HEADROOM, Plan
from fairseq_clear.planning.operations import FORMULA
from fairseq_clear.planning.scaling import ASSUMPTIONS, EFFICIENCY, Point

__all__ = ["as_json", "as_table", "curve_table"]


def as_table(plan: Plan) -> str:
    """What is chosen, and what it costs, one line each."""
    rows = [*_layout(plan), *_work(plan), *_memory(plan), *_exchanges(plan), *_time(plan)]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}".rstrip() for name, value in rows)


Rows = list[tuple[str, str]]


def _layout(plan: Plan) -> Rows:
    recipe, encoder = plan.recipe, plan.recipe.encoder
    rows = [
        (
            "model",
            f"{encoder.layers} x {encoder.width}, {recipe.weights:,} weights (vocabulary {encoder.vocabulary:,}), "
            f"{recipe.trained:,} trained, {recipe.precision}",
        ),
        ("texts of an update", f"{plan.global_batch:,} of {recipe.length} tokens"),
        (
            "dataset.batch_size",
            f"{plan.texts:,} texts a GPU: {_rows(recipe.copies * plan.texts, 'masked row', recipe.text_lengths)}"
            f" and {_rows(recipe.view_rows * plan.texts, 'view', recipe.view_lengths)}{_keys(plan)}",
        ),
        ("optimization.update_freq", f"[{plan.update_freq}]"),
        ("model.encode_chunk_size", _chunk(plan)),
    ]
    if recipe.has_views:
        note = "" if plan.update_freq == 1 else "; with update_freq 1 they would be those of the whole update"
        note = ", the queue once it is full" if recipe.has_queue else note
        rows.append(("negatives of a query", f"{plan.negatives:,}{note}"))
    return rows


def _chunk(plan: Plan) -> str:
    if not plan.chunk:
        return "0 (all at once)"
    longest = plan.recipe.longest
    return f"{plan.chunk} tokens ({_rows(max(plan.chunk // longest, 1), 'text', [longest])} at a time)"


def _rows(count: int, name: str, lengths: Sequence[int]) -> str:
    if not count:
        return f"no {name}s"
    least, most = min(lengths), max(lengths)
    return f"{count:,} {name}{'s' * (count > 1)} of {f'{least} to ' * (least < most)}{most} tokens"


def _keys(plan: Plan) -> str:
    recipe = plan.recipe
    masked = f" ({recipe.anchors * plan.texts:,} of them masked)" if recipe.is_joint else ""
    if not recipe.key_rows:
        return masked
    return f"{masked}; {_rows(recipe.key_rows * plan.texts, 'text', recipe.view_lengths)} by the {recipe.key_encoder} encoder"


def _work(plan: Plan) -> Rows:
    epochs = "" if plan.epochs is None else f", {plan.epochs:,.1f} epochs"
    operations, times = plan.operations, plan.update_freq
    parts = {
        "masked": operations.masked,
        "views": operations.views,
        "keys": operations.keys,
        "contrast": operations.contrast,
        "recomputed": operations.recomputed,
    }
    shown = ", ".join(f"{name} {times * value:.3g}" for name, value in parts.items() if value)
    return [
        ("updates", f"{plan.updates:,}{epochs}"),
        ("tokens encoded", f"{plan.tokens:,} an update, {plan.tokens * plan.updates:.3g} in all"),
        ("FLOPs of a GPU and update", f"{times * operations.total:.4g} ({shown})"),
        *(("  formula" if line == FORMULA[0] else "", line) for line in FORMULA),
        ("FLOPs of the run", f"{times * operations.total * plan.machine.workers * plan.updates:.3g}"),
    ]


def _memory(plan: Plan) -> Rows:
    parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in asdict(plan.memory).items() if size)
    return [
        (
            "memory of a GPU",
            f"{plan.memory.total / GIB:.2f} GiB of {plan.machine.memory / GIB:g} (at most {HEADROOM:.0%} are planned with)",
        ),
        ("  of it", parts),
    ]


def _exchanges(plan: Plan) -> Rows:
    if not plan.exchanges:
        return [("sent by a GPU and update", "nothing: one GPU")]
    rows = [("sent by a GPU and update", f"{_size(plan.sent)} around a ring")]
    for exchange in plan.exchanges:
        times = f" x {exchange.times}" if exchange.times > 1 else ""
        sent = _size(exchange.sent(plan.machine.workers))
        rows.append((f"  {exchange.what}", f"{exchange.operation} of {_size(exchange.size)}{times}: {sent}"))
    return rows


def _time(plan: Plan) -> Rows:
    machine = plan.machine
    shares = f"{machine.utilisation:.0%} of {machine.peak / 1e12:g} TFLOP/s, {machine.bandwidth / 1e9:g} GB/s"
    return [
        (
            "peak of a worker" if plan.recipe.is_cpu else "peak of a GPU",
            f"{machine.peak / 1e12:g} TFLOP/s, {machine.peak_of}",
        ),
        (
            "seconds of an update",
            f"{plan.compute_seconds:.4f} computing, {plan.communication_seconds:.4f} sending if none is hidden ({shares})",
        ),
        ("hours of the run", f"{plan.hours:,.1f} ({plan.hours * machine.workers:,.0f} GPU hours)"),
    ]


def _size(count: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def curve_table(points: Sequence[Point]) -> str:
    """A line for each number of GPUs."""
    names = ("GPUs", "texts", "freq", "chunk", "computing s", "sending s", "efficiency", "texts/s")
    head = " ".join(f"{name:>{width}}" for name, width in zip(names, (6, 7, 5, 10, 12, 10, 10, 9), strict=True))
    lines = [
        f"{point.gpus:6,} {point.texts:7,} {point.update_freq:5} {point.chunk:10,} {point.compute_seconds:12.4f} "
        f"{point.communication_seconds:10.4f} {point.efficiency:10.1%} {point.texts_per_second:9,.0f}"
        for point in points
    ]
    return "\n".join(["", head, *lines, f"efficiency = {EFFICIENCY}", f"assumed: {ASSUMPTIONS}"])


def as_json(plan: Plan) -> dict[str, Any]:
    """Every number of the table."""
    content = asdict(plan)
    derived = ("global_batch", "compute_seconds", "sent", "communication_seconds", "hours")
    content |= {name: getattr(plan, name) for name in derived}
    content["memory"]["total"], content["operations"]["total"] = plan.memory.total, plan.operations.total
    content["formula"] = " ".join(FORMULA)
    return content
