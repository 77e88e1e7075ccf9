"""``fairseq-clear plan``: what a run costs, before it is started."""

import argparse
import logging
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clear.errors import UserError
from fairseq_clear.files import write_json

if TYPE_CHECKING:
    from fairseq_clear.planning.machine import Plan, Point

DESCRIPTION = """\
Lay a recipe out over N GPUs: texts a GPU, micro-batches, tokens encoded at a time, negatives of a query; updates, tokens,
FLOPs, memory, bytes sent, hours. Nothing is run and no GPU is needed.

Contrastive negatives are those of one micro-batch of all GPUs, so where memory is short the encoder goes over the batch in
chunks (model.encode_chunk_size) and update_freq stays; without a contrastive term, or with a queue, update_freq grows. Peak
and bandwidth are those of the machine, MFU is what you expect to reach of the peak: measure it, since hours are inversely
proportional to it. For a recipe on CPUs (common.cpu), --gpus counts workers and the peak is that of one CPU core: multiply
it by the cores that a worker has.

--curve draws seconds and efficiency for 1 to 4,096 GPUs. Efficiency is the time of computing without
recomputation, over the time of computing and sending. Encoding in chunks computes twice, so it lowers the efficiency, of one
GPU too. The curve assumes the same MFU for every share of the batch, and a ring at full bandwidth, without latency, of which
nothing overlaps with computing."""

