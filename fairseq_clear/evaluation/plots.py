"""Pictures: training curves, scores as bars, scores by layer, and a map of sentence pairs."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
import numpy.typing as npt
from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from tqdm import tqdm

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import Encoder
from fairseq_clear.evaluation.reports import Row
from fairseq_clear.evaluation.sts import spearman
from fairseq_clear.evaluation.sts_data import StsData
from fairseq_clear.evaluation.training_log import Records
from fairseq_clear.files import write_errors, write_whole
from fairseq_clear.libraries import import_library
from fairseq_clear.tokens import cut_text

if TYPE_CHECKING:
    from torch import Tensor

    from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder

# Okabe and Ito's palette (2008), whose colours can be distinguished with every kind of colour blindness. Its yellow, too
# pale for lines on white, comes last. Lines also differ by markers and dashes, and bars by hatches, for greyscale prints.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS, DASHES, HATCHES = "os^DvPX*", ("-", "--", ":", "-."), ("", "///", "...", "xxx", "|||", "ooo", "+++")
STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.size": 7,
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "svg.hashsalt": "fairseq_clear",  # so that equal pictures give identical files
}
WIDTH = 3.3  # inches, the column width of ACL and IEEE papers
# Metric of a training log -> label of its axis, with its unit.
PANELS = {
    "loss": "loss (bits)",
    "mlm_loss": "MLM loss (bits/token)",
    "contrastive_loss": "contrastive loss (bits)",
    "contrastive_accuracy": "in-batch accuracy",
    "accuracy": "accuracy (%)",
    "sts_spearman": "STS Spearman (x100)",
    "retrieval_mrr": "retrieval MRR@10 (x100)",
    "alignment": "alignment",
    "uniformity": "uniformity",
}
LAYER_POOLINGS = ("cls", "mean", "max")  # poolings that read one layer
Doubles = npt.NDArray[np.float64]


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's suffix, replacing an existing file. Equal figures give identical files."""
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
    # matplotlib reads the settings of hatches and the hash salt when it saves
    with matplotlib.rc_context(STYLE), write_errors(path), write_whole(path) as stream:
        figure.savefig(stream, format=path.suffix[1:], dpi=300, metadata=undated)


def draw_bars(rows: Sequence[Row], columns: Sequence[str]) -> Figure:
    """Draw the scores of the rows of a report as horizontal bars from 0, grouped by column."""
    width = 0.8 / len(rows)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.16 * (len(columns) + 1) * len(rows) + 0.6))
        axis = figure.subplots()
        for number, (row, hatch) in enumerate(zip(rows, cycle(HATCHES), strict=False)):
            scores, errors = [row.scores[name] for name in columns], [row.deviations.get(name, 0.0) for name in columns]
            look = {"label": row.label, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}
            places = np.arange(len(columns)) + number * width
            bars = axis.barh(places, scores, width, xerr=errors, error_kw={"linewidth": 0.7}, **look)
            axis.bar_label(bars, fmt="%.1f", padding=2, fontsize=5.5)
        axis.set_yticks(np.arange(len(columns)) + 0.4 - width / 2, columns)
        axis.invert_yaxis()
        axis.grid(False, axis="y")
        axis.margins(x=0.12)
        axis.set_xlabel("score (x100)")
        figure.legend(loc="outside upper center", ncols=1 if max(len(row.label) for row in rows) > 22 else 2)
    return figure


