"""fairseq's own trainer on batches that a test chooses, in this process or in several workers."""

import logging
import pickle
import random
import shutil
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

import fairseq_clear
from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.data.batch import Examples
from fairseq_clear.files import hash_file
from fairseq_clear.text.synonym_files import save_synonyms
from tests.conftest import binarize

fairseq_clear.register()

LENGTH = 64  # tokens of every text of ``make_data``, <s> and </s> included

FLAGS = (
    *("--task", "clear_lm", "--arch", "clear_roberta_tiny", "--criterion", "clear_nt_xent", "--pooling", "mean"),
    *("--sample-break-mode", "eos", "--tokens-per-sample", "32", "--augment", "del-word", "--cpu", "--batch-size", "8"),
    *("--optimizer", "sgd", "--lr", "0.5", "--dropout", "0", "--attention-dropout", "0", "--max-update", "100"),
)


class Instance(NamedTuple):
    """An anchor of an item of the data set, and its views."""

    anchor: np.ndarray
    positives: list[np.ndarray]
    negatives: list[np.ndarray]
    identity: int | list[int]
    draw: float


def instances(item: Examples) -> list[Instance]:
    """The anchors of an item of the data set, each with its views."""
    found = []
    for number in range(len(item.identity)):
        anchor, *others = (item.views[number * item.each + role] for role in range(item.each))
        positives, negatives = others[: item.positives], others[item.positives :]
        found.append(Instance(anchor, positives, negatives, item.identity[number].tolist(), float(item.draw[number])))
    return found


def rows_of(item: Examples) -> list[np.ndarray]:
    """All texts of an item that the encoder reads."""
    views = [] if item.views is None else [item.views[row] for row in range(len(item.views))]
    return [*(copy[0] for copy in item.sources), *views]


def make_data(folder: Path, words: int, sentences: int = 300) -> Path:
    """Documents of 8 sentences of one length in which every word occurs; each word has a synonym, each sentence is its own
    paraphrase ``bt``.
    """
    rng = random.Random(1)
    lines = [" ".join(f"w{rng.randrange(words)}" for _ in range(LENGTH - 2)) for _ in range(sentences)]
    every = [f"w{number}" for number in range(words)]
    every += every[: -words % (LENGTH - 2)]
    lines += [" ".join(every[begin : begin + LENGTH - 2]) for begin in range(0, len(every), LENGTH - 2)]
    documents = ["\n".join(lines[begin : begin + 8]) for begin in range(0, len(lines), 8)]
    data = binarize(folder / "bin", None, train=["\n\n".join(documents)])
    (data / "paraphrase").mkdir()
    shutil.copytree(data, data / "paraphrase" / "bt", ignore=lambda *_: ["paraphrase"])
    write_synonyms(data, {(word,): [(word + 1,)] for word in range(FIRST, FIRST + words)}, FIRST + words + 1)
    return data


FIRST = 4  # id of the first word, after <s>, <pad>, </s>, <unk>


def write_synonyms(data: Path, rows: dict[tuple[int, ...], list[tuple[int, ...]]], symbols: int) -> None:
    """Give a data folder a table with these rows, in a vocabulary in which every symbol begins a word."""
    table, known = SynonymTable.build(rows, np.ones(symbols, np.bool_)), hash_file(data / "dict.txt")
    save_synonyms(data / "synonyms.npz", table, vocabulary_hash=known, source="made up", source_hash="none")


def configuration(data: Path | str, *flags: str, world_size: int = 1) -> Any:
    """fairseq's configuration of a run; later flags win over FLAGS."""
    cfg = pickle.loads(_configuration(str(data), flags))
    cfg.distributed_training.distributed_world_size = world_size
    return cfg


# The last two are required by the scheduler that is selected.
SELECTING = ("--task", "--arch", "--criterion", "--optimizer", "--lr-scheduler", "--total-num-update", "--max-lr")


@cache
def _configuration(data: str, flags: tuple[str, ...]) -> bytes:
    """What ``compose`` makes of the flags that select a class, with the values of the others, as fairseq assigns them.

    hydra takes 0.3 s to compose; workers that are forked afterwards have the result already.
    """
    selection = [word for one, other in pairwise(flags) if one in SELECTING for word in (one, other)]
    before, cfg = pickle.loads(_composed(tuple(selection)))
    for name, value in vars(parse(data, flags)).items():
        if value != getattr(before, name, None):
            for section in cfg.values():
                if OmegaConf.is_dict(section) and name in section.keys():  # noqa: SIM118 (`in` leaves missing values out)
                    section[name] = value
                elif isinstance(section, Namespace):
                    setattr(section, name, value)
    return pickle.dumps(cfg)


@cache
def _composed(flags: tuple[str, ...]) -> bytes:
    return pickle.dumps((parse("data", flags), compose("data", flags)))


def parse(data: str, flags: Sequence[str]) -> Namespace:
    return options.parse_args_and_arch(options.get_training_parser(), [data, *FLAGS, *flags])


def compose(data: str, flags: Sequence[str]) -> Any:
    """The configuration as fairseq makes it of a command line."""
    return convert_namespace_to_omegaconf(parse(data, flags))


def build(data: Path | str, *flags: str, world_size: int = 1, on_gpu: bool = False) -> tuple[Trainer, Any]:
    """Trainer and training set; weights are the same in every process."""
    cfg = configuration(data, *flags, world_size=world_size)
    cfg.common.cpu = not on_gpu
    task = tasks.setup_task(cfg.task)
    torch.manual_seed(1)
    model = task.build_model(cfg.model)
    criterion = task.build_criterion(cfg.criterion)
    task.load_dataset("train")
    return Trainer(cfg, task, model, criterion), task.dataset("train")


def refuses(caplog: Any, said: str, *arguments: Any, of: Callable[..., object] = build) -> None:
    """Check that ``build``, or another function, ends the run with status 2 and one error line, which has ``said``."""
    caplog.clear()
    with pytest.raises(SystemExit) as left:
        of(*arguments)
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert left.value.code == 2 and len(errors) == 1 and said in errors[0] and "\n" not in errors[0], errors


@dataclass(frozen=True)
class Case:
    """One update or several of the same items: flags, and the micro-batches (lists of items) of every worker; ``broken`` breaks
    the code meanwhile.
    """

    flags: tuple[str, ...]
    shares: Sequence[Sequence[Sequence[int]]]
    broken: Callable[[], AbstractContextManager[Any]] = nullcontext
    steps: int = 1
    on_gpu: bool = False


def update(rank: int, data: str, case: Case) -> dict[str, Any]:
    """The update by worker ``rank``: weights before and after, and the numbers logged."""
    with case.broken():
        trainer, dataset = build(data, *case.flags, world_size=len(case.shares), on_gpu=case.on_gpu)
        before = weights(trainer)
        batches = [dataset.collater([dataset[index] for index in indices]) for indices in case.shares[rank]]
        trainer.reset_dummy_batch(batches[0])
        for _ in range(case.steps):
            log = trainer.train_step(batches)
    return {"before": before, "after": weights(trainer), "log": {name: float(value) for name, value in log.items()}}


def updates(rank: int, data: str, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Several updates, each from the same first weights, in one process: starting one costs more than the updates."""
    return [update(rank, data, case) for case in cases]


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Parameters, those of key encoders included, and the keys of a queue in an order that does not matter."""
    found = {name: parameter.detach().cpu().clone() for name, parameter in trainer.get_model().named_parameters()}
    queue = trainer.get_model().key_queue
    if queue is not None:
        found["key_queue"] = queue.keys[queue.keys[:, 0].argsort()].cpu().clone()
    return found


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)
