"""Marks the changes of an augmentation: deleted tokens, moved tokens, substituted words."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fairseq_clear.augmentations.base import Tokens

__all__ = ["Bools", "MarkedView", "Words", "longest_ordered", "mark_view"]

Bools = npt.NDArray[np.bool_]


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
    """Derive the marks of a view from ``source``.

    * Substituted: words of which a token occurs in the view changed or more than once, without the tokens that stayed, such as
      a comma at the end. A substitute may also be the first piece of the word that it replaces; this is assumed if only the
      first piece is left and no ``<del>`` follows it.
    * Deleted: tokens of other words that do not occur in the view.
    * Moved: the smallest set of tokens whose move explains the order of the view. If two neighbouring spans changed places, it
      is the shorter one.

    Args:
        text: (n,) token ids.
        view: (m,) token ids.
        source: (m,) as ``Augmented.source`` of the augmentation.
        words: word boundaries of the vocabulary.
        delete: id of ``<del>``.
        may_substitute: whether a step of the augmentation substitutes words.
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