EPILOG = """\
examples:
  fairseq-clear plan --config clear/base_256gpu --gpus 256 --memory 32
  fairseq-clear plan --config clear/base_256gpu +ablation=del_word --gpus 8 --global-batch 8192 --peak-tflops 989 --memory 80
  fairseq-clear plan --config clear/base_256gpu --gpus 256 --curve scaling.png
  fairseq-clear plan --config my.yaml ++model.encoder_layers=6 --gpus 4 --data-bin data-bin --json plan.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "--config", nargs="+", required=True, metavar="RECIPE",
        help="a .yaml file, or EXAMPLE/CONFIG for examples/EXAMPLE/config/CONFIG.yaml; then hydra overrides, of "
        "which those that the file does not name take ++",
    )  # fmt: skip
    parser.add_argument("--gpus", type=int, required=True, metavar="N", help="how many there are")
    parser.add_argument(
        "--global-batch", type=int, metavar="TEXTS",
        help="of an update, on all GPUs (default: dataset.batch_size x optimization.update_freq x N)",
    )  # fmt: skip
    parser.add_argument("--memory", type=float, default=32.0, metavar="GIB", help="of a GPU (default: %(default)g)")
    parser.add_argument(
        "--mfu", type=float, default=0.45, metavar="SHARE", help="of the peak that is reached (default: %(default)g)"
    )
    parser.add_argument(
        "--peak-tflops", type=float, metavar="T",
        help="of a GPU, or of a CPU worker, in the recipe's precision (default: a V100, 125 in half precision and 15.7 in "
        "float32; with common.cpu 0.096, one core with AVX2 at 3 GHz; A100 312, H100 989 in half precision)",
    )  # fmt: skip
    parser.add_argument(
        "--bandwidth", type=float, default=10.0, metavar="GB/s", help="that a GPU can send with (default: %(default)g)"
    )
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl", help="(default: %(default)s)")
    parser.add_argument(
        "--data-bin", type=Path, metavar="DIR", help="a folder of fairseq-clear prepare: vocabulary, epochs"
    )
    parser.add_argument(
        "--vocabulary", type=int, default=50_266, metavar="V",
        help="rows of the embedding without --data-bin (default: %(default)s, RoBERTa's and <del>)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number here too")
    parser.add_argument(
        "--curve", type=Path, metavar="FILE",
        help="draw seconds of an update and efficiency for 1, 2, 4 ... 4,096 GPUs, as PNG and SVG; the batch of all stays",
    )  # fmt: skip
    parser.add_argument(
        "--per-gpu", action="store_true", help="of --curve: the texts of each GPU stay, so that the batch grows with N"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")


def run(args: argparse.Namespace) -> int:
    """Print the table, write the JSON, return 0."""
    _check(args)
    from fairseq_clear.planning.costs import Recipe
    from fairseq_clear.planning.machine import GIB, Machine, make_curve, make_plan, read_folder
    from fairseq_clear.planning.recipe import compose_recipe
    from fairseq_clear.planning.report import as_json, as_table, curve_table

    name, *overrides = args.config
    config = compose_recipe(name, overrides)
    folder = None if args.data_bin is None else read_folder(args.data_bin, config["task"])
    recipe = (
        Recipe(config, args.vocabulary) if folder is None else Recipe(config, folder.vocabulary, folder.text_length)
    )
    machine = Machine(
        workers=args.gpus,
        memory=args.memory * GIB,
        peak=(args.peak_tflops or 0) * 1e12,
        utilisation=args.mfu,
        bandwidth=args.bandwidth * 1e9,
        backend=args.backend,
    )
    plan = make_plan(recipe, machine, args.global_batch, folder.texts if folder else None)
    points = []
    if args.curve is not None:
        share = plan.global_batch // args.gpus if args.per_gpu else plan.global_batch
        corpus = folder.texts if folder else None
        points = make_curve(recipe, plan.machine, share, per_gpu=args.per_gpu, corpus=corpus)
    if args.json is not None:
        curve = {"curve": [asdict(point) | {"efficiency": point.efficiency} for point in points]} if points else {}
        write_json(args.json, {"config": name, "overrides": overrides, **as_json(plan), **curve}, flag="--json")
    print(as_table(plan))
    if points:
        print(curve_table(points))
        _draw(args, plan, points)
    return 0


def _draw(args: argparse.Namespace, plan: "Plan", points: "list[Point]") -> None:
    from fairseq_clear.evaluation.plots.style import save_figure
    from fairseq_clear.planning.scaling_plot import draw_scaling

    batch = (
        f"{plan.texts * plan.update_freq:,} texts a GPU" if args.per_gpu else f"{plan.global_batch:,} texts an update"
    )
    title = (
        f"{args.config[0]}, {batch}\n"
        f"assumed: {args.mfu:.0%} of {plan.machine.peak / 1e12:g} TFLOP/s, {args.bandwidth:g} GB/s,\n"
        "no latency, nothing hidden"
    )
    print(f"wrote {' and '.join(map(str, save_figure(draw_scaling(points, title), args.curve)))}")


def _check(args: argparse.Namespace) -> None:
    """UserError for what can be known to be wrong at once."""
    for flag in ("gpus", "global_batch", "vocabulary"):
        value = getattr(args, flag)
        if value is not None and value < 1:
            raise UserError(f"--{flag.replace('_', '-')} {value}: must be 1 or more")
    for flag in ("memory", "mfu", "peak_tflops", "bandwidth"):
        value = getattr(args, flag)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UserError(f"--{flag.replace('_', '-')} {value:g}: must be above 0")
    if args.mfu > 1:
        raise UserError(f"--mfu {args.mfu:g}: is a share of the peak, at most 1")
    if args.json is not None and not args.json.parent.is_dir():
        raise UserError(f"--json {args.json}: there is no folder {args.json.parent}; make it first")
    if args.json is not None and (args.json.is_dir() or (args.json.exists() and not args.overwrite)):
        raise UserError(f"--json {args.json}: exists already; add --overwrite to replace it, or give another name")
    if args.curve is not None:
        _check_curve(args.curve, args.overwrite)
    elif args.per_gpu:
        raise UserError("--per-gpu: is of --curve; give a FILE to draw to, or leave it out")


def _check_curve(path: Path, overwrite: bool) -> None:
    for name in ("matplotlib", "PIL"):  # importing fairseq turns on everything that other libraries log
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        from fairseq_clear.evaluation.plots.style import check_picture_path
    except ImportError:
        raise UserError("--curve: matplotlib is not installed; pip install 'fairseq_clear[eval]'") from None
    try:
        check_picture_path(path, overwrite)
    except UserError as error:
        raise UserError(str(error).replace("--output", "--curve", 1)) from None
