"""--eval-sts: the same number as encoding and correlating by hand, whoever shares the work; checked at the start."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from fairseq_clear.tasks import sts_validation
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.conftest import Ranks, run, sentences, tool
from tests.training import build

TEXTS = [line for line in sentences(40, 9) if line]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """17 pairs, some texts in several of them."""
    rng = np.random.default_rng(0)
    lines = [f"{TEXTS[i]}\t{TEXTS[(7 * i + 3) % 20]}\t{rng.uniform(0, 5):.2f}" for i in range(17)]
    path = tmp_path_factory.mktemp("sts") / "pairs.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(data_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder with its tokenizer recorded."""
    home = tmp_path_factory.mktemp("recorded")
    for file in data_bin.iterdir():
        (home / file.name).write_bytes(file.read_bytes())
    (home / "clear.json").write_text(json.dumps({"format": 1, "tokenizer": {"kind": "none", "files": []}}))
    return home


def score(rank: int, folder: str, pairs: str, size: int) -> tuple[float, bool]:
    trainer, _ = build(folder, "--eval-sts", pairs, "--dropout", "0.3", world_size=size)
    trainer.get_model().train()
    trainer.begin_valid_epoch(1)
    return trainer.task.sts.score, trainer.get_model().training


def by_hand(folder: Path, pairs: Path) -> float:
    trainer, _ = build(folder)
    model, known = trainer.get_model().eval(), trainer.task.dictionary
    first, second, gold = zip(*(line.split("\t") for line in pairs.read_text().splitlines()), strict=True)

    def vector(text: str) -> torch.Tensor:
        ids = [known.bos(), *(known.index(word) for word in text.split()), known.eos()]
        with torch.no_grad():
            return model.embed(torch.tensor([ids]))[0]

    cosines = [torch.cosine_similarity(vector(a), vector(b), dim=0).item() for a, b in zip(first, second, strict=True)]
    return 100 * spearmanr(cosines, [float(g) for g in gold]).statistic


def test_the_score_is_that_of_encoding_by_hand(folder: Path, pairs: Path) -> None:
    found, was_training = score(0, str(folder), str(pairs), 1)
    assert was_training
    assert found == pytest.approx(by_hand(folder, pairs), abs=1e-3)


@pytest.mark.slow
def test_workers_share_the_work(folder: Path, pairs: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, _ = score(0, str(folder), str(pairs), 1)
    results: Any = ranks(2, score, str(folder), str(pairs), 2)
    assert [found for found, _ in results] == [pytest.approx(alone, abs=1e-3)] * 2


def test_order_of_texts_matters_to_the_score(folder: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = sts_validation.encode_texts
    monkeypatch.setattr(
        sts_validation, "encode_texts", lambda *args: (np.roll(stock(*args)[0], 1, axis=0), stock(*args)[1])
    )
    assert score(0, str(folder), str(pairs), 1)[0] != pytest.approx(by_hand(folder, pairs), abs=1e-1)


def test_mistakes_are_met_at_the_start(data_bin: Path, folder: Path, pairs: Path, tmp_path: Path, caplog: Any) -> None:
    broken = tmp_path / "broken.tsv"
    broken.write_text("a\tb\tthree\n")
    for data, source, message in (
        (folder, tmp_path / "nowhere.tsv", "nowhere.tsv"),
        (folder, broken, "broken.tsv:1"),
        (folder, tmp_path, "STSBenchmark"),
        (data_bin, pairs, "clear.json"),
    ):
        caplog.clear()
        with pytest.raises(SystemExit) as stop:
            build(data, "--eval-sts", str(source))
        assert stop.value.code == 2
        assert message in caplog.text


def test_a_collapsed_model_scores_0(folder: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sts_validation,
        "encode_texts",
        lambda model, known, tokenizer, texts: (np.ones((len(texts), 4), np.float32), None),
    )
    assert score(0, str(folder), str(pairs), 1)[0] == 0


@pytest.mark.slow
def test_it_chooses_the_checkpoint(folder: Path, pairs: Path, tmp_path: Path) -> None:
    assert WhitespaceTokenizer().encode("a b") == ["a", "b"]
    (tmp_path / "second").mkdir()
    result = run(
        *(*tool("train"), folder, "--user-dir", "fairseq_clear", "--task", "clear_lm", "--arch", "clear_roberta_tiny"),
        *("--criterion", "clear_nt_xent", "--sample-break-mode", "eos", "--tokens-per-sample", "32", "--cpu"),
        *("--optimizer", "adam", "--lr", "1e-3", "--batch-size", "8", "--max-update", "9", "--log-format", "json"),
        *("--eval-sts", pairs, "--best-checkpoint-metric", "sts_spearman", "--maximize-best-checkpoint-metric"),
        *("--validate-interval-updates", "3", "--save-interval-updates", "3", "--patience", "5"),
        *("--valid-subset", "valid,train", "--save-dir", tmp_path / "run"),
    )
    log = result.stdout + result.stderr
    scores = [json.loads(line) for line in re.findall(r"\| (?:valid|train) \| (\{.*\})", log)]
    valid = [float(line["valid_sts_spearman"]) for line in scores if "valid_sts_spearman" in line]
    train = [float(line["train_sts_spearman"]) for line in scores if "train_sts_spearman" in line]
    # in the stats of both subsets, and not in those of training
    assert len(valid) == len(train) == 3
    assert valid == train
    best = torch.load(tmp_path / "run" / "checkpoint_best.pt", weights_only=False)["extra_state"]["best"]
    assert best == pytest.approx(max(valid), abs=0.01)
