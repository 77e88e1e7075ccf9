"""Seconds of an SG-OPT update, divided by those of a SimCSE update with the same batch, head and encoder. Aim: 1.1 at most."""

import argparse
import tempfile
from pathlib import Path
from statistics import median

import torch
from results import finish, row
from steps import build, in_turn, make_text, ratio, steps

SHAPES = {
    "6 x 384": ("--encoder-layers", "6", "--encoder-embed-dim", "384", "--encoder-attention-heads", "12"),
    "12 x 768": ("--encoder-layers", "12", "--encoder-embed-dim", "768", "--encoder-attention-heads", "12"),
}
HEAD = (
    *("--projection-layers", "2", "--projection-hidden-dim", "4096", "--projection-dim", "4096"),
    *("--projection-activation", "gelu", "--projection-activate-last", "--pooling", "cls"),
)


def main() -> None:
    """Print a table; --json also writes it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="6 x 384")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    shape = ("--arch", "clear_roberta", *SHAPES[arguments.shape], "--encoder-ffn-embed-dim", "1536", *HEAD)
    with tempfile.TemporaryDirectory() as folder:
        data = make_text(Path(folder), 2_000, (6, 20))
        guided = build(data, *shape, "--criterion", "clear_self_guided")
        simcse = build(data, *shape, "--criterion", "clear_nt_xent", "--mlm-weight", "0", "--temperature", "0.05")
        seconds = in_turn([steps(*guided, 16), steps(*simcse, 16)], arguments.repeats)
    result = {
        "shape": arguments.shape,
        "batch": 16,
        "sg_opt_seconds": median(seconds[0]),
        "simcse_seconds": median(seconds[1]),
        "ratio": ratio(*seconds),
        "repeats": arguments.repeats,
        "threads": torch.get_num_threads(),
    }
    result["table"] = [
        row(
            f"SG-OPT update, {arguments.shape}", "s", result["sg_opt_seconds"],
            baseline="SimCSE update", theirs=result["simcse_seconds"], ratio=result["ratio"], aim="<= 1.1",
        )
    ]  # fmt: skip
    finish(result, arguments.json)


if __name__ == "__main__":
    main()
