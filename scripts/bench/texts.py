"""Texts for the benchmarks that need words, not ids: generated, or the documents of real corpora."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["documents", "generate", "make_words", "neighbours"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
VOCABULARY = 20_000
CONSONANTS, VOWELS = "bcdfghklmnprstvz", "aeiou"


def make_words(count: int = VOCABULARY, seed: int = 1) -> list[str]:
    """``count`` different words of two to four syllables, which a sentencepiece model splits as it splits real words."""
    rng = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < count:
        word = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(2, 4)))
        words[word + rng.choice(("", "", *CONSONANTS))] = None
    return list(words)


def generate(lines: int, words: tuple[int, int], seed: int = 1) -> Iterator[str]:
    """Yield lines of random words, drawn by Zipf's law; ``words`` are the least and the greatest number per line."""
    rng = random.Random(seed)
    vocabulary = make_words()
    cumulative = []
    total = 0.0
    for rank in range(len(vocabulary)):
        total += 1 / (rank + 1)
        cumulative.append(total)
    for _ in range(lines):
        yield " ".join(rng.choices(vocabulary, cum_weights=cumulative, k=rng.randint(*words)))


def documents(corpora: Path, name: str) -> list[str]:
    """The documents of a corpus of examples/measuring.py (20news, movie_reviews, wikitext2), one sentence or line per line."""
    sys.path.insert(0, str(EXAMPLES))
    from measuring import DOCUMENTS

    return DOCUMENTS[name](corpora)


def neighbours(words: list[str], share: float = 0.4, most: int = 8, seed: int = 1) -> dict[str, list[str]]:
    """A table of up to ``most`` synonyms for a share of the words, like the counter-fitted list that CLEAR uses."""
    rng = random.Random(seed)
    return {word: rng.sample(words, rng.randint(1, most)) if rng.random() < share else [] for word in words}
