"""--eval-retrieval: the same number as encoding and sorting by hand, whoever shares the work; checked at the start."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_clear.tasks import sts_validation
from tests.conftest import Ranks, run, sentences, tool
from tests.tasks.test_sts_validation import folder as folder
from tests.training import build

TEXTS = [line for line in sentences(60, 9) if line]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 queries; a passage shares its first words, one passage answers two queries."""
    lines = [f"{TEXTS[i]}\t{' '.join(TEXTS[i].split()[:2])} {TEXTS[i + 25]}" for i in range(22)]
    lines.append(f"{TEXTS[50]}\t{lines[0].split(chr(9))[1]}")
    path = tmp_path_factory.mktemp("retrieval") / "pairs.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


def score(rank: int, folder: str, pairs: str, size: int) -> tuple[float, bool]:
    trainer, _ = build(folder, "--eval-retrieval", pairs, "--dropout", "0.3", world_size=size)
    trainer.get_model().train()
    trainer.begin_valid_epoch(1)
    return trainer.task.retrieval.score, trainer.get_model().training


def by_hand(folder: Path, pairs: Path) -> float:
    trainer, _ = build(folder)
    model, known = trainer.get_model().eval(), trainer.task.dictionary
    queries, passages = zip(*(line.split("\t") for line in pairs.read_text().splitlines()), strict=True)

    def vector(text: str) -> torch.Tensor:
        ids = [known.bos(), *(known.index(word) for word in text.split()), known.eos()]
        with torch.no_grad():
            return model.embed(torch.tensor([ids]))[0]

    corpus = {text: vector(text) for text in passages}
    reciprocal = []
    for query, passage in zip(queries, passages, strict=True):
        cosines = {text: torch.cosine_similarity(vector(query), other, dim=0).item() for text, other in corpus.items()}
        rank = 1 + sum(cosine > cosines[passage] for cosine in cosines.values())
        reciprocal.append(1 / rank if rank <= 10 else 0)
    return 100 * float(np.mean(reciprocal))


def test_the_score_is_that_of_ranking_by_hand(folder: Path, pairs: Path) -> None:
    found, was_training = score(0, str(folder), str(pairs), 1)
    assert was_training and 10 < found < 95
    assert found == pytest.approx(by_hand(folder, pairs), abs=1e-3)


@pytest.mark.slow
def test_workers_share_the_work(folder: Path, pairs: Path, ranks: Ranks) -> None:
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
    broken.write_text("a\tb\tc\n")
    for data, source, message in (
        (folder, tmp_path / "nowhere.tsv", "nowhere.tsv"),
        (folder, broken, "broken.tsv:1"),
        (data_bin, pairs, "clear.json"),
    ):
        caplog.clear()
        with pytest.raises(SystemExit) as stop:
            build(data, "--eval-retrieval", str(source))
        assert stop.value.code == 2
        assert message in caplog.text


@pytest.mark.slow
def test_it_chooses_the_checkpoint(folder: Path, pairs: Path, tmp_path: Path) -> None:
    sts = tmp_path / "sts.tsv"
    sts.write_text("".join(f"{TEXTS[i]}\t{TEXTS[i + 1]}\t{i % 5}\n" for i in range(9)))
    result = run(
        *(*tool("train"), folder, "--user-dir", "fairseq_clear", "--task", "clear_lm", "--arch", "clear_roberta_tiny"),
        *("--criterion", "clear_nt_xent", "--sample-break-mode", "eos", "--tokens-per-sample", "32", "--cpu"),
        *("--optimizer", "adam", "--lr", "1e-3", "--batch-size", "8", "--max-update", "9", "--log-format", "json"),
        *("--eval-retrieval", pairs, "--best-checkpoint-metric", "retrieval_mrr", "--maximize-best-checkpoint-metric"),
        *("--validate-interval-updates", "3", "--save-interval-updates", "3", "--patience", "5", "--eval-sts", sts),
        *("--valid-subset", "valid,train", "--save-dir", tmp_path / "run"),
    )
    log = result.stdout + result.stderr
    scores = [json.loads(line) for line in re.findall(r"\| (?:valid|train) \| (\{.*\})", log)]
    valid = [float(line["valid_retrieval_mrr"]) for line in scores if "valid_retrieval_mrr" in line]
    train = [float(line["train_retrieval_mrr"]) for line in scores if "train_retrieval_mrr" in line]
    # in the stats of both subsets, and not in those of training
    assert len(valid) == len(train) == sum("valid_sts_spearman" in line for line in scores) == 3
    assert valid == train
    best = torch.load(tmp_path / "run" / "checkpoint_best.pt", weights_only=False)["extra_state"]["best"]
    assert best == pytest.approx(max(valid), abs=0.01)
