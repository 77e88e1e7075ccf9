"""SentEval's image-caption retrieval, on precomputed image features (Conneau and Kiela 2018, arXiv:1803.05449)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.classifiers import torch_seed
from fairseq_clear.evaluation.encoders import CachedEncoder, Encoder
from fairseq_clear.files import read_text_lines

__all__ = ["CaptionData", "CaptionScores", "Ranker", "evaluate_captions", "read_captions", "retrieval"]

SPLITS = ("train", "dev", "test")
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CaptionData:
    """One split: features (I, F) of images, and as many captions for each image, those of image 0 first."""

    features: Floats
    captions: list[str]


@dataclass(frozen=True)
class Ranker:
    """Settings of the ranking model; the defaults are SentEval's."""

    dimension: int = 1000  # dimension of the space into which images and captions are projected
    margin: float = 0.2  # difference by which a right pair must score above a wrong one
    contrasts: int = 30  # captions (with their images) drawn per batch to make wrong pairs
    batch_size: int = 128  # captions per update
    learning_rate: float = 1e-3  # learning rate of Adam
    max_epoch: int = 200  # maximum number of epochs
    patience: int = 5  # epochs without better dev recalls after which training stops
    fold: int = 1000  # images among which each caption is ranked in evaluation


@dataclass(frozen=True)
class CaptionScores:
    """Recall at 1, 5, 10 (x100) and median rank: of ``captions`` found for an image, and of ``images`` found for a caption."""

    captions: Mapping[str, float]
    images: Mapping[str, float]
    epochs: int


def read_captions(folder: str | Path) -> dict[str, CaptionData]:
    """Read the splits ``train``, ``dev`` and ``test``: NAME.npy has features (I, F), NAME.txt the captions, image by image.

    SentEval's own files are pickles. They are not read, because loading a pickle can run code.

    Raises:
        UserError: a missing or malformed file, or a number of captions that is not a multiple of the number of images.
    """
    found = {}
    for split in SPLITS:
        path = Path(folder) / f"{split}.npy"
        try:
            features = np.load(path, allow_pickle=False)
        except FileNotFoundError:
            raise UserError(
                f"{path}: no such file; give a folder with {', '.join(f'{s}.npy, {s}.txt' for s in SPLITS)}"
            ) from None
        except (ValueError, OSError, EOFError) as error:
            raise UserError(f"{path}: cannot be read as an array of numbers ({error})") from None
        captions = read_text_lines(Path(folder) / f"{split}.txt")
        if features.ndim != 2 or not np.issubdtype(features.dtype, np.number) or not np.isfinite(features).all():
            raise UserError(
                f"{path}: has shape {features.shape}, {features.dtype}; give finite numbers, one row per image"
            )
        if not len(features) or not captions or len(captions) % len(features):
            raise UserError(
                f"{split}.txt in {folder}: {len(captions)} captions are not a multiple of {len(features)} images"
            )
        found[split] = CaptionData(features.astype(np.float32), captions)
    return found


def evaluate_captions(
    encoder: Encoder, data: Mapping[str, CaptionData], *, settings: Ranker | None = None, seed: int = 1111
) -> CaptionScores:
    """Train a ranking model on ``train``, stop early on ``dev``, and score ``test`` in folds of a thousand images.

    Args:
        settings: settings of the ranking model (default: SentEval's).
        seed: seed of the model's weights, the order of the rows and the wrong pairs.
    """
    cached, used = CachedEncoder.of(encoder), settings or Ranker()
    cached.embed([text for part in data.values() for text in part.captions])
    vectors = {split: torch.from_numpy(cached.encode(part.captions)) for split, part in data.items()}
    features = {split: torch.from_numpy(part.features) for split, part in data.items()}
    with torch_seed(seed):
        model = _Projections(features["train"].shape[1], vectors["train"].shape[1], used.dimension)
        epochs = _train(model, features, vectors, used)
    with torch.no_grad():
        captions, images = retrieval(*model(features["test"], vectors["test"]), fold=used.fold)
    return CaptionScores(captions, images, epochs)


