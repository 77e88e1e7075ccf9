"""The words of a text against the oracle, and what is remembered of the last one."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from fairseq_clear.augmentations.words import Words, read_words
from tests.augmentations.cases import CONTENTS, ROWS, SYMBOLS, array, is_word, split_words


def described(words: Words) -> list[list[int]]:
    return [part.tolist() for part in (words.starts, words.lengths, words.is_special, words.rows)]


@given(CONTENTS, CONTENTS)
@settings(max_examples=200, deadline=None)
def test_words_of_a_text_whatever_was_asked_before(first, second):
    for content in (first, second, second, first):
        words, spans = read_words(array(content), SYMBOLS), split_words(content)
        assert list(zip(words.starts, words.starts + words.lengths, strict=True)) == spans
        assert (~words.is_special).tolist() == [is_word(content, start) for start, _ in spans]
        assert words.ordinary == sum(is_word(content, start) for start, _ in spans)
        texts = [tuple(content[start:end]) for start, end in spans]
        assert words.rows.tolist() == [list(ROWS).index(text) if text in ROWS else -1 for text in texts]


def test_the_last_text_is_remembered_but_not_another_nor_with_other_symbols():
    text = np.array([4, 5, 6])
    words = read_words(text, SYMBOLS)
    assert read_words(text.copy(), SYMBOLS) is words
    other = replace(SYMBOLS, delete=5)
    assert read_words(text, other).is_special.tolist() == [False, True, False]
    assert read_words(text, SYMBOLS).ordinary == 3
    # a caller may write into the array that it gave; what is looked up later is of the text as it was
    before = read_words(text, SYMBOLS)
    text[:] = SYMBOLS.eos
    assert before.rows.tolist() == described(Words(np.array([4, 5, 6]), SYMBOLS))[3]
    assert read_words(text, SYMBOLS).ordinary == 0
