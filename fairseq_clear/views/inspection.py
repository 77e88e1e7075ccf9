"""Finds what an augmentation changed in a text, and formats texts and views with brackets and colours that show it."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from fairseq_clear.text.tokenizers import SILENT_SYMBOLS, VISIBLE_SYMBOLS, Tokenizer
from fairseq_clear.tokens import Bools, Tokens
from fairseq_clear.views.span_views import kind_of
from fairseq_clear.views.view_maker import ViewMaker

# mark -> its brackets, ANSI colour, and example and meaning in the legend
MARKS = {
    "deleted": ("[-{}-]", "\033[9;31m", "deleted", ""),
    "inserted": ("[+{}+]", "\033[32m", "inserted", ""),
    "moved": ("{{+{}+}}", "\033[36m", "moved", ""),
    "gap": ("{}", "\033[31m", "<del>", " where something was deleted"),
    "substituted": ("{}", "\033[33m", "old\u2192new", " substituted"),
}


@dataclass(frozen=True)
class MarkedView:
    """A text, one of its views, and marks.

    Attributes:
        text: (n,) token ids, with ``<s>`` and ``</s>``.
        view: (m,) token ids.
        source: (m,) position in the text of each token of the view; -1 for new tokens, such as ``<del>``.
        word: (n,) position at which the word of each token of the text begins.
        deleted: (n,) bool, tokens of the text that the view does not have.
        moved, substituted: (m,) bool, marks of the view's tokens.
    """

    text: Tokens
    view: Tokens
    source: Tokens
    word: Tokens
    deleted: Bools
    moved: Bools
    substituted: Bools


def mark_view(text: Tokens, view: Tokens, source: Tokens, begins: Bools) -> MarkedView:
    """Derive the marks of a view from ``source``, the positions in the text (n,) that the tokens of the view (m,) come from.

    * Substituted: in words with a changed or repeated token, all tokens except those that stayed, such as a comma at the end.
    * Deleted: tokens that do not occur in the view, except pieces of substituted words.
    * Moved: the smallest set of tokens whose move explains the order of the view. If two neighbouring spans changed places, it
      is the shorter one.

    ``begins`` (n,) bool says where words of the text begin.
    """
    starts = np.flatnonzero(begins)
    word = np.repeat(starts, np.diff(starts, append=len(text)))  # (n,)
    old = source >= 0
    counts = np.bincount(source[old], minlength=len(text))  # (n,)
    changed = counts > 1
    changed[source[old][text[source[old]] != view[old]]] = True
    in_changed_word = np.isin(word, word[changed])
    replaced: Bools = in_changed_word & (changed | (counts != 1))  # (n,)
    moved, substituted = np.zeros(len(view), np.bool_), np.zeros(len(view), np.bool_)
    moved[old], substituted[old] = ~longest_ordered(source[old].tolist()), replaced[source[old]]
    return MarkedView(text, view, source, word, (counts == 0) & ~replaced, moved, substituted)


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


class ViewPrinter:
    """Formats marked views as text.

    Args:
        symbols: the dictionary's, by id.
        tokenizer: decodes them.
        colour: use ANSI colours.
    """

    def __init__(self, symbols: Sequence[str], tokenizer: Tokenizer, *, colour: bool) -> None:
        self.symbols, self.tokenizer, self.colour = symbols, tokenizer, colour
        special = [symbol in SILENT_SYMBOLS or symbol in VISIBLE_SYMBOLS - {"<unk>"} for symbol in symbols]
        self.is_special = np.array(special, np.bool_)  # (vocabulary,), a word of its own
        self.is_start = self.is_special | np.array([tokenizer.is_word_start(symbol) for symbol in symbols], np.bool_)

    def begins(self, tokens: Tokens) -> Bools:
        """Find where words of ``tokens`` (n,) begin: (n,) bool. The first token always begins a word."""
        begins = self.is_start[tokens]
        begins[:1] = True
        begins[1:] |= self.is_special[tokens[:-1]]
        return begins

    def legend(self) -> str:
        """Return the legend of the marks."""
        return "  ".join(self._paint(example, name) + meaning for name, (_, _, example, meaning) in MARKS.items())

    def text_line(self, marked: MarkedView) -> str:
        """Format the text, with deleted tokens in brackets."""
        return self._line(marked.text, [(False, "deleted" if is_deleted else "", -1) for is_deleted in marked.deleted])

    def view_line(self, marked: MarkedView, shown_length: int) -> str:
        """Format the view, with moved tokens and substituted words marked, cut to ``shown_length`` tokens as in training."""
        kinds = [marked.substituted, marked.source >= 0, self.is_special[marked.view]]
        kind = np.select(kinds, ["substituted", "", "gap"], "inserted").tolist()
        word = np.where(marked.substituted, marked.word[marked.source], -1).tolist()
        marks = list(zip(marked.moved.tolist(), kind, word, strict=True))
        if shown_length == len(marked.view):
            return self._line(marked.view, marks, marked)
        kept = marked.view[: shown_length - 1]  # the last token that training keeps is </s>
        return f"{self._line(kept, marks, marked)} ... (cut at {shown_length} tokens)"

    def _line(self, tokens: Tokens, marks: Sequence[tuple[bool, str, int]], marked: MarkedView | None = None) -> str:
        """Format tokens in runs of equal marks: whether it moved, name in MARKS, and of a substitute the word it replaced."""
        first, last = self.symbols[tokens[0]] == "<s>", len(tokens) - (self.symbols[tokens[-1]] == "</s>")
        begins = self.begins(tokens)
        line, space_due = "", False
        for (is_moved, kind, word), run in groupby(range(first, last), key=marks.__getitem__):
            places = list(run)
            text, ends_in_space = self._decode(tokens[places])
            if marked is not None and kind == "substituted":
                text = f"{self._decode(marked.text[marked.word == word])[0]}\u2192{text}"
            for name in filter(None, (kind, "moved" * is_moved)):
                text = self._paint(text, name)
            line += f" {text}" if line and (space_due or begins[places[0]]) else text
            space_due = ends_in_space
        return line or "(empty)"

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

    def _paint(self, text: str, name: str) -> str:
        brackets, colour, *_ = MARKS[name]
        return f"{colour}{brackets.format(text)}\033[0m" if self.colour else brackets.format(text)


def draw_item(index: int, epoch: int, maker: ViewMaker, printer: ViewPrinter) -> Iterator[str]:
    """Yield lines that show the texts and views of an item."""
    made = maker(np.array([index]), epoch, traced=True)
    pairs, source = made.pairs, maker.source
    number_of = len(pairs.identity)
    for number in range(number_of):
        yield f"\n#{index}" + (f", pair {number + 1} of {number_of}" if number_of > 1 else "")
        if pairs.document is not None and pairs.spans is not None:
            documents: Any = source.documents  # type: ignore[attr-defined]
            document, spans = int(pairs.document[number]), [tuple(span) for span in pairs.spans[number].tolist()]
            length = int(documents.lengths[document])
            yield f"  document {document + 1} (line {documents.first_line(document)}), {length} tokens"
            for role, span in enumerate(spans, 1):
                kind = "anchor" if role == 1 else kind_of(spans[0], span)
                yield f"  span {role}  tokens {span[0]} to {span[1]}, {kind}"
        for role in range(pairs.each):
            row = number * pairs.each + role
            text, begin = pairs.texts[row], pairs.texts.offsets[row]
            where = made.augmented.source[slice(*made.augmented.views.offsets[row : row + 2])]
            origin = np.where(where < 0, -1, where - begin)
            marked = mark_view(text, made.augmented.views[row], origin, printer.begins(text))
            what = ", hard negative" if role > source.positives else ""
            if not maker.augment.is_identity:
                yield f"  text {role + 1}{what}  {printer.text_line(marked)}"
            yield f"  view {role + 1}{what}  {printer.view_line(marked, len(made.views[row]))}"
