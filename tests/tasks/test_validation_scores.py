"""--eval-sts and --eval-retrieval: the scores of encoding by hand, with one worker or two; files are checked at the start."""

import json
import logging
import math
import re
import shutil
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from scipy.stats import spearmanr

from fairseq_clear.patches import stopping
from fairseq_clear.tasks import validation_scores
from tests.conftest import sentences
from tests.faults.commands import NT_XENT, train_and_read
from tests.training import build, refuses

TEXTS = [line for line in sentences(60, 9) if line]
FLAGS = {"sts": "--eval-sts", "retrieval": "--eval-retrieval"}
METRICS = ("sts_spearman", "retrieval_mrr")


@pytest.fixture(scope="module")
def folder(data_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder with its tokenizer recorded."""
    home = Path(shutil.copytree(data_bin, tmp_path_factory.mktemp("recorded") / "bin"))
    for end in ("bin", "idx"):
        shutil.copyfile(home / f"train.{end}", home / f"valid1.{end}")
    (home / "clear.json").write_text(json.dumps({"format": 1, "tokenizer": {"kind": "none", "files": []}}))
    return home


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """17 scored pairs, some texts in several; 29 queries, whose passages share words; one answers two, six are also queries."""
    rng, home = np.random.default_rng(0), tmp_path_factory.mktemp("pairs")
    scored = [f"{TEXTS[i]}\t{TEXTS[(7 * i + 3) % 20]}\t{rng.uniform(0, 5):.2f}" for i in range(17)]
    passages = [f"{' '.join(TEXTS[i].split()[:2])} {TEXTS[i + 25]}" for i in range(22)]
    searched = [f"{TEXTS[i]}\t{passage}" for i, passage in enumerate(passages)] + [f"{TEXTS[50]}\t{passages[0]}"]
    searched += [f"{TEXTS[40 + n]}\t{TEXTS[n]}" for n in range(6)]
    for name, lines in (("sts", scored), ("retrieval", searched)):
        (home / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return {name: home / f"{name}.tsv" for name in FLAGS}


def score(rank: int, folder: str, kind: str, file: str, size: int = 1) -> tuple[float, bool]:
    trainer, _ = build(folder, FLAGS[kind], file, "--dropout", "0.3", world_size=size)
    trainer.get_model().train()
    trainer.begin_valid_epoch(1)
    return getattr(trainer.task, kind).score, trainer.get_model().training


def by_hand(folder: Path, kind: str, file: Path) -> float:
    trainer, _ = build(folder)
    model, known = trainer.get_model().eval(), trainer.task.dictionary

    def vector(text: str) -> torch.Tensor:
        ids = [known.bos(), *(known.index(word) for word in text.split()), known.eos()]
        with torch.no_grad():
            return model.embed(torch.tensor([ids]))[0]

    def cosine(one: str, other: str) -> float:
        return torch.cosine_similarity(vector(one), vector(other), dim=0).item()

    rows = [line.split("\t") for line in file.read_text().splitlines()]
    if kind == "sts":
        return 100 * spearmanr([cosine(*row[:2]) for row in rows], [float(row[2]) for row in rows]).statistic
    corpus, reciprocal = {passage for _, passage in rows}, []
    for query, passage in rows:
        rank = 1 + sum(cosine(query, other) > cosine(query, passage) for other in corpus - {passage, query})
        reciprocal.append(1 / rank if rank <= 10 else 0)
    return 100 * float(np.mean(reciprocal))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FLAGS)
def test_the_score_is_that_of_encoding_by_hand(kind, folder, pairs, ranks, monkeypatch) -> None:
    arguments, expected = (str(folder), kind, str(pairs[kind])), by_hand(folder, kind, pairs[kind])
    found, was_training = score(0, *arguments)
    assert was_training and found == pytest.approx(expected, abs=1e-3)
    assert kind == "sts" or 10 < found < 95
    of_two: Any = ranks(2, score, *arguments, 2)
    assert [found for found, _ in of_two] == [pytest.approx(expected, abs=1e-3)] * 2
    stock = validation_scores.encode_texts
    shifts = count(1)  # queries and passages are encoded one after the other, in the same order

    def of_others(*args: Any, **more: Any) -> Any:
        return np.roll(stock(*args, **more)[0], next(shifts), axis=0), None

    monkeypatch.setattr(validation_scores, "encode_texts", of_others)
    assert score(0, *arguments)[0] != pytest.approx(expected, abs=1e-1), "the negative control: vectors of other texts"


@pytest.mark.parametrize(("kind", "broken"), [("sts", "a\tb\tthree\n"), ("retrieval", "a\tb\tc\n")])
def test_mistakes_are_met_at_the_start(kind, broken, data_bin, folder, pairs, tmp_path, caplog) -> None:
    (tmp_path / "broken.tsv").write_text(broken)
    cases = {"nowhere.tsv": "nowhere.tsv", "broken.tsv": "broken.tsv:1"} | (
        {"": f"{tmp_path}: has no STSBenchmark"} if kind == "sts" else {}
    )
    for name, said in cases.items():
        refuses(caplog, said, folder, FLAGS[kind], str(tmp_path / name))
    refuses(caplog, "clear.json", data_bin, FLAGS[kind], str(pairs[kind]))


def test_a_folder_is_scored_on_its_dev_split(folder: Path, tmp_path: Path) -> None:
    """Otherwise the test split would choose the checkpoint."""
    (tmp_path / "STSBenchmark").mkdir()
    for split, count_of in (("dev", 5), ("test", 4)):
        rows = "".join(f"g\tf\ty\t{n}\t{n % 3}\t{split} {n}\tother\n" for n in range(count_of))
        (tmp_path / "STSBenchmark" / f"sts-{split}.csv").write_text(rows)
    validation = validation_scores.StsValidation(str(tmp_path), str(folder))
    assert "dev 4" in validation.data.texts() and "test 3" not in validation.data.texts()


def test_a_collapsed_model_scores_0(folder: Path, pairs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def of_ones(*given: Any, **_: Any) -> Any:
        return np.ones((len(given[3]), 4), np.float32), None

    monkeypatch.setattr(validation_scores, "encode_texts", of_ones)
    assert score(0, str(folder), "sts", str(pairs["sts"]))[0] == 0


def test_memory_that_runs_out_is_one_line(folder: Path, pairs: dict[str, Path], monkeypatch, caplog) -> None:
    def fail(error: Exception) -> None:
        def encode(*_: Any, **__: Any) -> Any:
            raise error

        monkeypatch.setattr(validation_scores, "encode_texts", encode)

    fail(torch.OutOfMemoryError("CUDA out of memory."))
    for kind, flag in FLAGS.items():
        with pytest.raises(SystemExit, match="2"):
            score(0, str(folder), kind, str(pairs[kind]))
        assert caplog.records[-1].message.startswith(f"{flag}: out of memory")
    fail(RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        score(0, str(folder), "sts", str(pairs["sts"]))


@pytest.mark.slow
def test_it_chooses_the_checkpoint(folder: Path, pairs: dict[str, Path], tmp_path: Path) -> None:
    code, text = train_and_read(
        *(folder, tmp_path / "run", "--max-update", "9", "--validate-interval-updates", "3", "--log-format", "json"),
        *("--best-checkpoint-metric", "retrieval_mrr", "--maximize-best-checkpoint-metric", "--patience", "5"),
        *(word for name, flag in FLAGS.items() for word in (flag, str(pairs[name]))),
        *("--valid-subset", "valid,valid1", "--log-interval", "1"),
        recipe=NT_XENT,
    )
    assert code == 0, text[-3000:]
    lines = [json.loads(line) for line in re.findall(r"\| valid1? \| (\{.*\})", text)]
    names = [f"{split}_{metric}" for split in ("valid", "valid1") for metric in METRICS]
    found = {name: [float(line[name]) for line in lines if name in line] for name in names}
    # in the stats of both subsets, and not in those of training
    assert all(len(values) == 3 for values in found.values())
    trained = [line for line in text.splitlines() if "| train" in line]
    assert len(trained) > 2 and not any(metric in line for line in trained for metric in METRICS)
    assert all(found[f"valid_{metric}"] == found[f"valid1_{metric}"] for metric in METRICS)
    best = torch.load(tmp_path / "run" / "checkpoint_best.pt", weights_only=False)["extra_state"]["best"]
    assert best == pytest.approx(max(found["valid_retrieval_mrr"]), abs=0.01)


@pytest.mark.parametrize(
    ("scores", "stops_at"),
    [
        ([math.nan, 1.0, 2.0, 3.0, 4.0], None),
        ([1.0, math.nan, math.nan], 2),
        ([math.nan, math.nan, 5.0], 1),
        ([2.0, 1.0, 3.0, 2.0, 3.0], 4),
    ],
)
def test_patience_counts_from_the_best_score_that_is_a_number(scores, stops_at, monkeypatch) -> None:
    for sign, is_maximum in ((1, True), (-1, False)):
        monkeypatch.setattr(stopping, "early_stopping", {})
        settings = {"patience": 2, "maximize_best_checkpoint_metric": is_maximum, "best_checkpoint_metric": "loss"}
        cfg = SimpleNamespace(checkpoint=SimpleNamespace(**settings))
        stopped = []
        for update, score in enumerate(scores):
            monkeypatch.setattr(stopping._state, "update", update)
            stopped.append(stopping.should_stop_early(cfg, sign * score))
        assert stopped.index(True) == stops_at if stops_at is not None else not any(stopped)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, "run/checkpoint_last-a.pt is saved; the same command resumes"),
        ({"restore_file": "b.pt", "reset_meters": True}, "command, without --reset-meters and --restore-file, resumes"),
        ({"no_save": True}, "checkpoint_last.pt is not saved"),
    ],
)
def test_a_stopped_run_says_how_to_go_on(flags, said, monkeypatch, caplog) -> None:
    monkeypatch.setattr(stopping.checkpoint_utils, "save_checkpoint", lambda *_: None)
    settings = dict.fromkeys((*stopping.RESETS, "no_save", "no_last_checkpoints"), False)
    settings = OmegaConf.create({**settings, "save_dir": "run", "restore_file": stopping.LAST, **flags})
    trainer = SimpleNamespace(checkpoint_suffix="-a", get_num_updates=lambda: 3)
    with caplog.at_level(logging.INFO), pytest.raises(SystemExit, match="75"):
        stopping._save_and_leave(75, SimpleNamespace(checkpoint=settings), trainer, None)
    assert said in caplog.text
