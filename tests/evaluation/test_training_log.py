"""Logs are read as fairseq writes them."""

import gzip
import json
import logging
from pathlib import Path

import pytest
from fairseq.logging.progress_bar import JsonProgressBar, SimpleProgressBar, TqdmProgressBar

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.training_log import read_log


def record(part, updates, prefix=None, **values):
    named = {f"{prefix}_{key}" if prefix else key: str(value) for key, value in values.items()}
    number = f"{prefix}_num_updates" if prefix else "num_updates"
    return f"2026-01-01 00:00:00 | INFO | {part} | " + json.dumps({"epoch": 1, **named, number: str(updates)})


LINES = [
    "2026-01-01 00:00:00 | INFO | fairseq_cli.train | {'common': {'no_progress_bar': False}}",
    record("train_inner", 10, mlm_loss=9, contrastive_loss=5, alignment=0.2, uniformity=-1, ppl="inf"),
    record("train_inner", 20, mlm_loss=8, contrastive_loss=4, alignment=0.3, uniformity=-2),
    record("valid", 20, "valid", mlm_loss=8.5, contrastive_loss=4.5, best_loss="nan"),
    record("train", 20, "train", mlm_loss=8.2, contrastive_loss=4.2, accuracy=50),
    record("train_inner", 20, loss=11.5, mlm_loss=7.5, contrastive_loss=4, alignment=0.35, uniformity=-2),
]


def write(tmp_path, lines, name="train.log", folder="run"):
    path = tmp_path / folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


STATS = {
    "train_inner": [{"loss": 4.25, "ppl": 19.0, "num_updates": 2}, {"loss": 3.5, "ppl": 11.3, "num_updates": 4}],
    "train": [{"loss": 3.875, "num_updates": 4, "lr": 0.003}],
    "valid": [{"loss": 3.9375, "sts_spearman": -12.5, "num_updates": 4}],
    "dev-b.1": [{"loss": 1e-07, "best_loss": float("nan"), "num_updates": 4}],
}
STOCK, BARE = "%(asctime)s | %(levelname)s | %(name)s | %(message)s", "%(message)s"
HYDRA = "[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"


def write_by_fairseq(path, bar, header):
    """STATS as fairseq-train gives them to a progress bar, after lines that hold no statistics."""
    logger = logging.getLogger("fairseq.logging.progress_bar")
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter(header))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        logger.info("{'_name': None, 'common': {'log_format': 'simple'}} | begin training epoch 1")
        train = bar([None] * 4, 1, None)
        for step, _ in enumerate(train, 1):
            if step % 2 == 0:
                train.log(STATS["train_inner"][step // 2 - 1], tag="train_inner", step=step)
        train.print(STATS["train"][0], tag="train", step=4)
        for subset in ("valid", "dev-b.1"):
            bar([None], 1, f"valid on '{subset}' subset").print(STATS[subset][0], tag=subset, step=4)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


@pytest.mark.parametrize("header", [STOCK, HYDRA, BARE])
@pytest.mark.parametrize("form", ["simple", "json", "tqdm"])
def test_every_format_of_fairseq_is_read(tmp_path, form, header):
    bars = {
        "simple": lambda *a: SimpleProgressBar(*a, log_interval=2),
        "json": lambda *a: JsonProgressBar(*a, log_interval=2),
        "tqdm": TqdmProgressBar,
    }
    write_by_fairseq(tmp_path / "run1.log", bars[form], header)
    records = read_log(tmp_path / "run1.log")
    expected = {
        part: {
            stats["num_updates"]: {name: value for name, value in stats.items() if name != "best_loss"}
            for stats in every
        }
        for part, every in STATS.items()
        if (form, part) != ("tqdm", "train_inner")  # shown on the terminal alone
    }
    for updates in records.values():
        for values in updates.values():
            values.pop("epoch", None)
            values.pop("update", None)
    assert records == expected


def test_a_log_without_statistics_is_an_error(tmp_path):
    with pytest.raises(UserError, match="train.log: holds no training statistics; .* --log-format simple or json"):
        read_log(write(tmp_path, ["begin training epoch 1", "| loss 3"]))
    with pytest.raises(UserError, match="cannot read it"):
        read_log(tmp_path / "absent.log")


def test_broken_records_are_left_out(tmp_path: Path) -> None:
    good = '{"epoch": 1, "loss": "4.5", "num_updates": "10"}'
    broken = '{"epoch": 1, "loss": "4}\n{"epoch": 1, "loss": "1.2.3", "num_updates": "20"}'
    unfinished = "2026-01-01 00:00:00 | INFO | train | epoch 002:     2 / 20 loss=3, num_updates=1"
    (tmp_path / "log").write_text(f"{good}\n{broken}\n{unfinished}")
    (records,) = read_log(tmp_path / "log").values()
    assert records == {10: {"epoch": 1, "loss": 4.5, "num_updates": 10}, 20: {"epoch": 1, "num_updates": 20}}
    with gzip.open(tmp_path / "log.gz", "wt") as file:
        file.write(f"{good}\n")
    assert [*read_log(tmp_path / "log.gz")["train_inner"]] == [10]
