"""Finds what an augmentation changed in a text, and formats texts and views with brackets and colours that show it."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fairseq_clear.augmentations.base import Tokens
from fairseq_clear.text.tokenizers import SILENT_SYMBOLS, VISIBLE_SYMBOLS, Tokenizer
from fairseq_clear.views.span_views import kind_of
from fairseq_clear.views.view_maker import ViewMaker
from fairseq_clear.views.view_source import RawInstance

Bools = npt.NDArray[np.bool_]
# ANSI: struck red, red, green, cyan, yellow
_COLOURS = {
    "deleted": "\033[9;31m",
    "gap": "\033[31m",
    "inserted": "\033[32m",
    "moved": "\033[36m",
    "substituted": "\033[33m",
}
_RESET = "\033[0m"
BAR_WIDTH = 60  # characters


@dataclass(frozen=True)
class Words:
    """Finds words among token ids.

    Attributes:
        is_start: (vocabulary,) bool, whether a word begins at this token.
        is_special: (vocabulary,) bool, special symbols; each is a word of its own.
    """

    is_start: Bools
    is_special: Bools

    def begins(self, tokens: Tokens) -> Bools:
        """Find where words of ``tokens`` (n,) begin: (n,) bool. The first token always begins a word."""
        begins: Bools = self.is_start[tokens] | self.is_special[tokens]
        begins[:1] = True
        begins[1:] |= self.is_special[tokens[:-1]]
        return begins


@dataclass(frozen=True)
class MarkedView:
    """A text, a view of it, and a mark for each token.

    Attributes:
        text: (n,) token ids, with ``<s>`` and ``</s>``.
        view: (m,) token ids.
        source: (m,) position in the text of each token of the view; -1 for new tokens (``<del>``).
        word: (n,) position at which the word of each token of the text begins.
        deleted, moved, substituted: (n,) bool, marks of the text's tokens.
        view_moved, view_substituted: (m,) bool, marks of the view's tokens.
    """

    text: Tokens
    view: Tokens
    source: Tokens
    word: Tokens
    deleted: Bools
    moved: Bools
    substituted: Bools
    view_moved: Bools
    view_substituted: Bools


def mark_view(
    text: Tokens, view: Tokens, source: Tokens, words: Words, *, delete: int, may_substitute: bool = True
) -> MarkedView:
    """Derive the marks of a view from ``source``, the positions in the text (n,) that the tokens of the view (m,) come from.

    * Substituted: words of which a token occurs in the view changed or more than once, without the tokens that stayed, such as
      a comma at the end. A substitute may also be the first piece of the word that it replaces; this is assumed if only the
      first piece is left and no ``<del>`` (id ``delete``) follows it, unless no step of the augmentation substitutes.
    * Deleted: tokens of other words that do not occur in the view.
    * Moved: the smallest set of tokens whose move explains the order of the view. If two neighbouring spans changed places, it
      is the shorter one.
    """
    starts = np.flatnonzero(words.begins(text))
    word = np.repeat(starts, np.diff(starts, append=len(text)))  # (n,)
    old = source >= 0
    came_out = np.bincount(source[old], minlength=len(text))  # (n,)
    changed = came_out > 1
    changed[source[old][text[source[old]] != view[old]]] = True
    if may_substitute:
        changed |= _cut_to_first_piece(word, came_out, view, source, delete)
    is_other = np.zeros(len(text), np.bool_)
    is_other[word[changed]] = True
    substituted: Bools = is_other[word] & (changed | (came_out != 1))  # (n,)
    view_moved = np.zeros(len(view), np.bool_)
    view_moved[old] = ~longest_ordered(source[old].tolist())
    moved = np.zeros(len(text), np.bool_)
    moved[source[view_moved]] = True
    view_substituted = np.zeros(len(view), np.bool_)
    view_substituted[old] = substituted[source[old]]
    deleted = (came_out == 0) & ~substituted
    return MarkedView(text, view, source, word, deleted, moved, substituted, view_moved, view_substituted)


def longest_ordered(positions: Sequence[int]) -> Bools:
    """Mark the elements of a longest non-decreasing subsequence (patience sorting)."""
    tails: list[int] = []  # smallest last value of a subsequence of each length
    at: list[int] = []  # its index in `positions`
    previous: list[int] = []
    for place, position in enumerate(positions):
        length = bisect_right(tails, position)
        previous.append(at[length - 1] if length else -1)
        tails[length : length + 1] = [position]
        at[length : length + 1] = [place]
    chosen = np.zeros(len(positions), np.bool_)
    place = at[-1] if at else -1
    while place >= 0:
        chosen[place] = True
        place = previous[place]
    return chosen


def _cut_to_first_piece(word: Tokens, came_out: Tokens, view: Tokens, source: Tokens, delete: int) -> Bools:
    """Mark first pieces of longer words whose other pieces are missing, unless a ``<del>`` in their place shows a deletion."""
    pieces = np.bincount(word, minlength=len(word))  # (n,) length of the word that begins here
    left = np.bincount(word, weights=came_out, minlength=len(word))  # (n,)
    followed = np.append((view[1:] == delete) | (source[1:] < 0), False)
    not_deleted = np.zeros(len(word), np.bool_)
    not_deleted[source[(source >= 0) & ~followed]] = True
    cut: Bools = (pieces > 1) & (left == 1) & (came_out == 1) & not_deleted
    return cut


def draw_span(span: tuple[int, int], length: int) -> str:
    """Draw the position of a span in a document of ``length`` tokens: ``[....====....]``, and its token numbers."""
    width = min(BAR_WIDTH, length)
    first = span[0] * width // length
    last = max(-(-span[1] * width // length), first + 1)
    bar = "." * first + "=" * (last - first) + "." * (width - last)
    return f"[{bar}] {span[0]}-{span[1]}"


@dataclass(frozen=True)
class _Run:
    """Adjacent tokens with the same mark: their text, the mark, and whether white space comes before and after."""

    text: str
    fate: str
    moved: bool
    begins_word: bool
    space_follows: bool


class ViewTotals:
    """Counts over marked views: tokens of their texts (without ``<s>`` and ``</s>``), words, spans, and what changed.

    ``deletes_spans`` says that each run of deleted tokens comes from one span of del-span, or from several that touch.
    """

    def __init__(self, *, deletes_spans: bool = False) -> None:
        self.deletes_spans, self.counts = deletes_spans, Counter[str]()

    def add(self, marked: MarkedView, shown_length: int, words: int, substituted: int) -> None:
        """Count a view with ``shown_length`` tokens after cutting; steps read ``words`` words and replaced ``substituted``."""
        runs = [len(list(run)) for is_deleted, run in groupby(marked.deleted.tolist()) if is_deleted]
        changed = {"deleted": int(marked.deleted.sum()), "moved": int(marked.moved.sum()), "substituted": substituted}
        lengths = {"view_length": shown_length, "text_length": len(marked.text), "tokens": max(len(marked.text) - 2, 0)}
        self.counts.update(changed | lengths, views=1, words=words, runs=len(runs), single_runs=runs.count(1))

    def add_span(self, span: tuple[int, int]) -> bool:
        """Count a span of a document; return whether it has only one token."""
        is_single = span[1] - span[0] == 1
        self.counts.update(spans=1, single_spans=int(is_single))
        return is_single

    def warnings(self) -> list[str]:
        """Return a warning for each kind of span of which some have only one token."""
        count, lines = self.counts, []
        if count["single_spans"]:
            lines.append(
                f"{count['single_spans']:,} of {count['spans']:,} spans have ONE TOKEN: with --views span, longer documents, "
                "fewer anchors, a smaller max or a greater min make them longer"
            )
        if self.deletes_spans and count["single_runs"]:
            lines.append(
                f"{count['single_runs']:,} of {count['runs']:,} deleted spans have ONE TOKEN: a span has ratio x tokens of the "
                "text, so short texts need a greater ratio, or longer texts (--sample-break-mode complete)"
            )
        return lines

    def summary(self) -> str:
        """Return the last line, with the shares of changed tokens and words."""
        count = self.counts
        tokens, words, texts = (max(count[name], 1) for name in ("tokens", "words", "text_length"))
        of_words = f"{count['substituted'] / words:.1%} of {words:,} words" if count["words"] else "no word"
        closing = (
            f"{count['views']:,} views: {count['deleted'] / tokens:.1%} of {count['tokens']:,} tokens deleted, "
            f"{count['moved'] / tokens:.1%} moved, {of_words} substituted; length of view over length of text "
            f"{count['view_length'] / texts:.3f}"
        )
        changed = count["deleted"] or count["moved"] or count["substituted"]
        return closing if changed else f"{closing}; the augmentation changed nothing"


class ViewPrinter:
    """Formats marked views as text, with brackets and, if wanted, ANSI colours. ``symbols`` are the dictionary's, by id."""

    def __init__(self, symbols: Sequence[str], tokenizer: Tokenizer, *, colour: bool) -> None:
        self.symbols, self.tokenizer, self.colour = symbols, tokenizer, colour
        special = [symbol in SILENT_SYMBOLS or symbol in VISIBLE_SYMBOLS - {"<unk>"} for symbol in symbols]
        starts = [tokenizer.is_word_start(symbol) for symbol in symbols]
        self.words = Words(np.array(starts, np.bool_), np.array(special, np.bool_))

    def legend(self) -> str:
        """Return the legend of the marks."""
        return "  ".join(
            [
                self._paint("[-deleted-]", "deleted"),
                self._paint("<del>", "gap") + " where something was deleted",
                self._paint("[+inserted+]", "inserted"),
                self._paint("{+moved+}", "moved"),
                self._paint("old\u2192new", "substituted") + " substituted",
            ]
        )

    def text_line(self, marked: MarkedView) -> str:
        """Format the text, with deleted tokens in brackets."""
        fates = ["deleted" if is_deleted else "kept" for is_deleted in marked.deleted]
        return self._line(self._runs(marked.text, fates, np.zeros(len(fates), np.bool_)))

    def view_line(self, marked: MarkedView, shown_length: int) -> str:
        """Format the view, with moved tokens and substituted words marked, cut to ``shown_length`` tokens as in training."""
        cut = shown_length < len(marked.view)
        keep = shown_length - 1 if cut else len(marked.view)  # the last token that training keeps is </s>
        is_gap = self.words.is_special[marked.view]  # other new tokens are words
        fates = [
            "kept" if source >= 0 else "gap" if gap else "inserted"
            for source, gap in zip(marked.source, is_gap, strict=True)
        ]
        for place in np.flatnonzero(marked.view_substituted):
            fates[place] = f"substituted:{marked.source[place]}"
        line = self._line(self._runs(marked.view[:keep], fates[:keep], marked.view_moved[:keep], marked))
        return f"{line} ... (cut at {shown_length} tokens)" if cut else line

    def _runs(
        self, tokens: Tokens, fates: Sequence[str], moved: Bools, marked: MarkedView | None = None
    ) -> Iterator[_Run]:
        begins = self.words.begins(tokens)
        inner = range(len(tokens))
        if len(tokens) and self.symbols[tokens[0]] == "<s>":
            inner = inner[1:]
        if len(inner) and self.symbols[tokens[inner[-1]]] == "</s>":
            inner = inner[:-1]
        for (fate, is_moved), group in groupby(inner, key=lambda place: (fates[place], bool(moved[place]))):
            places = list(group)
            text, space_follows = self._decode(tokens[places])
            kind, _, position = fate.partition(":")
            if kind == "substituted" and marked is not None:
                old = marked.text[marked.word == marked.word[int(position)]]
                text = f"{self._decode(old)[0]}\u2192{text}"
            yield _Run(text, kind, is_moved, bool(begins[places[0]]), space_follows)

    def _line(self, runs: Iterable[_Run]) -> str:
        line, space_due = "", False
        for is_moved, group in groupby(runs, key=lambda run: run.moved):
            members = list(group)
            line += " " if line and (space_due or members[0].begins_word) else ""
            span = self._mark(members[0])
            for before, run in pairwise(members):
                span += (" " if before.space_follows or run.begins_word else "") + self._mark(run)
            line += self._paint("{+", "moved") + span + self._paint("+}", "moved") if is_moved else span
            space_due = members[-1].space_follows
        return line or "(empty)"

    def _mark(self, run: _Run) -> str:
        text = {"deleted": f"[-{run.text}-]", "inserted": f"[+{run.text}+]"}.get(run.fate, run.text)
        kind = "moved" if run.moved and run.fate == "kept" else run.fate
        return self._paint(text, kind)

    def _decode(self, tokens: Tokens) -> tuple[str, bool]:
        """Return the text of tokens, and whether it ends in white space, as after a piece that is only white space.

        If the text is only white space, symbols are shown instead; so is ``</s>`` inside a text, where a block joins sentences.
        """
        parts = []
        for is_silent, group in groupby((self.symbols[token] for token in tokens), key=SILENT_SYMBOLS.__contains__):
            symbols = list(group)
            parts.append(" ".join(symbols) if is_silent else self.tokenizer.decode(symbols))
        text = " ".join(part if part.isspace() else part.strip() for part in parts)
        return text.strip() or "".join(self.symbols[token] for token in tokens), parts[-1][-1:].isspace()

    def _paint(self, text: str, kind: str) -> str:
        return f"{_COLOURS[kind]}{text}{_RESET}" if self.colour and kind in _COLOURS else text


