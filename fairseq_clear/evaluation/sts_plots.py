"""Pictures of encoders on an STS task: scores by layer and pooling, and a map of the highest and lowest scored pairs."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from torch import Tensor
from torch.nn.functional import cosine_similarity
from tqdm import tqdm

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

__all__ = ["choose_pairs", "draw_embedding", "draw_layers", "map_pairs", "score_layers"]

LAYER_POOLINGS = ("cls", "mean", "max")  # those that read one layer
_PERPLEXITY = 15.0
Doubles = npt.NDArray[np.float64]


def score_layers(
    encoder: SentenceEncoder, data: StsData, poolings: Sequence[str] = LAYER_POOLINGS, batch_size: int = 32
) -> dict[str, Doubles]:
    """Score every layer and pooling (Self-Guided, figure 1) in one pass over the pairs; only their cosines are kept.

    Args:
        data: the pairs; the subsets of a year are concatenated.
        poolings: names from LAYER_POOLINGS.
        batch_size: pairs per batch.

    Returns:
        Pooling -> Spearman's correlation x100 (layers + 1,), the embeddings first; NaN if all pairs have the same cosine, as
        with the embedding of ``<s>``.

    Raises:
        UserError: scores that are constant.
    """
    parts = data.subsets.values()
    gold = np.concatenate([part.scores for part in parts])
    pairs = [pair for part in parts for pair in zip(part.first, part.second, strict=True)]
    order = sorted(range(len(pairs)), key=lambda number: -sum(map(len, pairs[number])))
    cosines = np.empty((len(poolings), int(encoder.model.args.encoder_layers) + 1, len(pairs)))  # (P, L + 1, N)
    with evaluating(encoder.model):
        for begin in tqdm(range(0, len(order), batch_size), unit="batch", disable=None, leave=False):
            batch = order[begin : begin + batch_size]
            first, second = (_vectors(encoder, [pairs[n][side] for n in batch], poolings) for side in (0, 1))
            cosines[:, :, batch] = cosine_similarity(first, second, dim=-1).cpu().numpy()
    if "cls" in poolings:
        cosines[poolings.index("cls"), 0] = 1.0  # the embedding of <s>, equal for all texts up to rounding
    return {
        name: np.array(
            [math.nan if (row == row[0]).all() else 100 * spearman(row, gold, where=data.name) for row in by_layer]
        )
        for name, by_layer in zip(poolings, cosines, strict=True)
    }


def _vectors(encoder: SentenceEncoder, texts: Sequence[str], poolings: Sequence[str]) -> Tensor:
    """Vectors (P, L + 1, B, D) of B texts for each pooling and layer."""
    rows = [read_tokens(encoder.dictionary, encoder.tokenizer, text) for text in texts]
    longest = encoder.max_length
    cut = [np.array(row if len(row) <= longest else [*row[: longest - 1], row[-1]], np.int64) for row in rows]
    tokens = pad_rows(cut, encoder.dictionary.pad()).to(next(encoder.model.parameters()).device)  # (B, T)
    states, is_token = encoder.model.hidden_states(tokens), tokens.ne(encoder.dictionary.pad())
    return torch.stack([torch.stack([pool(name, [state], is_token).float() for state in states]) for name in poolings])


def draw_layers(results: Mapping[str, Mapping[str, Doubles]], task: str) -> Figure:
    """Draw one line over the layers for each encoder (colour) and pooling (marker and dash).

    Args:
        results: name of an encoder -> its scores, see ``score_layers``; up to eight encoders.

    Raises:
        UserError: too many encoders.
    """
    check_count(list(results), "encoders")
    one = len(results) == 1
    with style():
        count = sum(map(len, results.values()))
        figure = Figure(figsize=(WIDTH, 2.2 + 0.15 * ((count + 1) // 2)))
        axis = figure.subplots()
        for number, (label, by_pooling) in enumerate(results.items()):
            for kind, (pooling, scores) in enumerate(by_pooling.items()):
                axis.plot(
                    range(len(scores)), scores, DASHES[kind], marker=MARKERS[kind],
                    color=COLOURS[kind if one else number], label=pooling if one else f"{label}, {pooling}",
                )  # fmt: skip
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("layer (0: embeddings)")
        axis.set_ylabel(f"{task} Spearman (x100)")
        figure.legend(loc="outside upper center", ncols=3 if one else 1)
    return figure


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
    shuffled = [list(scored)[number] for number in np.random.default_rng(seed).permutation(len(scored))]
    order = sorted(shuffled, key=lambda pair: -scored[pair])  # stable, so equal scores stay in random order
    return order[:count] + order[-count:], (scored[order[count - 1]], scored[order[-count]])


def map_pairs(encoder: CachedEncoder, pairs: Sequence[tuple[str, str]], *, seed: int = 1) -> Doubles:
    """Map vectors, scaled to length 1, to the plane by scikit-learn's t-SNE, initialised with principal components.

    Returns:
        Positions (N, 2, 2) of N pairs: first and second text; x and y.
    """
    vectors = encoder.encode([text for pair in pairs for text in pair]).astype(np.float64)  # (2 N, D)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
    kind = import_library("sklearn.manifold", "eval").TSNE  # takes a second to import
    points: Doubles = kind(init="pca", perplexity=perplexity, random_state=seed).fit_transform(vectors)
    return points.reshape(len(pairs), 2, 2)


def draw_embedding(maps: Mapping[str, Doubles], scores: tuple[float, float]) -> Figure:
    """Draw a panel for each encoder (Self-Guided, figure 5); a line joins the two texts of a pair.

    Args:
        maps: name of an encoder -> positions of the pairs, the highest scored half first; up to four encoders.
        scores: the lowest of the high half, the highest of the low half, for the legend.

    Raises:
        UserError: too many encoders.
    """
    check_count(list(maps), "encoders", most=4)
    names = (f"pairs scored {scores[0]:g} or more", f"pairs scored {scores[1]:g} or less")
    with style():
        figure = Figure(figsize=(WIDTH, 2.3 * len(maps) + 0.4))
        for axis, (label, points) in zip(figure.subplots(len(maps), squeeze=False)[:, 0], maps.items(), strict=True):
            for half, colour, marker in zip(np.split(points, 2), COLOURS, MARKERS, strict=False):
                axis.plot(
                    half[:, :, 0].T, half[:, :, 1].T, "-", color=colour, linewidth=0.6, alpha=0.6
                )  # a line per pair
                axis.plot(*half.reshape(-1, 2).T, marker, color=colour)
            axis.set(title=label, xticks=[], yticks=[])
            axis.spines[:].set_visible(True)
        handles = [
            Line2D([], [], color=colour, marker=marker, label=name, linewidth=0.8)
            for colour, marker, name in zip(COLOURS, MARKERS, names, strict=False)
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=1)
    return figure
