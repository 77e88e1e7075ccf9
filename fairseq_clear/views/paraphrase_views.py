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
from fairseq_clear.text.documents import content_hashes, map_lines
from fairseq_clear.text.sentence_dataset import SentenceDataset
from fairseq_clear.tokens import Ragged, Tokens, as_tokens, interleave, place_rows
from fairseq_clear.views.view_source import FRAME, Pairs, TokenSource, ViewSource, read_rows

logger = logging.getLogger(__name__)

ORIGINAL = "original"
PARAPHRASES = "paraphrase"


class AlignedSentences:
    """A data set whose lines are aligned with the sentences of ``texts``; a blank line is an empty text.

    Raises:
        UserError: ``dataset`` has another number of lines than that of ``texts``, blank ones included.
    """

    def __init__(self, texts: SentenceDataset, dataset: Any, name: str) -> None:
        found, wanted = len(dataset), len(texts.dataset)
        if found != wanted:
            raise UserError(
                f"{name}: has {found} lines, but the text {wanted}: line n of both must correspond; make both "
                "with one call of fairseq-clear prepare --paraphrase"
            )
        self.texts, self.dataset, self.mapped = texts, dataset, map_lines(dataset)
        full = np.asarray(dataset.sizes)[texts.lines]
        self.sizes = np.where(full > 1, np.minimum(full + 1, texts.max_tokens), 0)
        blank = int((self.sizes == 0).sum())
        logger.info("%s: %d sentences, %d of them blank (replaced by the original)", name, len(texts), blank)

    def __len__(self) -> int:
        return len(self.texts)

    def rows(self, indices: Tokens) -> Ragged:
        """Return several texts."""
        own = self.texts
        if self.mapped is None or own.max_tokens < 3:
            return Ragged.of([as_tokens(self[index]) for index in indices.tolist()])
        lines = own.lines[indices].astype(np.int64)
        lengths = self.mapped.sizes[lines].astype(np.int64) - 1
        full = lengths > 0
        kept = np.minimum(lengths[full], own.part_tokens)
        found = self.mapped.framed(lines[full], 0, kept, own.bos, own.eos)
        return Ragged.of_lengths(found.tokens, np.where(full, np.minimum(lengths, own.part_tokens) + FRAME, 0))

    def __getitem__(self, index: int) -> Any:
        line = self.dataset[self.texts.lines[index]]
        return self.texts.frame(line) if len(line) > 1 else line[:0]


def aligned_sentences(texts: Any, name: str, load: Callable[[str], Any], *, flag: str) -> AlignedSentences:
    """Load the data set of this name, aligned with the sentences ``texts`` of a data folder.

    Args:
        name: name of a folder in ``paraphrase/``, or path of a data folder.
        load: returns the data set with a prefix such as ``DATA/train``, or None if there is none.

    Raises:
        UserError: the texts are not lines, the data set does not exist, or the numbers of lines differ.
    """
    prefix = getattr(texts, "prefix", None)
    if prefix is None:
        raise UserError(f"{flag}: texts must be whole lines of a data folder: give --sample-break-mode eos")
    data, split = os.path.split(prefix)
    folder = os.path.join(data, PARAPHRASES, name)
    if os.sep in name or (not os.path.isdir(folder) and os.path.isdir(name)):
        folder = name
    path = os.path.join(folder, split)
    dataset = load(path)
    if dataset is None:
        known = os.path.join(data, PARAPHRASES)
        names = sorted(os.listdir(known)) if os.path.isdir(known) else []
        there = f"; there are {', '.join([ORIGINAL, *names])}" if names else ""
        raise UserError(f"{flag} {name}: {path} does not exist{there}; make it with fairseq-clear prepare --paraphrase")
    return AlignedSentences(texts, dataset, path)


class Paraphrases(ViewSource):
    """Texts with the same meaning: the first name is the anchor, the others are its positives.

    CERT section 4.1 pairs two back-translations, Self-Guided section 6 the original and one back-translation. The name
    ``original`` stands for ``texts``, ``aligned`` returns the data set of any other. A blank paraphrase is replaced by the
    original.
    """

    mlm_input: TokenSource

    def __init__(self, texts: TokenSource, aligned: Callable[[str], TokenSource], names: Sequence[str]) -> None:
        if len(names) < 2 or len(set(names)) < len(names):
            raise UserError(
                "--views paraphrase: give two or more different texts, as in paraphrase:original,de or paraphrase:de,zh"
            )
        self.mlm_input = texts
        self.sources = [texts if name == ORIGINAL else aligned(name) for name in names]
        self.positives = len(names) - 1
        lengths = [np.where(np.asarray(source.sizes) > 0, source.sizes, texts.sizes) for source in self.sources]
        self.text_lengths = np.stack(lengths, axis=1).astype(np.int64)

    def pairs(self, indices: Tokens, draws: Draws) -> Pairs:
        """Return the pairs of sentences; nothing is random."""
        originals = read_rows(self.mlm_input, indices)
        others = [originals if source is self.mlm_input else read_rows(source, indices) for source in self.sources]
        found = [fill_blank(texts, originals) for texts in others]
        missing = sum(int((texts.lengths == 0).sum()) for texts in others)
        return Pairs(interleave(found), content_hashes(originals), np.zeros(0, np.int64), missing)


class WithHardNegatives(ViewSource):
    """Adds hard negatives to each instance of another source: texts that differ in meaning (SimCSE section 4).

    All data sets are aligned with the ``originals``, of which ``source`` makes one pair each. A blank hard negative is replaced
    by the original, which is not a negative of its own views because it is a duplicate.
    """

    mlm_input: TokenSource

    def __init__(self, source: ViewSource, negatives: Sequence[TokenSource], originals: TokenSource) -> None:
        self.source, self.aligned, self.mlm_input = source, negatives, originals
        self.positives, self.negatives = source.positives, len(negatives)
        lengths = [np.where(np.asarray(texts.sizes) > 0, texts.sizes, originals.sizes) for texts in negatives]
        self.text_lengths = np.concatenate([source.text_lengths, np.stack(lengths, axis=1)], axis=1)

    def pairs(self, indices: Tokens, draws: Draws) -> Pairs:
        """Return the pairs of sentences, with their hard negatives."""
        pairs = self.source.pairs(indices, draws)
        originals = read_rows(self.mlm_input, indices)
        others = [read_rows(texts, indices) for texts in self.aligned]
        negatives = interleave([fill_blank(texts, originals) for texts in others])
        missing = sum(int((texts.lengths == 0).sum()) for texts in others)
        each = pairs.each + self.negatives
        rows = np.arange(len(indices) * each).reshape(len(indices), each)
        before, after = (part.reshape(-1) for part in np.split(rows, [pairs.each], axis=1))
        texts = place_rows(rows.size, [(before, pairs.texts), (after, negatives)])
        return Pairs(texts, pairs.identity, content_hashes(negatives), pairs.fell_back + missing)


def fill_blank(texts: Ragged, originals: Ragged) -> Ragged:
    """Replace each empty row by the one of ``originals``."""
    blank = texts.lengths == 0
    if not blank.any():
        return texts
    own, other = np.flatnonzero(~blank), np.flatnonzero(blank)
    return place_rows(len(texts), [(own, texts.select(own)), (other, originals.select(other))])