def draw_curves(logs: Mapping[str, Records], metrics: Sequence[str] | None = None) -> Figure:
    """Draw one panel per metric. Each run has a colour; solid lines are training, dashes and markers validation subsets.

    Args:
        logs: name of a run -> its log, see ``training_log.read_log``.
        metrics: names of metrics as logged, without a prefix such as ``valid_`` (default: the keys of PANELS).

    Raises:
        UserError: no log has any of the metrics.
    """
    panels = {metric: [_curves(log, metric) for log in logs.values()] for metric in metrics or PANELS}
    shown = {metric: runs for metric, runs in panels.items() if any(runs)}
    if not shown:
        raise UserError(f"{', '.join(logs)}: no log has any of {', '.join(panels)}")
    subsets = dict.fromkeys(part for runs in shown.values() for run in runs for part in run if part != "train")
    forms = dict(zip(subsets, zip(cycle(DASHES[1:]), cycle(MARKERS), strict=False), strict=False))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 1.3 * len(shown) + 0.2 * (len(logs) + len(subsets)) + 0.3))
        axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (metric, runs) in zip(axes, shown.items(), strict=True):
            for number, run in enumerate(runs):
                for part, curve in run.items():
                    dash, marker = forms.get(part, ("-", "." if len(curve) == 1 else ""))
                    axis.plot(*zip(*curve, strict=True), dash, marker=marker, color=f"C{number}")
            axis.set_ylabel(PANELS.get(metric, metric))
        axes[-1].set_xlabel("updates")
        figure.align_ylabels()
        handles = [Line2D([], [], color=f"C{number}", label=name) for number, name in enumerate(logs)]
        handles += [
            Line2D([], [], ls=dash, marker=mark, color="0.4", label=part) for part, (dash, mark) in forms.items()
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


def _curves(log: Records, metric: str) -> dict[str, list[tuple[float, float]]]:
    """Points (updates, value) of a metric, by subset; ``train`` has the points within epochs or, if none, at their ends."""
    curves = {
        part: [(at, values[metric]) for at, values in sorted(updates.items()) if metric in values]
        for part, updates in log.items()
    }
    within, ends = curves.pop("train_inner", []), curves.pop("train", [])
    return {part: curve for part, curve in {"train": within or ends, **curves}.items() if curve}


def score_layers(
    encoder: "SentenceEncoder", data: StsData, poolings: Sequence[str] = LAYER_POOLINGS, batch_size: int = 32
) -> dict[str, Doubles]:
    """Score every layer with several poolings (Self-Guided, figure 1) in one pass over the pairs.

    Args:
        encoder: its own pooling is not used.
        data: the pairs; subsets are concatenated.
        poolings: names from LAYER_POOLINGS.
        batch_size: pairs per batch.

    Returns:
        For each pooling, Spearman's correlation x100 of every layer (layers + 1,), beginning with the embedding layer. There
        ``<s>`` has the same vector in all texts, so the first score of ``cls`` is NaN.

    Raises:
        UserError: a correlation is undefined.
    """
    from fairseq_clear.models.encoding import evaluating  # torch and fairseq take seconds to import

    pairs = [pair for part in data.subsets.values() for pair in zip(part.first, part.second, part.scores, strict=True)]
    pairs.sort(key=lambda pair: -len(pair[0]) - len(pair[1]))
    gold, cosines = [pair[2] for pair in pairs], []
    with evaluating(encoder.model):
        for begin in tqdm(range(0, len(pairs), batch_size), unit="batch", disable=None, leave=False):
            batch = pairs[begin : begin + batch_size]
            first, second = (_layer_vectors(encoder, [pair[side] for pair in batch], poolings) for side in (0, 1))
            cosines.append((first * second).sum(-1).cpu().numpy())  # (P, L + 1, B)
    scores = {}
    for pooling, layers in zip(poolings, np.concatenate(cosines, axis=-1).astype(np.float64), strict=True):
        known = [100 * spearman(layer, gold, where=data.name) for layer in layers[pooling == "cls" :]]
        scores[pooling] = np.array([math.nan] * (pooling == "cls") + known)
    return scores


def _layer_vectors(encoder: "SentenceEncoder", texts: Sequence[str], poolings: Sequence[str]) -> "Tensor":
    """Unit vectors (P, L + 1, B, D) of B texts for each pooling and layer."""
    import torch

    from fairseq_clear.data.batch import pad_rows
    from fairseq_clear.models.encoding import read_tokens
    from fairseq_clear.modules.pooling import pool

    rows = [np.array(read_tokens(encoder.dictionary, encoder.tokenizer, text), np.int64) for text in texts]
    pad = encoder.dictionary.pad()
    tokens = pad_rows([cut_text(row, encoder.max_length) for row in rows], pad).to(
        next(encoder.model.parameters()).device
    )
    states = encoder.model.hidden_states(tokens)
    vectors = [torch.stack([pool(name, [state], tokens.ne(pad)).float() for state in states]) for name in poolings]
    return torch.nn.functional.normalize(torch.stack(vectors), dim=-1)


def draw_layers(lines: Mapping[str, Doubles], task: str) -> Figure:
    """Draw scores by layer (layers + 1,), see ``score_layers``, as one line per name."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.2 + 0.15 * len(lines)))
        axis = figure.subplots()
        for (name, scores), marker, dash in zip(lines.items(), cycle(MARKERS), cycle(DASHES), strict=False):
            axis.plot(range(len(scores)), scores, dash, marker=marker, label=name)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="layer (0: embeddings)", ylabel=f"{task} Spearman (x100)")
        figure.legend(loc="outside upper center")
    return figure


def choose_pairs(data: StsData, count: int, seed: int = 1) -> list[tuple[str, str]]:
    """Choose the ``count`` pairs with the highest and the ``count`` pairs with the lowest scores, in descending order.

    Ties are broken at random. Repeated pairs, and pairs of a text with itself, are left out: their points would coincide.

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
    rng = np.random.default_rng(seed)
    order = sorted(scored, key=lambda pair: (-scored[pair], rng.random()))
    return order[:count] + order[-count:]


def map_pairs(encoder: Encoder, pairs: Sequence[tuple[str, str]], *, seed: int = 1) -> Doubles:
    """Project the normalized vectors of N pairs to the plane with scikit-learn's t-SNE; return (N, 2 texts, 2 coordinates)."""
    vectors = np.asarray(encoder.encode([text for pair in pairs for text in pair]), np.float64)  # (2 N, D)
    vectors = import_library("sklearn.preprocessing", "eval").normalize(vectors)
    kind = import_library("sklearn.manifold", "eval").TSNE
    tsne = kind(init="pca", perplexity=min(15.0, (len(vectors) - 1) / 3), random_state=seed)
    points: Doubles = tsne.fit_transform(vectors)
    return points.reshape(len(pairs), 2, 2)


def draw_map(maps: Mapping[str, Doubles]) -> Figure:
    """Draw a panel for each encoder (Self-Guided, figure 5); a line joins the two texts of a pair.

    Args:
        maps: name of an encoder -> points from ``map_pairs``; the first half are the pairs with the highest scores.
    """
    kinds = ("highest scored pairs", "lowest scored pairs")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.3 * len(maps) + 0.4))
        for axis, (label, points) in zip(figure.subplots(len(maps), squeeze=False)[:, 0], maps.items(), strict=True):
            for half, colour, marker, kind in zip(np.split(points, 2), COLOURS, MARKERS, kinds, strict=False):
                # x and y are (2, N / 2): one line for each column
                lines = axis.plot(*half.transpose(2, 1, 0), color=colour, marker=marker, linewidth=0.6)
                lines[0].set_label(kind)
            axis.set(title=label, xticks=[], yticks=[])
            axis.spines[:].set_visible(True)
        figure.legend(handles=axis.get_legend_handles_labels()[0], loc="outside upper center")
    return figure
