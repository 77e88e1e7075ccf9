"""Shows a plan as a table, as JSON, and as a picture over the number of GPUs."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from fairseq_clear.planning.machine import ASSUMPTIONS, EFFICIENCY, GIB, HEADROOM, Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COUNTED = "matrix products and attention of the recipe's own model and criterion, run on tensors without values"


def as_table(plan: Plan) -> str:
    """Format the chosen layout and its costs, one line each."""
    rows = [*_layout(plan), *_costs(plan), *_exchanges(plan), *_time(plan)]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}".rstrip() for name, value in rows)


Rows = Iterator[tuple[str, str]]


def _layout(plan: Plan) -> Rows:
    recipe, args = plan.recipe, plan.recipe.model.args
    size = f"{args.encoder_layers} x {args.encoder_embed_dim}, {recipe.weights:,} weights (vocabulary {recipe.vocabulary:,})"
    yield "model", f"{size}, {recipe.trained:,} trained, {recipe.precision}"
    yield "texts of an update", f"{plan.global_batch:,} of {recipe.text_length} tokens"
    rows = f"{_rows(plan, 'masked', 'masked row')} and {_rows(plan, 'views', 'view')}{_keys(plan)}"
    yield "dataset.batch_size", f"{plan.texts:,} texts a GPU: {rows}"
    yield "optimization.update_freq", f"[{plan.update_freq}]"
    longest = recipe.longest
    chunk = f"{plan.chunk} tokens ({max(plan.chunk // longest, 1):,} x {longest} tokens at a time)"
    yield "model.encode_chunk_size", chunk if plan.chunk else "0 (all at once)"
    if recipe.has_contrast:
        note = "" if plan.update_freq == 1 else "; with update_freq 1 they would be those of the whole update"
        note = note if recipe.model.key_queue is None else ", the queue once it is full"
        yield "negatives of a query", f"{plan.negatives:,}{note}"


def _rows(plan: Plan, part: str, name: str) -> str:
    lengths = plan.recipe.texts.get(part, [])
    if not lengths:
        return f"no {name}s"
    count, least, most = len(lengths) * plan.texts // plan.recipe.items, min(lengths), max(lengths)
    return f"{count:,} {name}{'s' * (count > 1)} of {f'{least} to ' * (least < most)}{most} tokens"


def _keys(plan: Plan) -> str:
    recipe = plan.recipe
    masked = f" ({recipe.masked_views * plan.texts:,} of them masked)" if recipe.masked_views else ""
    if "keys" not in recipe.texts:
        return masked
    return f"{masked}; {_rows(plan, 'keys', 'text')} by the {recipe.criterion.key_encoder} encoder"


def _costs(plan: Plan) -> Rows:
    operations, times, memory = plan.operations, plan.update_freq, plan.memory
    yield "updates", f"{plan.updates:,}" + ("" if plan.epochs is None else f", {plan.epochs:,.1f} epochs")
    yield "tokens encoded", f"{plan.tokens:,} an update, {plan.tokens * plan.updates:.3g} in all"
    shares = ", ".join(f"{name} {times * value:.3g}" for name, value in asdict(operations).items() if value)
    yield "FLOPs of a GPU and update", f"{times * operations.total:.4g} ({shares})"
    yield "  counted", COUNTED
    yield "FLOPs of the run", f"{times * operations.total * plan.machine.workers * plan.updates:.3g}"
    limit = f"{plan.machine.memory / GIB:g} (at most {HEADROOM:.0%} are planned with)"
    yield "memory of a GPU", f"{memory.total / GIB:.2f} GiB of {limit}"
    yield "  parts", ", ".join(f"{name} {size / GIB:.2f}" for name, size in asdict(memory).items() if size)


def _exchanges(plan: Plan) -> Rows:
    around = f"{_size(plan.sent)} around a ring" if plan.exchanges else "nothing: one GPU"
    yield "sent by a GPU and update", around
    for exchange in plan.exchanges:
        times = f" x {exchange.times}" if exchange.times > 1 else ""
        sent = _size(exchange.sent(plan.machine.workers))
        yield f"  {exchange.what}", f"{exchange.operation} of {_size(exchange.size)}{times}: {sent}"


def _time(plan: Plan) -> Rows:
    machine, worker = plan.machine, "worker" if plan.recipe.is_cpu else "GPU"
    yield f"peak of a {worker}", f"{machine.peak / 1e12:g} TFLOP/s, {plan.peak_of}"
    shares = f"{machine.utilisation:.0%} of {machine.peak / 1e12:g} TFLOP/s, {machine.bandwidth / 1e9:g} GB/s"
    sending = f"{plan.communication_seconds:.4f} sending if none is hidden ({shares})"
    yield "seconds of an update", f"{plan.compute_seconds:.4f} computing, {sending}"
    yield "hours of the run", f"{plan.hours:,.1f} ({plan.hours * machine.workers:,.0f} GPU hours)"


def _size(count: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def curve_table(points: Sequence[Plan]) -> str:
    """Format a curve, one line for each number of GPUs."""
    names = ("GPUs", "texts", "freq", "chunk", "computing s", "sending s", "efficiency", "texts/s")
    head = " ".join(f"{name:>{width}}" for name, width in zip(names, (6, 7, 5, 10, 12, 10, 10, 9), strict=True))
    lines = [
        f"{point.gpus:6,} {point.texts:7,} {point.update_freq:5} {point.chunk:10,} {point.compute_seconds:12.4f} "
        f"{point.communication_seconds:10.4f} {point.efficiency:10.1%} {point.texts_per_second:9,.0f}"
        for point in points
    ]
    return "\n".join(["", head, *lines, f"efficiency = {EFFICIENCY}", f"assumed: {ASSUMPTIONS}"])


def curve_as_json(points: Sequence[Plan]) -> list[dict[str, Any]]:
    """The numbers of a curve as JSON values."""
    names = ("gpus", "texts", "update_freq", "chunk", "compute_seconds", "communication_seconds", "needed_seconds")
    return [{n: getattr(point, n) for n in (*names, "sent", "texts_per_second", "efficiency")} for point in points]


def as_json(plan: Plan) -> dict[str, Any]:
    """All numbers of the table as JSON values."""
    recipe = plan.recipe
    names = ("weights", "trained", "vocabulary", "precision", "is_cpu", "text_length", "texts", "items")
    content = {field.name: getattr(plan, field.name) for field in fields(plan)}
    content["recipe"] = {name: getattr(recipe, name) for name in names} | {"criterion": recipe.cfg.criterion._name}
    content["machine"] = asdict(plan.machine) | {"peak_of": plan.peak_of}
    content["exchanges"] = [asdict(exchange) for exchange in plan.exchanges]
    for name in ("operations", "memory"):
        content[name] = asdict(content[name]) | {"total": content[name].total}
    derived = ("global_batch", "compute_seconds", "sent", "communication_seconds", "hours")
    return content | {name: getattr(plan, name) for name in derived} | {"formula": COUNTED}


def draw_scaling(points: Sequence[Plan], title: str) -> "Figure":
    """Draw seconds of an update (above) and efficiency (below) over the number of GPUs, with a tick for each power of 2.

    There is at least one point; they are in ascending order of GPUs. The title may have several lines.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    from fairseq_clear.evaluation.plotting import COLOURS, DASHES, MARKERS, WIDTH, style

    gpus = [point.gpus for point in points]
    several = [point for point in points if point.gpus > 1]  # 0 bytes have no place on a logarithmic axis
    with style():
        figure = Figure(figsize=(WIDTH, 3.9))
        seconds, efficiency = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1.5, 1.0]})
        lines = (
            ("computing", points, [point.compute_seconds for point in points]),
            ("sending", several, [point.communication_seconds for point in several]),
            ("sum", points, [point.compute_seconds + point.communication_seconds for point in points]),
        )
        for (label, of, values), colour, marker, dash in zip(lines, COLOURS, MARKERS, DASHES, strict=False):
            seconds.plot([point.gpus for point in of], values, dash, color=colour, marker=marker, label=label)
        seconds.set_yscale("log")
        seconds.set_ylabel("seconds an update")
        seconds.set_title(title)
        seconds.legend(loc="best")
        efficiency.plot(gpus, [point.efficiency for point in points], "-", color=COLOURS[3], marker=MARKERS[3])
        efficiency.set_ylim(0, 1.05)
        efficiency.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        efficiency.set_ylabel("efficiency")
        efficiency.set_title("efficiency = " + EFFICIENCY.replace(" / ", "\n/ "))
        gpu_axis(efficiency, gpus)
        figure.align_ylabels()
    return figure


def gpu_axis(axis: "Axes", gpus: Sequence[int], name: str = "GPUs") -> None:
    """Set numbers of GPUs as ticks; if there are many, every other one including the last."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_xscale("log", base=2)
    axis.set_xticks(gpus if len(gpus) < 8 else gpus[(len(gpus) - 1) % 2 :: 2])
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(name)