def draw_item(index: int, epoch: int, maker: ViewMaker, printer: ViewPrinter, totals: ViewTotals) -> Iterator[str]:
    """Yield lines that show the texts and views of an item, and count the views in ``totals``."""
    traced = maker.trace(index, epoch)
    if not traced:
        yield f"\n#{index}: makes no pair"
    delete = printer.symbols.index("<del>")
    for number, (pair, views) in enumerate(traced, 1):
        yield f"\n#{index}" + (f", pair {number} of {len(traced)}" if len(traced) > 1 else "")
        if pair.document >= 0:
            yield from _draw_spans(pair, maker.source, totals)
        # without augmentation, equal texts are shown once
        lines: dict[str, list[str]] = {}  # line -> numbers of its texts
        for role, (text, view) in enumerate(zip((pair.anchor, *pair.positives), views, strict=True), 1):
            may_substitute = maker.augment.needs_synonyms
            marked = mark_view(
                text, view.tokens, view.source, printer.words, delete=delete, may_substitute=may_substitute
            )
            shown = len(maker.cut(view.tokens))
            totals.add(marked, shown, view.words, view.substituted)
            if maker.augment.is_identity:
                lines.setdefault(printer.view_line(marked, shown), []).append(str(role))
            else:
                yield f"  text {role}  {printer.text_line(marked)}"
                yield f"  view {role}  {printer.view_line(marked, shown)}"
        yield from (f"  text {', '.join(roles)}  {line}" for line, roles in lines.items())


def _draw_spans(pair: RawInstance, source: Any, totals: ViewTotals) -> Iterator[str]:
    length = int(source.documents.lengths[pair.document])
    yield f"  document {pair.document + 1} (line {source.documents.first_line(pair.document)}), {length} tokens"
    for role, span in enumerate(pair.spans, 1):
        is_single = totals.add_span(span)
        kind = "anchor" if role == 1 else kind_of(pair.spans[0], span)
        yield f"  span {role}  {draw_span(span, length)} {kind}" + ", ONE TOKEN" * is_single
