"""Three made-up languages in which meaning can be checked. They have the same sentences, with other words and another order.

This English has two or three words for most meanings and draws one at random, so translating into it is a choice. ``gerlan``
and ``sinlan`` have exactly one word per meaning. A round trip through either is therefore a paraphrase if ``parse`` finds the
same meaning as before.
"""

import random
from collections.abc import Sequence

# The first word of a meaning is its name. Every word belongs to exactly one meaning.
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

# A clause has adverb, subject, verb, object and place. Each is a list of concepts; adverb and place may be empty.
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
    """The clause as a sentence; in English each word is drawn at random from the words of its meaning."""
    concepts = [concept for part in ORDERS[language] for concept in _phrase(clause[part], language)]
    if language == "english":
        words = [rng.choice(next(w for w in KINDS[MEANINGS[c][0]] if w[0] == c)) for c in concepts]
    else:
        words = [foreign_word(concept, language) for concept in concepts]
    return " ".join(words)


def _phrase(concepts: list[str], language: str) -> list[str]:
    """Order the concepts of a phrase: except in English, the adjective follows its noun and the preposition its phrase."""
    if language == "english":
        return concepts
    kinds = "".join(MEANINGS[concept][0] for concept in concepts)
    if kinds.startswith("P"):
        return [*_phrase(concepts[1:], language), concepts[0]]
    return [concepts[0], concepts[2], concepts[1]] if kinds == "DAN" else concepts


def foreign_word(concept: str, language: str) -> str:
    """The word of a meaning: two syllables, chosen by its place in the list of all meanings."""
    place = _PLACES[concept]
    syllables = SYLLABLES[language]
    return syllables[place % 10] + syllables[place // 10 % 10]


_PLACES = {words[0]: place for place, words in enumerate(words for kind in KINDS.values() for words in kind)}


def parse(sentence: str) -> tuple[tuple[str, str], ...] | None:
    """The meaning of an English sentence: its concepts in order, the same for all synonyms; None if a word is unknown."""
    words = sentence.split()
    if any(word not in MEANINGS for word in words):
        return None
    return tuple(MEANINGS[word] for word in words)


def parallel(count: int, seed: int, languages: Sequence[str]) -> list[tuple[str, ...]]:
    """``count`` random sentences, each in all given languages."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        clause = random_clause(rng)
        rows.append(tuple(say(clause, language, rng) for language in languages))
    return rows
