"""Three made-up languages in which meaning is checkable: the same sentences in each, other words, another order.

English has two or three words for most meanings, drawn at random, so that translating into it is a choice; ``gerlan`` and
``sinlan`` have exactly one word a meaning. A round trip over either is therefore a true paraphrase where ``parse`` finds the
meaning it began with.
"""

import random
from collections.abc import Sequence

# A meaning is named by the first of its words; every word belongs to one meaning alone.
NOUNS = [
    ("car", "automobile", "vehicle"),
    ("child", "kid", "youngster"),
    ("doctor", "physician", "medic"),
    ("shop", "store"),
    ("film", "movie", "picture"),
    ("house", "home", "dwelling"),
    ("road", "street"),
    ("dog", "hound"),
    ("teacher", "instructor", "tutor"),
    ("present", "gift"),
    ("lady", "woman"),
    ("stone", "rock"),
    ("sea", "ocean"),
    ("forest", "wood"),
    ("boat", "ship", "vessel"),
    ("thief", "robber"),
    ("meal", "supper", "dinner"),
    ("friend", "pal", "companion"),
]
VERBS = [
    ("buys", "purchases"),
    ("sees", "spots", "notices"),
    ("begins", "starts"),
    ("likes", "enjoys", "loves"),
    ("repairs", "fixes", "mends"),
    ("hides", "conceals"),
    ("finds", "discovers", "locates"),
    ("builds", "constructs"),
    ("needs", "requires"),
    ("chooses", "picks", "selects"),
]
ADJECTIVES = [
    ("big", "large", "huge"),
    ("small", "little", "tiny"),
    ("quick", "fast", "rapid"),
    ("happy", "glad", "cheerful"),
    ("strange", "odd", "weird"),
    ("clever", "smart", "bright"),
    ("silent", "quiet"),
    ("old", "ancient"),
]
ADVERBS = [("often", "frequently"), ("rarely", "seldom"), ("now", "presently"), ("maybe", "perhaps")]
PREPOSITIONS = [("near", "beside"), ("behind",), ("under", "beneath", "below")]
DETERMINERS = [("the",), ("a",), ("every", "each")]

Concepts = list[tuple[str, ...]]
KINDS: dict[str, Concepts] = {
    "D": DETERMINERS,
    "A": ADJECTIVES,
    "N": NOUNS,
    "R": ADVERBS,
    "V": VERBS,
    "P": PREPOSITIONS,
}
MEANINGS = {word: (kind, words[0]) for kind, concepts in KINDS.items() for words in concepts for word in words}

# A clause: adverb, subject, verb, object, place, each a list of concepts, the adverb and the place perhaps empty.
Clause = dict[str, list[str]]
ORDERS = {
    "english": ("adverb", "subject", "verb", "object", "place"),
    "gerlan": ("subject", "object", "place", "adverb", "verb"),
    "sinlan": ("place", "verb", "object", "subject", "adverb"),
}
SYLLABLES = {
    "gerlan": ("schra", "gen", "bur", "zahl", "wick", "tor", "mund", "stau", "feld", "krei"),
    "sinlan": ("xi", "zhao", "qu", "ming", "lao", "tun", "bei", "shu", "wo", "dan"),
}


def random_clause(rng: random.Random) -> Clause:
    """A clause of 5 to 12 words."""

    def concept(kind: str) -> str:
        return rng.choice(KINDS[kind])[0]

    def phrase() -> list[str]:
        return [concept("D"), *([concept("A")] if rng.random() < 0.5 else []), concept("N")]

    return {
        "adverb": [concept("R")] if rng.random() < 0.3 else [],
        "subject": phrase(),
        "verb": [concept("V")],
        "object": phrase(),
        "place": [concept("P"), *phrase()] if rng.random() < 0.3 else [],
    }


def say(clause: Clause, language: str, rng: random.Random) -> str:
    """The clause as a sentence; in English every word is drawn from its synonyms."""
    concepts = [concept for part in ORDERS[language] for concept in _phrase(clause[part], language)]
    if language == "english":
        words = [rng.choice(next(w for w in KINDS[MEANINGS[c][0]] if w[0] == c)) for c in concepts]
    else:
        words = [foreign_word(concept, language) for concept in concepts]
    return " ".join(words)


def _phrase(concepts: list[str], language: str) -> list[str]:
    """Outside English the adjective follows its noun and the preposition its phrase."""
    if language == "english":
        return concepts
    kinds = "".join(MEANINGS[concept][0] for concept in concepts)
    if kinds.startswith("P"):
        return [*_phrase(concepts[1:], language), concepts[0]]
    return [concepts[0], concepts[2], concepts[1]] if kinds == "DAN" else concepts


def foreign_word(concept: str, language: str) -> str:
    """The one word of a meaning: two syllables by its place in the list of all meanings."""
    place = _PLACES[concept]
    syllables = SYLLABLES[language]
    return syllables[place % 10] + syllables[place // 10 % 10]


_PLACES = {words[0]: place for place, words in enumerate(words for kind in KINDS.values() for words in kind)}


def parse(sentence: str) -> tuple[tuple[str, str], ...] | None:
    """What an English sentence means: its concepts in order, whatever synonyms it uses; None if it is no sentence."""
    words = sentence.split()
    if any(word not in MEANINGS for word in words):
        return None
    return tuple(MEANINGS[word] for word in words)


def parallel(count: int, seed: int, languages: Sequence[str]) -> list[tuple[str, ...]]:
    """``count`` random sentences, each in all of the languages."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        clause = random_clause(rng)
        rows.append(tuple(say(clause, language, rng) for language in languages))
    return rows
