"""Real updates on generated texts, which estimates are compared with."""

import gc
import random
import shutil
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.trainer import Trainer
from torch.profiler import ProfilerActivity, profile

from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.files import hash_file
from fairseq_clear.planning.costs import Recipe
from fairseq_clear.text.synonym_files import save_synonyms
from tests.conftest import run, tool
from tests.training import build

LENGTH = 64  # tokens of every text, <s> and </s> included
SENTENCES = 8  # of a document
COMMON = ("--optimizer", "adam", "--lr", "1e-5", "--tokens-per-sample", str(LENGTH), "--pooling", "cls")


def make_data(folder: Path, words: int, sentences: int = 300) -> Path:
    """Documents of sentences of one length in which every word occurs; each word has a synonym, each sentence is its own
    paraphrase ``bt``.
    """
    rng = random.Random(1)
    lines = [" ".join(f"w{rng.randrange(words)}" for _ in range(LENGTH - 2)) for _ in range(sentences)]
    every = [f"w{number}" for number in range(words)]
    every += every[: -words % (LENGTH - 2)]
    lines += [" ".join(every[begin : begin + LENGTH - 2]) for begin in range(0, len(every), LENGTH - 2)]
    documents = ["\n".join(lines[begin : begin + SENTENCES]) for begin in range(0, len(lines), SENTENCES)]
    (folder / "train.txt").write_text("\n\n".join(documents) + "\n")
    run(*tool("preprocess"), "--only-source", "--trainpref", folder / "train.txt", "--destdir", folder / "bin")
    data = folder / "bin"
    (data / "paraphrase").mkdir()
    shutil.copytree(data, data / "paraphrase" / "bt", ignore=lambda *_: ["paraphrase"])
    first = 4  # after <s>, <pad>, </s>, <unk>
    table = SynonymTable.build(
        {(word,): [(word + 1,)] for word in range(first, first + words)}, np.ones(first + words + 1, np.bool_)
    )
    known = hash_file(data / "dict.txt")
    save_synonyms(data / "synonyms.npz", table, vocabulary_hash=known, source="made up", source_hash="none")
    return data


def flags_of(config: dict[str, Any]) -> list[str]:
    """The sections of a recipe as a command line."""
    renamed = {**config["model"], **config["criterion"], **config["task"]}
    flags = [f"--{name}" for name in config.get("common", {})]
    flags += ["--arch", config["model"]["_name"], "--criterion", config["criterion"]["_name"]]
    for name, value in renamed.items():
        if name != "_name" and value is not False:
            flags += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return flags


def trainer_of(data: Path, config: dict[str, Any], *flags: str, world_size: int = 1) -> tuple[Trainer, Any]:
    return build(data, *COMMON, *flags_of(config), *flags, world_size=world_size)


def recipe_of(config: dict[str, Any], vocabulary: int) -> Recipe:
    task = {"tokens_per_sample": LENGTH, "sample_break_mode": "eos", **config["task"]}
    common = {"cpu": True, **config.get("common", {})}
    with_settings = {**config, "task": task, "common": common, "distributed_training": {"ddp_backend": "legacy_ddp"}}
    return Recipe(with_settings, vocabulary, LENGTH)


def batch_of(dataset: Any, texts: int, first: int = 0) -> dict[str, Any]:
    return dataset.collater([dataset[first + index] for index in range(texts)])


def live_bytes() -> int:
    """Bytes of all tensors, each storage once."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and not thing.is_meta:
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def peak_bytes(trainer: Trainer, batch: dict[str, Any]) -> float:
    """The most bytes that are held during an update, its batch included."""
    trainer.zero_grad()  # the profiler does not see when earlier memory is freed
    before = live_bytes()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        trainer.train_step([batch])
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return before + max(held)
