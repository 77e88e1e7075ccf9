"""Image-caption retrieval: ranks against loops, learning on data with and without a signal, malformed data."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.captions import Ranker, evaluate_captions, read_captions, retrieval

SMALL = Ranker(dimension=32, batch_size=32, max_epoch=25, patience=25)
RNG = np.random.default_rng(0)


class Codes:
    """Texts are numbers separated by spaces, and are their own vectors."""

    def encode(self, sentences: list[str], batch_size: int = 32) -> np.ndarray:
        return np.array([[float(number) for number in text.split()] for text in sentences], np.float32)


def write(folder: Path, *, related: bool, images: int = 60) -> Path:
    """Captions are noisy copies of what their image shows, or, unrelated, of something else."""
    folder.mkdir(exist_ok=True)
    mixing = RNG.normal(size=(4, 10))
    for split in ("train", "dev", "test"):
        meaning = RNG.normal(size=(images, 4))
        np.save(folder / f"{split}.npy", (meaning @ mixing).astype(np.float32))
        shown = meaning if related else RNG.normal(size=(images, 4))
        texts = [shown[i] + 0.1 * RNG.normal(size=4) for i in range(images) for _ in range(5)]
        (folder / f"{split}.txt").write_text("\n".join(" ".join(f"{x:.4f}" for x in text) for text in texts) + "\n")
    return folder


def by_hand(images: np.ndarray, captions: np.ndarray) -> tuple[list[int], list[int]]:
    """Rank of each image's best own caption, and of each caption's image."""
    per = len(captions) // len(images)
    scores = images @ captions.T
    first = [min(sorted(-scores[i]).index(-scores[i, i * per + c]) for c in range(per)) for i in range(len(images))]
    second = [sorted(-scores[:, c]).index(-scores[c // per, c]) for c in range(len(captions))]
    return first, second


def test_ranks_are_those_of_sorting() -> None:
    images, captions = RNG.normal(size=(12, 5)), RNG.normal(size=(36, 5))
    found = retrieval(torch.tensor(images), torch.tensor(captions), fold=1000)
    for measured, ranks in zip(found, by_hand(images, captions), strict=True):
        for k in (1, 5, 10):
            assert measured[f"R@{k}"] == pytest.approx(100 * np.mean([rank < k for rank in ranks]), abs=1e-4)
        assert measured["median rank"] == np.median(ranks) + 1
    halves = [retrieval(torch.tensor(images[h]), torch.tensor(captions[3 * h.start : 3 * h.stop]), fold=6)
              for h in (slice(0, 6), slice(6, 12))]  # fmt: skip
    folded = retrieval(torch.tensor(images), torch.tensor(captions), fold=6)
    assert folded[1]["R@1"] == pytest.approx(np.mean([half[1]["R@1"] for half in halves]), abs=1e-4)


@pytest.mark.slow
def test_what_is_related_is_found_and_what_is_not_is_not(tmp_path: Path) -> None:
    related = evaluate_captions(Codes(), read_captions(write(tmp_path / "related", related=True)), settings=SMALL)
    again = evaluate_captions(Codes(), read_captions(tmp_path / "related"), settings=SMALL)
    assert related == again
    chance = evaluate_captions(Codes(), read_captions(write(tmp_path / "unrelated", related=False)), settings=SMALL)
    assert related.captions["R@5"] > 60 > chance.captions["R@5"]
    assert related.images["median rank"] < 8 < chance.images["median rank"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "data", related=True, images=10)
    flags = ["captions", "--data", str(data), "--encoder", f"{__name__}:Codes", "--max-epoch", "1", "--seeds", "1", "2"]
    assert main([*flags, "--output", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["rows"][0]["deviations"].keys() == report["rows"][0]["scores"].keys()
    assert "text>image R@10" in capsys.readouterr().out
    assert main([*flags, "--max-epoch", "0"]) == 2
    assert main([*flags, "1"]) == 2 and "--seeds 1 2 1: give one or more different" in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["missing", "uneven", "pickle", "shape", "nan"])
def test_malformed_data_are_named(broken: str, tmp_path: Path) -> None:
    data = write(tmp_path / "data", related=True, images=4)
    path = data / "dev.npy"
    if broken == "missing":
        path.unlink()
    elif broken == "uneven":
        (data / "dev.txt").write_text("0 0 0 0\n" * 7)
    elif broken == "pickle":
        np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    else:
        np.save(path, np.zeros(4) if broken == "shape" else np.full((4, 10), np.nan))
    with pytest.raises(UserError, match="dev"):
        read_captions(data)
