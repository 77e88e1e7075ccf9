"""Pictures of encoders on an STS task: scores by layer and pooling, and a map of the highest and lowest scored pairs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fairseq_clear.data.batch import pad_rows
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.evaluation.plotting import COLOURS, DASHES, MARKERS, WIDTH, check_count, style
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.evaluation.sts import spearman
from fairseq_clear.evaluation.sts_data import StsData
from fairseq_clear.libraries import import_library
from fairseq_clear.models.encoding import evaluating, read_tokens
from fairseq_clear.modules.pooling import pool

__all__ = ["LayerScores", "PairMap", "choose_pairs", "draw_embedding", "draw_layers", "map_pairs", "score_layers"]

LAYER_POOLINGS = ("cls", "mean", "max")  # those that read one layer
_PERPLEXITY = 15.0
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LayerScores:
    """Spearman's correlation x100 of one encoder: pooling -> (layers + 1,), the embeddings first.

    NaN if all pairs have the same cosine, as with the embedding of ``<s>``.
    """

    label: str
    scores: dict[str, Doubles]


def score_layers(
    encoder: SentenceEncoder,
    data: StsData,
    poolings: Sequence[str] = LAYER_POOLINGS,
    *,
    label: str = "",
    batch_size: int = 32,
    on_batch: Callable[[int], object] | None = None,
) -> LayerScores:
    """Score every layer and pooling (Self-Guided, figure 1) in one pass over the pairs; only their cosines are kept.

    Args:
        data: the pairs; the subsets of a year are concatenated.
        poolings: names from LAYER_POOLINGS.
        batch_size: pairs per batch.
        on_batch: called with the number of pairs of each batch when it is done.

    Raises:
        UserError: another pooling, or scores that are constant.
    """
    for name in poolings:
        if name not in LAYER_POOLINGS:
            raise UserError(f"--poolings {name}: reads several layers; valid are {', '.join(LAYER_POOLINGS)}")
    parts = list(data.subsets.values())
    gold = np.concatenate([part.scores for part in parts])
    sides = [[text for part in parts for text in part.first], [text for part in parts for text in part.second]]
    rows = [[_ids(encoder, text) for text in side] for side in sides]
    order = sorted(range(len(gold)), key=lambda index: -len(rows[0][index]) - len(rows[1][index]))
    layers = int(encoder.model.args.encoder_layers) + 1
    cosines = np.empty((len(poolings), layers, len(gold)))  # (P, L + 1, N)
    with evaluating(encoder.model):
        for begin in range(0, len(order), batch_size):
            batch = order[begin : begin + batch_size]
            first, second = (_vectors(encoder, [side[index] for index in batch], poolings) for side in rows)
            for number in range(len(poolings)):
                for layer in range(layers):
                    similar = cosine_similarity(first[number][layer], second[number][layer])  # (B,)
                    cosines[number, layer, batch] = similar.cpu().numpy()
            if on_batch is not None:
                on_batch(len(batch))
    if "cls" in poolings:
        cosines[poolings.index("cls"), 0] = 1.0  # the embedding of <s>, equal for all texts up to rounding
    where = f"{label or 'encoder'}, {data.name}"
    scores = {
        name: np.array(
            [math.nan if (row == row[0]).all() else 100 * spearman(row, gold, where=where) for row in by_layer]
        )
        for name, by_layer in zip(poolings, cosines, strict=True)
    }
    return LayerScores(label, scores)


def _ids(encoder: SentenceEncoder, text: str) -> npt.NDArray[np.int64]:
    ids = read_tokens(encoder.dictionary, encoder.tokenizer, text)
    longest = encoder.max_length
    return np.array(ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]], np.int64)


def _vectors(
    encoder: SentenceEncoder, rows: list[npt.NDArray[np.int64]], poolings: Sequence[str]
) -> list[list[Tensor]]:
    """Vectors (B, D) for each pooling and layer."""
    device = next(encoder.model.parameters()).device
    tokens = pad_rows(rows, encoder.dictionary.pad()).to(device)  # (B, T)
    states = encoder.model.hidden_states(tokens)
    is_token = tokens.ne(encoder.dictionary.pad())
    return [[pool(name, [state], is_token).float() for state in states] for name in poolings]


def draw_layers(results: Sequence[LayerScores], task: str) -> Figure:
    """Draw one line over the layers for each encoder (colour) and pooling (marker and dash).

    Args:
        results: scores of up to eight encoders.

    Raises:
        UserError: too many encoders.
    """
    check_count(results, "encoders")
    one = len(results) == 1
    with style():
        lines = sum(len(result.scores) for result in results)
        figure = Figure(figsize=(WIDTH, 2.2 + 0.15 * ((lines + 1) // 2)))
        axis = figure.subplots()
        for number, result in enumerate(results):
            for kind, (pooling, scores) in enumerate(result.scores.items()):
                axis.plot(
                    range(len(scores)), scores, DASHES[kind], marker=MARKERS[kind],
                    color=COLOURS[kind if one else number],
                    label=pooling if one else f"{result.label}, {pooling}",
                )  # fmt: skip
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("layer (0: embeddings)")
        axis.set_ylabel(f"{task} Spearman (x100)")
        figure.legend(loc="outside upper center", ncols=3 if one else 1)
    return figure


@dataclass(frozen=True)
class PairMap:
    """Positions of pairs, (2 K, 2, 2): the K highest scored pairs, then the K lowest; first and second text; x and y."""

    label: str
    points: Doubles


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
    """Map vectors, scaled to length 1, to the plane by scikit-learn's t-SNE, initialised with principal components."""
    texts = [text for pair in pairs for text in pair]
    vectors = encoder.encode(texts).astype(np.float64)  # (4 K, D)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    perplexity = min(_PERPLEXITY, (len(texts) - 1) / 3)
    kind = import_library("sklearn.manifold", "eval").TSNE  # takes a second to import
    points = kind(init="pca", perplexity=perplexity, random_state=seed).fit_transform(vectors)
    return PairMap(encoder.name, points.reshape(len(pairs), 2, 2))


def draw_embedding(maps: Sequence[PairMap], scores: tuple[float, float]) -> Figure:
    """Draw a panel for each encoder (Self-Guided, figure 5); a line joins the two texts of a pair.

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
        axis.plot(points[:, :, 0].T, points[:, :, 1].T, "-", color=colour, linewidth=0.6, alpha=0.6)  # a line per pair
        axis.plot(*points.reshape(-1, 2).T, marker, color=colour)
    axis.set(title=one.label, xticks=[], yticks=[])
    axis.spines[:].set_visible(True)
