"""The words of a batch of texts against the oracle."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.augmentations.words import Words
from fairseq_clear.tokens import Ragged
from tests.augmentations.cases import CONTENTS, ROWS, SYMBOLS, array, is_word, split_words


@given(st.lists(st.one_of(CONTENTS, st.just([])), max_size=4))
@settings(max_examples=200, deadline=None)
def test_words_of_every_text(contents):
    words, starts, rows, special, texts = Words(Ragged.of(list(map(array, contents))), SYMBOLS), [], [], [], []
    begin = 0
    for number, content in enumerate(contents):
        for start, end in split_words(content):
            word = tuple(content[start:end])
            starts.append((begin + start, begin + end))
            rows.append(list(ROWS).index(word) if word in ROWS else -1)
            special.append(not is_word(content, start))
            texts.append(number)
        begin += len(content)
    assert list(zip(words.starts, words.starts + words.lengths, strict=True)) == starts
    assert (words.rows.tolist(), words.is_special.tolist(), words.text_of.tolist()) == (rows, special, texts)
    ordinary = [sum(not s for s, t in zip(special, texts, strict=True) if t == n) for n in range(len(contents))]
    assert words.ordinary.tolist() == ordinary
