"""``fairseq-clear plan``: estimates the cost of a run before it starts."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fairseq_clear.cli.flags import Command
from fairseq_clear.cli.plot import check_picture
from fairseq_clear.errors import UserError
from fairseq_clear.files import check_output_file, write_json
from fairseq_clear.settings import setting

if TYPE_CHECKING:
    from fairseq_clear.planning import machine


@dataclass(kw_only=True)
class Plan(Command):
    """Distribute a recipe over N GPUs and estimate its cost.

    Shows texts per GPU, micro-batches, tokens encoded at a time and negatives of a query; and updates, tokens, FLOPs, memory,
    bytes sent and hours. Nothing is run and no GPU is needed.

    The negatives of a query come from one micro-batch, over all GPUs. If memory is short, the encoder therefore encodes the
    batch in chunks (model.encode_chunk_size) and update_freq does not change. Without a contrastive term, or with a queue,
    update_freq grows instead.

    --peak-tflops and --bandwidth describe the machine. MFU (model FLOPs utilisation) is the share of the peak that you expect
    to reach. Measure it, since hours are inversely proportional to it. For a recipe on CPUs (common.cpu), --gpus counts workers
    and the default peak is that of one CPU core: multiply it by the cores of a worker.

    --curve draws seconds and efficiency for 1 to 4,096 GPUs. Efficiency is the time of computing without recomputation, divided
    by the time of computing and sending. Encoding in chunks computes the forward pass twice, so it lowers the efficiency, even
    of one GPU. The curve assumes the same MFU for every share of the batch, and a ring at full bandwidth, without latency, that
    does not overlap with computing.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear plan --config clear/base_256gpu --gpus 256 --memory 32
fairseq-clear plan --config clear/base_256gpu +ablation=del_word --gpus 8 --global-batch 8192 --peak-tflops 989 --memory 80
fairseq-clear plan --config clear/base_256gpu --gpus 256 --curve scaling.png
fairseq-clear plan --config my.yaml ++model.encoder_layers=6 --gpus 4 --data-bin data-bin --json plan.json"""

    config: tuple[str, ...] = setting(
        "a .yaml file, or EXAMPLE/CONFIG for examples/EXAMPLE/config/CONFIG.yaml; then hydra overrides, with ++ for settings "
        "that the file does not name",
        metavar="RECIPE",
    )
    gpus: int = setting("number of GPUs", least=1)
    global_batch: int | None = setting(
        "texts per update, on all GPUs (default: dataset.batch_size x optimization.update_freq x N)",
        None,
        least=1,
        metavar="TEXTS",
    )
    memory: float = setting("memory of each GPU", 32.0, above=0, metavar="GIB")
    mfu: float = setting(
        "model FLOPs utilisation: the share of the peak that training reaches", 0.45, above=0, most=1, metavar="SHARE"
    )
    peak_tflops: float | None = setting(
        "peak TFLOP/s of a GPU, or of a CPU worker, in the recipe's precision (default: a V100, 125 in half precision and 15.7 "
        "in float32; with common.cpu 0.096, one core with AVX2 at 3 GHz). In half precision, an A100 has 312 and an H100 989",
        None,
        above=0,
        metavar="T",
    )
    bandwidth: float = setting("bandwidth at which each GPU sends", 10.0, above=0, metavar="GB/s")
    backend: str = setting("communication backend of the workers", "nccl", choices=["nccl", "gloo"])
    data_bin: Path | None = setting(
        "data folder, from which vocabulary, text length and epochs are read", None, metavar="DIR"
    )
    vocabulary: int = setting(
        "rows of the token embedding, without --data-bin (default: 50266, RoBERTa's vocabulary and <del>)",
        50_266,
        least=1,
        metavar="V",
    )
    json: Path | None = setting("also write every number to this file", None)
    curve: Path | None = setting(
        "draw seconds per update and efficiency for 1, 2, 4 ... 4,096 GPUs at a constant global batch, as PNG and SVG",
        None,
    )
    per_gpu: bool = setting(
        "with --curve: keep the texts per GPU constant, so that the global batch grows with N", False
    )
    overwrite: bool = setting("replace existing files", False)

    def run(self) -> int:
        """Print the table, write the JSON, draw the curve."""
        if self.json is not None:
            check_output_file(self.json, self.overwrite, flag="--json")
        if self.curve is not None:
            check_picture(self.curve, self.overwrite, flag="--curve")
        elif self.per_gpu:
            raise UserError("--per-gpu: has an effect only with --curve; give --curve FILE, or leave --per-gpu out")
        from fairseq_clear.planning.costs import Recipe
        from fairseq_clear.planning.machine import GIB, Machine, make_curve, make_plan, read_folder
        from fairseq_clear.planning.recipe import compose_recipe
        from fairseq_clear.planning.report import as_json, as_table, curve_as_json, curve_table

        name, *overrides = self.config
        config = compose_recipe(name, overrides)
        folder = None if self.data_bin is None else read_folder(self.data_bin, config["task"])
        texts = folder.texts if folder else None
        recipe = Recipe(config, folder.vocabulary, folder.text_length) if folder else Recipe(config, self.vocabulary)
        machine = Machine(
            workers=self.gpus,
            memory=self.memory * GIB,
            peak=(self.peak_tflops or 0) * 1e12,
            utilisation=self.mfu,
            bandwidth=self.bandwidth * 1e9,
            backend=self.backend,
        )
        plan = make_plan(recipe, machine, self.global_batch, texts)
        share = plan.global_batch // self.gpus if self.per_gpu else plan.global_batch
        points = make_curve(recipe, plan.machine, share, per_gpu=self.per_gpu, corpus=texts) if self.curve else []
        if self.json is not None:
            curve = {"curve": curve_as_json(points)} if points else {}
            write_json(self.json, {"config": name, "overrides": overrides, **as_json(plan), **curve}, flag="--json")
        print(as_table(plan))
        if self.curve is not None:
            print(curve_table(points))
            self.draw(plan, points, self.curve)
        return 0

    def draw(self, plan: "machine.Plan", points: "list[machine.Plan]", file: Path) -> None:
        """Draw the curve."""
        from fairseq_clear.evaluation.plotting import save_figure
        from fairseq_clear.planning.report import draw_scaling

        texts = (
            f"{plan.texts * plan.update_freq:,} texts a GPU"
            if self.per_gpu
            else f"{plan.global_batch:,} texts an update"
        )
        title = (
            f"{self.config[0]}, {texts}\n"
            f"assumed: {self.mfu:.0%} of {plan.machine.peak / 1e12:g} TFLOP/s, {self.bandwidth:g} GB/s,\n"
            "no latency, no overlap"
        )
        print(f"wrote {' and '.join(map(str, save_figure(draw_scaling(points, title), file)))}")
