"""Pictures: training curves, scores as bars, scores by layer, and a map of sentence pairs."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import Encoder
from fairseq_clear.evaluation.reports import Row
from fairseq_clear.evaluation.sts import Doubles, cosine, spearman
from fairseq_clear.evaluation.sts_data import Pairs
from fairseq_clear.evaluation.training_log import Records
from fairseq_clear.files import write_errors, write_whole
from fairseq_clear.libraries import import_library
from fairseq_clear.tokens import Ragged

if TYPE_CHECKING:
    from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder

# Colours that can be distinguished with every kind of colour blindness. Lines also differ by markers and dashes, and bars by
# hatches, for greyscale prints.
SIZES = {"font.size": 7, "lines.linewidth": 1.2, "lines.markersize": 3.5, "figure.constrained_layout.use": True}
STYLE = ("seaborn-v0_8-whitegrid", "tableau-colorblind10", SIZES)
FORMS, HATCHES = ("-o", "--s", ":^", "-.D"), ("", "///", "...", "xxx", "|||", "ooo", "+++")
WIDTH = 3.3  # inches, the column width of ACL and IEEE papers
# The metrics of a training log that are drawn: losses in bits, accuracy in %, scores x100.
METRICS = (
    *("loss", "mlm_loss", "contrastive_loss", "contrastive_accuracy", "accuracy", "sts_spearman", "retrieval_mrr"),
    *("alignment", "uniformity"),
)
LAYER_POOLINGS = ("cls", "mean")
Points = Sequence[tuple[float, float]]
Panels = Mapping[str, Mapping[str, Points]]  # name of a panel -> name of a line -> its points


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's suffix, replacing an existing file."""
    with style.context(STYLE), write_errors(path), write_whole(path) as stream:  # saving draws hatches
        figure.savefig(stream, format=path.suffix[1:], dpi=300)


def draw_bars(rows: Sequence[Row], columns: Sequence[str]) -> Figure:
    """Draw the scores of the rows of a report as horizontal bars from 0, grouped by column."""
    width = 0.8 / len(rows)
    with style.context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.16 * (len(columns) + 1) * len(rows) + 0.6))
        axis = figure.subplots()
        for number, (row, hatch) in enumerate(zip(rows, cycle(HATCHES), strict=False)):
            scores, errors = [row.scores[name] for name in columns], [row.deviations.get(name, 0.0) for name in columns]
            places = np.arange(len(columns)) + number * width
            look: Any = {"hatch": hatch, "edgecolor": "white", "linewidth": 0.3, "error_kw": {"linewidth": 0.7}}
            bars = axis.barh(places, scores, width, xerr=errors, label=row.label, **look)
            axis.bar_label(bars, fmt="%.1f", padding=2, fontsize=5.5)
        axis.set_yticks(np.arange(len(columns)) + 0.4 - width / 2, columns)
        axis.invert_yaxis()
        axis.grid(False, axis="y")
        axis.margins(x=0.12)
        axis.set_xlabel("score (x100)")
        figure.legend(loc="outside upper center", ncols=1 if max(len(row.label) for row in rows) > 22 else 2)
    return figure


def curve_panels(logs: Mapping[str, Records]) -> Panels:
    """Panels of METRICS: lines of (updates, value) for each run and subset. Training has the points within epochs, if any."""
    panels: dict[str, dict[str, Points]] = {}
    empty = dict.fromkeys(logs)
    for metric, (name, log) in product(METRICS, logs.items()):
        for part, updates in log.items():
            points = [(at, values[metric]) for at, values in sorted(updates.items()) if metric in values]
            if points and not (part == "train" and "train_inner" in log):
                panels.setdefault(metric, {})[f"{name}, {part.removesuffix('_inner')}"] = points
                empty.pop(name, None)
    if empty:
        raise UserError(f"{', '.join(empty)}: has no finite value of {', '.join(METRICS)}; leave this log out")
    return panels


