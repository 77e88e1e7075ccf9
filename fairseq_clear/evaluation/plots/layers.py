"""Draws STS scores by layer and pooling (Self-Guided, figure 1)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from fairseq_clear.data.batch import pad_rows
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.plots.style import COLOURS, DASHES, MARKERS, WIDTH, check_count, style
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.evaluation.sts import spearman
from fairseq_clear.evaluation.sts_data import StsData
from fairseq_clear.models.encoding import evaluating, read_tokens
from fairseq_clear.modules.pooling import pool

__all__ = ["LAYER_POOLINGS", "LayerScores", "draw_layers", "score_layers"]

LAYER_POOLINGS = ("cls", "mean", "max")  # those that read one layer


@dataclass(frozen=True)
class LayerScores:
    """Spearman's correlation x100 of one encoder: pooling -> (layers + 1,), the embeddings first.

    NaN if all pairs have the same cosine, as with the embedding of ``<s>``.
    """

    label: str
    scores: dict[str, npt.NDArray[np.float64]]


def score_layers(
    encoder: SentenceEncoder,
    data: StsData,
    poolings: Sequence[str] = LAYER_POOLINGS,
    *,
    label: str = "",
    batch_size: int = 32,
    on_batch: Callable[[int], object] | None = None,
) -> LayerScores:
    """Score every layer and pooling in one pass over the pairs; only their cosines are kept.

    Args:
        encoder: the encoder of a checkpoint.
        data: the pairs; the subsets of a year are concatenated.
        poolings: names from LAYER_POOLINGS.
        label: name in the legend.
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
                    similar = nn.functional.cosine_similarity(first[number][layer], second[number][layer])  # (B,)
                    cosines[number, layer, batch] = similar.cpu().numpy()
            if on_batch is not None:
                on_batch(len(batch))
    if "cls" in poolings:
        cosines[poolings.index("cls"), 0] = 1.0  # the embedding of <s>, equal for all texts up to rounding
    where = f"{label or 'encoder'}, {data.name}"
    scores = {
        name: np.array([_score(cosines[number, layer], gold, where) for layer in range(layers)])
        for number, name in enumerate(poolings)
    }
    return LayerScores(label, scores)


def _score(cosines: npt.NDArray[np.float64], gold: npt.NDArray[np.float64], where: str) -> float:
    """Spearman x100; NaN if all cosines are equal, which the picture leaves out."""
    if (cosines == cosines[0]).all():
        return math.nan
    return 100 * spearman(cosines, gold, where=where)


def _ids(encoder: SentenceEncoder, text: str) -> npt.NDArray[np.int64]:
    ids = read_tokens(encoder.dictionary, encoder.tokenizer, text)
    longest = encoder.max_length
    return np.array(ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]], np.int64)


def _vectors(
    encoder: SentenceEncoder, rows: Sequence[npt.NDArray[np.int64]], poolings: Sequence[str]
) -> list[list[Tensor]]:
    """Vectors (B, D) for each pooling and layer."""
    device = next(encoder.model.parameters()).device
    tokens = pad_rows(list(rows), encoder.dictionary.pad()).to(device)  # (B, T)
    states = encoder.model.hidden_states(tokens)
    is_token = tokens.ne(encoder.dictionary.pad())
    return [[pool(name, [state], is_token).float() for state in states] for name in poolings]


def draw_layers(results: Sequence[LayerScores], task: str) -> Figure:
    """Draw one line over the layers for each encoder (colour) and pooling (marker and dash).

    Args:
        results: scores of up to eight encoders.
        task: name of the task, for the label of the axis.

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
