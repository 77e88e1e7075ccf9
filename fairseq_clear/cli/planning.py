"""``fairseq-clear plan``: estimates the cost of a run before it starts."""

from dataclasses import dataclass
from typing import ClassVar

from fairseq_clear.cli.flags import Command
from fairseq_clear.errors import UserError
from fairseq_clear.settings import setting


@dataclass(kw_only=True)
class Plan(Command):
    """Estimate what a recipe needs of N GPUs: memory, bytes sent, hours, and the value of --encode-chunk-size.

    Nothing is trained and no GPU is needed. The table has a row for each number of GPUs: texts of a micro-batch on one GPU,
    the value of --encode-chunk-size (0 encodes all texts at once), bytes and FLOPs of one GPU in one update, and loaders, the
    number of cores that make the batches of one GPU at the rate of a core of this machine. If a micro-batch does not fit into
    the memory, the encoder reads it in chunks, and every query keeps its negatives. The forward pass of a chunk is computed
    twice, so an update takes a third more time.

    hours = FLOPs / (GPUs x peak x MFU). MFU (model FLOPs utilisation) is the share of the peak that training reaches, with the
    time of sending. Measure it, because hours are inversely proportional to it.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear plan --config clear/base_256gpu --gpus 1 8 64 256 --global-batch 8192 --memory 32
fairseq-clear plan --config clear/base_256gpu +ablation=del_word --gpus 8 --peak-tflops 989 --memory 80
fairseq-clear plan --config my.yaml ++model.encoder_layers=6 --gpus 4 --data-bin data-bin"""

    config: tuple[str, ...] = setting(
        "a .yaml file, or EXAMPLE/CONFIG for examples/EXAMPLE/config/CONFIG.yaml; then hydra overrides, with ++ for settings "
        "that the file does not name",
        metavar="RECIPE",
    )
    gpus: tuple[int, ...] = setting("one or several numbers of GPUs")
    global_batch: int | None = setting(
        "texts per update, on all GPUs (default: dataset.batch_size x optimization.update_freq x N)",
        None,
        least=1,
        metavar="TEXTS",
    )
    memory: float = setting("memory of each GPU", 32.0, above=0, metavar="GIB")
    mfu: float = setting("share of the peak that training reaches", 0.3, above=0, most=1, metavar="SHARE")
    peak_tflops: float | None = setting(
        "peak TFLOP/s of a GPU in the recipe's precision (default: a V100, 125 in half precision and 15.7 in float32); in "
        "half precision, an A100 has 312 and an H100 989",
        None,
        above=0,
        metavar="T",
    )
    data_bin: str = setting(
        "read the texts of this data folder, DIR1:DIR2 as for fairseq-train (default: random words in texts of full length)",
        "",
        metavar="DIR",
    )
    vocabulary: int = setting("rows of the token embedding, without --data-bin", 50_266, least=1, metavar="V")

    def run(self) -> int:
        """Print the recipe and a row for each number of GPUs."""
        from fairseq_clear.plan import GIB, PRECISIONS, Recipe, make_plan, read_recipe

        if min(self.gpus) < 1:
            raise UserError(f"--gpus {min(self.gpus)}: must be 1 or more")
        name, *overrides = self.config
        recipe = Recipe(read_recipe(name, overrides, self.data_bin), self.vocabulary)
        peak = self.peak_tflops or PRECISIONS[recipe.precision][2]
        rate = self.mfu * peak * 1e12
        plans = [make_plan(recipe, gpus, self.memory * GIB, rate, self.global_batch) for gpus in self.gpus]
        weights = f"{sum(weight.numel() for weight in recipe.model.parameters()):,} parameters"
        rows = [f"{len(n) / recipe.items:g} x {min(n)} to {max(n)} tokens ({kind})" for kind, n in recipe.rows.items()]
        print(f"recipe: {' '.join(self.config)}, {weights}, vocabulary {recipe.vocabulary:,}, {recipe.precision}")
        print(f"a text: {', '.join(rows)}")
        print(f"a run:  {recipe.cfg.optimization.max_update:,} updates at {self.mfu:.0%} of {peak:g} TFLOP/s")
        print(f"loading: {recipe.loading:,.0f} texts/s by one core of this machine")
        print(
            "  GPUs  texts each    chunk  state GiB  activations GiB  sent MiB  FLOPs each     hours  GPU hours  loaders"
        )
        for plan in plans:
            state, activations, sent = plan.state / GIB, plan.activations / GIB, plan.sent / 2**20
            print(
                f"{plan.gpus:6,} {plan.batch:11,} {plan.chunk:8,} {state:10.2f} {activations:16.2f} {sent:9,.1f} "
                f"{plan.flops:11.3g} {plan.hours:9,.1f} {plan.gpus * plan.hours:10,.0f} {plan.loaders:8}"
            )
        return 0