def retrieval(images: Tensor, captions: Tensor, *, fold: int) -> tuple[dict[str, float], dict[str, float]]:
    """Recalls and median rank of captions found by image, and of images found by caption; means over folds of images.

    Args:
        images: (I, D) unit norm.
        captions: (I * P, D) unit norm, those of image 0 first.
        fold: number of images of a fold; images left over at the end are not used.
    """
    per_image = len(captions) // len(images)
    size = min(fold, len(images))
    found: list[list[dict[str, float]]] = [[], []]
    for begin in range(0, len(images) - size + 1, size):
        chosen = images[begin : begin + size]
        texts = captions[begin * per_image : (begin + size) * per_image]
        scores = chosen @ texts.T  # (I, I * P)
        own = torch.arange(size).repeat_interleave(per_image)  # (I * P,) image of each caption
        is_own = own.unsqueeze(0) == torch.arange(size).unsqueeze(1)
        best = scores.masked_fill(~is_own, -torch.inf).amax(dim=1, keepdim=True)
        found[0].append(_recalls(((scores > best) & ~is_own).sum(dim=1)))
        right = scores.gather(0, own.unsqueeze(0))  # (1, I * P)
        found[1].append(_recalls((scores > right).sum(dim=0)))
    means = [{name: float(np.mean([part[name] for part in parts])) for name in parts[0]} for parts in found]
    return means[0], means[1]


def _recalls(above: Tensor) -> dict[str, float]:
    """Recalls and median rank from the number of wrong candidates ranked above the right one."""
    recalls = {f"R@{k}": 100 * float((above < k).float().mean()) for k in (1, 5, 10)}
    return {**recalls, "median rank": float(np.median(above.numpy())) + 1}


class _Projections(nn.Module):
    """Projects images and sentences into one space, at unit norm."""

    def __init__(self, image_dim: int, text_dim: int, dimension: int) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(image_dim, dimension), nn.Linear(text_dim, dimension)

    def forward(self, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.image(images), dim=-1), F.normalize(self.text(texts), dim=-1)


def _train(model: _Projections, features: Mapping[str, Tensor], vectors: Mapping[str, Tensor], settings: Ranker) -> int:
    """Train until the dev recalls have not risen for ``patience`` epochs; keep the best weights; return the epochs trained."""
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    best, best_state, since, epoch = -1.0, model.state_dict(), 0, 0
    images = len(features["train"])
    owner = torch.arange(images).repeat_interleave(len(vectors["train"]) // images)
    while epoch < settings.max_epoch and since < settings.patience:
        epoch += 1
        for rows in torch.randperm(len(vectors["train"])).split(settings.batch_size):
            loss = _ranking_loss(model, features["train"], vectors["train"], owner, rows, settings)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            parts = retrieval(*model(features["dev"], vectors["dev"]), fold=settings.fold)
        score = sum(value for part in parts for name, value in part.items() if name.startswith("R@"))
        since += 1
        if score > best:
            best, since = score, 0
            best_state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(best_state)
    return epoch


def _ranking_loss(
    model: _Projections, features: Tensor, vectors: Tensor, owner: Tensor, rows: Tensor, settings: Ranker
) -> Tensor:
    """Hinge loss: a right pair must score ``margin`` above pairs with a wrong caption and with a wrong image."""
    contrast = torch.randint(len(vectors), (settings.contrasts,))
    images, texts = model(features[owner[rows]], vectors[rows])  # (B, D) each
    other_images, other_texts = model(features[owner[contrast]], vectors[contrast])  # (C, D) each
    right = (images * texts).sum(dim=1, keepdim=True)  # (B, 1)
    is_wrong = owner[rows].unsqueeze(1) != owner[contrast].unsqueeze(0)  # (B, C)
    by_image = (settings.margin - right + images @ other_texts.T).clamp(min=0)
    by_text = (settings.margin - right + texts @ other_images.T).clamp(min=0)
    return ((by_image + by_text) * is_wrong).sum()
