"""Finds the tokens by which a multilingual translation model is told its languages (NLLB, M2M100, mBART, OPUS-MT)."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from fairseq_clear.errors import UserError

FORMS = ("{}", "__{}__", ">>{}<<")  # NLLB and mBART, M2M100, OPUS-MT
LANGUAGE = re.compile(r">>[^<>]+<<|__[a-z]{2,3}__|[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2}")
SHOWN = 5


@dataclass(frozen=True)
class LanguageTokens:
    """Tokens to add for the languages of a direction; empty for a model of one language pair.

    Attributes:
        source: tokens before those of the source text.
        target: first tokens of every translation.
    """

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()


def language_tokens(
    vocabulary: Collection[str], languages: tuple[str, str] | None, which: str, path: str
) -> LanguageTokens:
    """Find the language tokens of a model.

    OPUS-MT marks the target language in the source text (``>>por<<``). The other models mark the source language there, and
    start the translation with the target language.

    Args:
        vocabulary: tokens of the model.
        languages: value of ``--forward-languages`` or ``--backward-languages``.
        which: forward or backward, for messages.
        path: path of the model, for messages.

    Raises:
        UserError: the model has several languages and none was given, or it does not know a given one; or languages were
            given for a model of one language pair.
    """
    known = sorted(token for token in vocabulary if LANGUAGE.fullmatch(token))
    if len(known) < 2:
        if languages is not None:
            raise UserError(
                f"--{which}-languages {':'.join(languages)}: {path} has no language tokens in its vocabulary; leave the flag "
                "out if it translates between two languages, else convert or download it again"
            )
        return LanguageTokens()
    shown = ", ".join(token.strip("_<>") for token in known[:SHOWN]) + ", ..." * (len(known) > SHOWN)
    if languages is None:
        raise UserError(
            f"--{which} {path}: translates between several languages ({shown}); add --{which}-languages SOURCE:TARGET"
        )
    source, target = (
        next((form.format(name) for form in FORMS if form.format(name) in vocabulary), None) for name in languages
    )
    if target is not None and target.startswith(">>"):
        return LanguageTokens((target,))
    if target is None and source is not None and source.startswith(">>"):  # OPUS-MT from several languages into one
        return LanguageTokens()
    for name, token in zip(languages, (source, target), strict=True):
        if token is None:
            raise UserError(f"--{which}-languages {':'.join(languages)}: {path} does not know {name}; it has {shown}")
    return LanguageTokens((str(source),), (str(target),))
