"""Pairs of different texts with the same meaning, such as back-translations; and hard negatives, which differ in meaning.

Line n of the folder ``DATA/paraphrase/NAME`` has the same meaning as line n of ``DATA``. ``fairseq-clear prepare --paraphrase``
makes such folders; so does fairseq-preprocess with the same ``dict.txt`` for a text with the same number of lines.
"""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.seeding import Draws
from fairseq_clear.text.documents import content_hashes, lines_of
from fairseq_clear.text.sentence_dataset import SentenceDataset
from fairseq_clear.tokens import Ragged, Tokens, interleave, place_rows
from fairseq_clear.views.view_source import FRAME, Pairs, TokenSource, ViewSource, negative_hashes

logger = logging.getLogger(__name__)

ORIGINAL = "original"
PARAPHRASES = "paraphrase"


class AlignedSentences:
    """A data set whose lines are aligned with the sentences ``originals``. A blank line is replaced by the sentence.

    Attributes:
        is_blank: (sentences,) bool, whether the line is blank.

    Raises:
        UserError: ``dataset`` and ``originals`` differ in the number of lines, blank lines included.
    """

    def __init__(self, originals: SentenceDataset, dataset: Any, name: str) -> None:
        found, wanted = len(dataset), len(originals.text.sizes)
        if found != wanted:
            raise UserError(
                f"{name}: has {found} lines, but the text {wanted}: line n of both must correspond; make both "
                "with one call of fairseq-clear prepare --paraphrase"
            )
        self.originals, self.text = originals, lines_of(dataset)
        full = np.asarray(dataset.sizes)[originals.lines]
        self.is_blank = full <= 1
        self.sizes = np.where(self.is_blank, originals.sizes, np.minimum(full + 1, originals.max_tokens))
        blank = np.count_nonzero(self.is_blank)
        logger.info("%s: %d sentences, %d of them blank (replaced by the original)", name, len(originals), blank)

    def rows(self, indices: Tokens) -> Ragged:
        """Return several texts."""
        own, is_blank = self.originals, self.is_blank[indices]
        full, blank = np.flatnonzero(~is_blank), np.flatnonzero(is_blank)
        lines, lengths = own.lines[indices[full]].astype(np.int64), self.sizes[indices[full]].astype(np.int64) - FRAME
        found = self.text.framed(lines, 0, lengths, own.bos, own.eos)
        return place_rows(len(indices), [(full, found), (blank, own.rows(indices[blank]))]) if len(blank) else found


def aligned_folder(data: str, name: str) -> str:
    """The folder of the aligned data set ``name`` of a data folder: one in its ``paraphrase/``, or a path of its own."""
    folder = os.path.join(data, PARAPHRASES, name)
    is_path = os.sep in name or (not os.path.isdir(folder) and os.path.isdir(name))
    return name if is_path else folder


def aligned_sentences(originals: Any, name: str, load: Callable[[str], Any], *, flag: str) -> AlignedSentences:
    """Load the data set of this name, aligned with the sentences ``originals`` of a data folder.

    Args:
        name: name of a folder in ``paraphrase/``, or path of a data folder.
        load: returns the data set with a prefix such as ``DATA/train``, or None if there is none.

    Raises:
        UserError: the texts are not lines, the data set does not exist, or the numbers of lines differ.
    """
    prefix = getattr(originals, "prefix", None)
    if prefix is None:
        raise UserError(f"{flag}: texts must be whole lines of a data folder: give --sample-break-mode eos")
    data, split = os.path.split(prefix)
    path = os.path.join(aligned_folder(data, name), split)
    dataset = load(path)
    if dataset is None:
        known = os.path.join(data, PARAPHRASES)
        names = sorted(os.listdir(known)) if os.path.isdir(known) else []
        there = f"; there are {', '.join([ORIGINAL, *names])}" if names else ""
        raise UserError(f"{flag} {name}: {path} does not exist{there}; make it with fairseq-clear prepare --paraphrase")
    return AlignedSentences(originals, dataset, path)


class Paraphrases(ViewSource):
    """Texts with the same meaning: the first name is the anchor, the others are its positives.

    CERT section 4 pairs two back-translations, Self-Guided section 6 the original and one back-translation. The name
    ``original`` stands for ``originals``, ``aligned`` returns the data set of any other. A blank paraphrase is replaced by the
    original.
    """

    mlm_input: TokenSource

    def __init__(self, originals: TokenSource, aligned: Callable[[str], TokenSource], names: Sequence[str]) -> None:
        if len(names) < 2 or len(set(names)) < len(names):
            raise UserError(
                "--views paraphrase: give two or more different texts, as in paraphrase:original,de or paraphrase:de,zh"
            )
        self.mlm_input = originals
        self.sources = [originals if name == ORIGINAL else aligned(name) for name in names]
        self.positives = len(names) - 1
        self.text_lengths = np.stack([source.sizes for source in self.sources], axis=1).astype(np.int64)

    def pairs(self, indices: Tokens, draws: Draws) -> Pairs:
        """Return the pairs of sentences; nothing is random."""
        originals = self.mlm_input.rows(indices)
        found = [originals if source is self.mlm_input else source.rows(indices) for source in self.sources]
        others = [content_hashes(texts) for texts in found if texts is not originals]
        identity = np.column_stack([content_hashes(originals), *others])
        return Pairs(interleave(found), identity, fell_back=count_blank(self.sources, indices))


class WithHardNegatives(ViewSource):
    """Adds hard negatives to each instance of another source: texts that differ in meaning (SimCSE section 4).

    All data sets are aligned with the ``originals``; ``source`` makes one pair from each. A blank hard negative is replaced
    by the original, by whose hash the criterion knows that it is a candidate of no query.
    """

    mlm_input: TokenSource

    def __init__(self, source: ViewSource, negatives: Sequence[TokenSource], originals: TokenSource) -> None:
        self.source, self.aligned, self.mlm_input = source, negatives, originals
        self.positives, self.negatives = source.positives, len(negatives)
        self.text_lengths = np.column_stack([source.text_lengths, *(some.sizes for some in negatives)])

    def pairs(self, indices: Tokens, draws: Draws) -> Pairs:
        """Return the pairs of sentences, with their hard negatives."""
        pairs = self.source.pairs(indices, draws)
        negatives = interleave([some.rows(indices) for some in self.aligned])
        missing = count_blank(self.aligned, indices)
        each = pairs.each + self.negatives
        rows = np.arange(len(indices) * each).reshape(len(indices), each)
        before, after = (part.reshape(-1) for part in np.split(rows, [pairs.each], axis=1))
        texts = place_rows(rows.size, [(before, pairs.texts), (after, negatives)])
        return Pairs(texts, pairs.identity, negative_hashes(negatives, pairs.identity), pairs.fell_back + missing)


def count_blank(sources: Sequence[TokenSource], indices: Tokens) -> int:
    """Return how many of these texts of aligned data sets are blank, and so replaced."""
    return sum(int(source.is_blank[indices].sum()) for source in sources if isinstance(source, AlignedSentences))
