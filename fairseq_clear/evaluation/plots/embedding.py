"""Draws a t-SNE map of the highest and the lowest scored pairs of an STS task (Self-Guided, figure 5)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.evaluation.plots.style import COLOURS, MARKERS, WIDTH, check_count, style
from fairseq_clear.evaluation.sts_data import StsData
from fairseq_clear.libraries import import_library

__all__ = ["PairMap", "choose_pairs", "draw_embedding", "map_pairs"]

_PERPLEXITY = 15.0


@dataclass(frozen=True)
class PairMap:
    """Positions of pairs, (2 K, 2, 2): the K highest scored pairs, then the K lowest; first and second text; x and y."""

    label: str
    points: npt.NDArray[np.float64]


def choose_pairs(data: StsData, count: int, seed: int = 1) -> tuple[list[tuple[str, str]], tuple[float, float]]:
    """Choose the ``count`` highest and the ``count`` lowest scored pairs, at random among equal scores.

    Repeated pairs, and pairs of a text with itself, are left out, because their points would coincide.

    Returns:
        The pairs, the highest first; and the lowest score of the high half and the highest score of the low half.

    Raises:
        UserError: too few pairs.
    """
    scored = {
        (first, second): float(score)
        for pairs in data.subsets.values()
        for first, second, score in zip(pairs.first, pairs.second, pairs.scores, strict=True)
        if first != second
    }
    if not 2 <= count <= len(scored) // 2:
        raise UserError(f"--pairs {count}: {data.name} has {len(scored)} different pairs; give 2 to {len(scored) // 2}")
    pairs = list(scored)
    shuffled = np.random.default_rng(seed).permutation(len(pairs))
    order = sorted(shuffled, key=lambda index: -scored[pairs[index]])  # stable, so equal scores stay in random order
    chosen = [pairs[index] for index in [*order[:count], *order[-count:]]]
    return chosen, (scored[pairs[order[count - 1]]], scored[pairs[order[-count]]])


def map_pairs(encoder: CachedEncoder, pairs: Sequence[tuple[str, str]], *, seed: int = 1) -> PairMap:
    """Map vectors, scaled to length 1, to the plane by scikit-learn's t-SNE, initialised with principal components.

    Args:
        encoder: any encoder.
        pairs: from ``choose_pairs``.
        seed: of t-SNE.
    """
    texts = [text for pair in pairs for text in pair]
    vectors = encoder.encode(texts).astype(np.float64)  # (4 K, D)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    perplexity = min(_PERPLEXITY, (len(texts) - 1) / 3)
    kind = import_library("sklearn.manifold", "eval").TSNE  # takes a second to import
    points = kind(init="pca", perplexity=perplexity, random_state=seed).fit_transform(vectors)
    return PairMap(encoder.name, points.reshape(len(pairs), 2, 2))


def draw_embedding(maps: Sequence[PairMap], scores: tuple[float, float]) -> Figure:
    """Draw a panel for each encoder; a line joins the two texts of a pair.

    Args:
        maps: up to four maps.
        scores: the lowest of the high half, the highest of the low half, for the legend.

    Raises:
        UserError: too many encoders.
    """
    check_count(maps, "encoders", most=4)
    with style():
        figure = Figure(figsize=(WIDTH, 2.3 * len(maps) + 0.4))
        axes = figure.subplots(len(maps), 1, squeeze=False)[:, 0]
        for axis, one in zip(axes, maps, strict=True):
            _draw_map(axis, one)
        names = (f"pairs scored {scores[0]:g} or more", f"pairs scored {scores[1]:g} or less")
        handles = [
            Line2D([], [], color=colour, marker=marker, label=name, linewidth=0.8)
            for colour, marker, name in zip(COLOURS, MARKERS, names, strict=False)
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=1)
    return figure


def _draw_map(axis: Axes, one: PairMap) -> None:
    half = len(one.points) // 2
    for points, colour, marker in zip((one.points[:half], one.points[half:]), COLOURS, MARKERS, strict=False):
        for pair in points:
            axis.plot(pair[:, 0], pair[:, 1], "-", color=colour, linewidth=0.6, alpha=0.6)
        flat = points.reshape(-1, 2)
        axis.plot(flat[:, 0], flat[:, 1], marker, color=colour)
    axis.set_title(one.label)
    axis.set_xticks([])
    axis.set_yticks([])
    for side in axis.spines.values():
        side.set_visible(True)