def draw_lines(panels: Panels, label: str) -> Figure:
    """Draw one panel below the other over a common x-axis, which ``label`` names. A line looks the same in all panels."""
    names = dict.fromkeys(name for lines in panels.values() for name in lines)
    with style.context(STYLE):
        figure = Figure(figsize=(WIDTH, 1.3 * len(panels) + 0.15 * len(names) + 0.9))
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        handles = []
        for number, (name, form) in enumerate(zip(names, cycle(FORMS), strict=False)):
            shown = [(axis, lines[name]) for axis, lines in zip(axes, panels.values(), strict=True) if name in lines]
            for axis, points in reversed(shown):
                (line,) = axis.plot(*zip(*points, strict=True), form, color=f"C{number}", markevery=0.1)
            handles.append(line)
        for axis, title in zip(axes, panels, strict=True):
            axis.set_ylabel(title.replace("_", " "))
        axes[-1].set_xlabel(label)
        figure.align_ylabels()
        legend = figure.legend(handles, ["name"] * len(handles), loc="outside upper center")
        # any text: matplotlib leaves out labels such as _run
        for text, name in zip(legend.get_texts(), names, strict=True):
            text.set(text=name, parse_math=False)
    return figure


def score_layers(encoder: "SentenceEncoder", pairs: Pairs, batch_size: int = 32) -> dict[str, Doubles]:
    """Return Spearman's correlation x100 of every block (blocks,) for each of LAYER_POOLINGS (Self-Guided, figure 1)."""
    import torch  # torch and fairseq take seconds to import

    from fairseq_clear.models.encoding import evaluating, read_tokens, sentence_settings

    texts, pad, found = pairs.first + pairs.second, encoder.dictionary.pad(), []
    read, prompt = partial(read_tokens, encoder.dictionary, encoder.tokenizer), encoder.find_prompt()
    rows = [np.array(read(prompt + text), np.int64) for text in texts]
    is_pooled = not prompt or sentence_settings(encoder.model).get("include_prompt", True)
    skipped = 0 if is_pooled else len(read(prompt)) - 1
    with evaluating(encoder.model):
        for begin in range(0, len(rows), batch_size):
            batch = torch.from_numpy(Ragged.of(rows[begin : begin + batch_size]).cut(encoder.max_length).padded(pad))
            tokens = batch.to(next(encoder.model.parameters()).device)
            states = encoder.model.hidden_states(tokens)[1:]
            pooled = [
                encoder.model.pooled([state], tokens, name, skipped) for name in LAYER_POOLINGS for state in states
            ]
            found.append(torch.stack(pooled).float().cpu())
    first, second = torch.cat(found, dim=1).chunk(2, dim=1)  # (poolings x blocks, N, D)
    scores = [100 * spearman(cosine(*sides), pairs.scores) for sides in zip(first.numpy(), second.numpy(), strict=True)]
    return dict(zip(LAYER_POOLINGS, np.split(np.array(scores), len(LAYER_POOLINGS)), strict=True))


def map_pairs(encoder: Encoder, pairs: Pairs, count: int) -> Doubles:
    """Project the ``count`` pairs with the highest and those with the lowest scores to the plane, with t-SNE of their cosines.

    Repeated pairs, and pairs of a text with itself, are left out: their points would coincide.

    Returns:
        (2 count pairs, 2 texts, 2 coordinates), in descending order of the scores.

    Raises:
        UserError: too few pairs.
    """
    tsne = import_library("sklearn.manifold", "eval").TSNE(metric="cosine", perplexity=count / 2, random_state=1)
    scored = dict(zip(zip(pairs.first, pairs.second, strict=True), pairs.scores, strict=True))
    order = sorted((pair for pair in scored if pair[0] != pair[1]), key=lambda pair: -scored[pair])
    if not 2 <= count <= len(order) // 2:
        raise UserError(f"--pairs {count}: there are {len(order)} different pairs; give 2 to {len(order) // 2}")
    texts = [text for pair in order[:count] + order[-count:] for text in pair]
    return np.reshape(tsne.fit_transform(np.asarray(encoder.encode(texts))), (2 * count, 2, 2))


def draw_map(maps: Mapping[str, Doubles]) -> Figure:
    """Draw the points of ``map_pairs`` in a panel for each encoder (Self-Guided, figure 5); a line joins the two texts."""
    kinds = (("C0", "o", "highest scored pairs"), ("C1", "s", "lowest scored pairs"))
    with style.context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.3 * len(maps) + 0.4))
        for axis, (label, points) in zip(figure.subplots(len(maps), squeeze=False)[:, 0], maps.items(), strict=True):
            for half, (colour, marker, kind) in zip(np.split(points, 2), kinds, strict=True):
                # x and y are (2, N / 2): one line for each column
                lines = axis.plot(*half.transpose(2, 1, 0), color=colour, marker=marker, linewidth=0.6)
                lines[0].set_label(kind)
            axis.set(title=label, xticks=[], yticks=[])
        figure.legend(handles=axis.get_legend_handles_labels()[0], loc="outside upper center")
    return figure
