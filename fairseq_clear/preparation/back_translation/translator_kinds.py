"""Finds out which library runs the model of ``--forward`` or ``--backward``, and which flags apply to it."""

from dataclasses import fields
from pathlib import Path

import torch

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.ctranslate2_translator import CTranslate2Translator
from fairseq_clear.preparation.back_translation.factory_translator import FactoryTranslator
from fairseq_clear.preparation.back_translation.fairseq_translator import FairseqTranslator
from fairseq_clear.preparation.back_translation.huggingface_translator import HuggingFaceTranslator
from fairseq_clear.preparation.back_translation.translation_settings import (
    PASSES,
    BackTranslateSettings,
    ModelSource,
    Search,
)
from fairseq_clear.preparation.back_translation.translator import Translator
from fairseq_clear.settings import flag_name

# The first that matches is taken.
KINDS: tuple[type[Translator], ...] = (
    CTranslate2Translator,
    HuggingFaceTranslator,
    FairseqTranslator,
    FactoryTranslator,
)


def find_kind(source: ModelSource, which: str) -> type[Translator]:
    """Find the kind of a model.

    Raises:
        UserError: nothing that belongs to a model was found.
    """
    for kind in KINDS:
        if kind.matches(source.path):
            return kind
    looked_for = "; ".join(kind.LOOKED_FOR for kind in KINDS[:-1])
    if Path(source.path).is_dir():
        raise UserError(f"--{which} {source.path}: holds no model; looked for {looked_for}")
    raise UserError(
        f"--{which} {source.path}: no such file or folder, and not of the form {FactoryTranslator.LOOKED_FOR}; give a folder "
        f"with {looked_for}"
    )


def identity(settings: BackTranslateSettings, which: str) -> dict[str, str]:
    """Return the names and hashes of what determines the translations of a direction.

    Raises:
        UserError: the model is missing or incomplete.
    """
    source = settings.source(which)
    found = find_kind(source, which).identity(settings, which)
    return found | {"languages": ":".join(source.languages)} if source.languages else found


def load_translator(settings: BackTranslateSettings, which: str, device: torch.device) -> Translator:
    """Load the model of ``--forward`` or ``--backward`` on the device; UserError as for ``Translator``."""
    return find_kind(settings.source(which), which)(settings, which, device)


def check_flags(settings: BackTranslateSettings) -> None:
    """Check that every flag applies to a model.

    Raises:
        UserError: a flag does not apply; the message names the flag and the model.
    """
    kinds = {which: find_kind(settings.source(which), which) for which in PASSES}
    for which, kind in kinds.items():
        source = settings.source(which)
        own = {"data": source.dictionaries, "codes": source.codes, "languages": source.languages}
        for name, value in own.items():
            if value is not None and name not in kind.FLAGS:
                raise UserError(f"--{which}-{name}: does not apply to {source.path}, {kind.TITLE}; leave it out")
        if settings.search.samples_in(which):
            if "search" not in kind.FLAGS:
                raise UserError(f"--sampling: does not apply to --{which} {source.path}, {kind.TITLE}; leave it out")
            if settings.search.beam_in(which) > 1 and "drawn-beam" not in kind.FLAGS:
                raise UserError(f"--beam with --sampling: does not apply to --{which} {source.path}, {kind.TITLE}")
    titles = " and ".join(dict.fromkeys(kind.TITLE for kind in kinds.values()))
    groups = [(settings.search, item, "search") for item in fields(Search)]
    groups += [(settings, item, item.name) for item in fields(settings) if item.name in ("bpe", "tokenizer", "fp16")]
    for holder, item, name in groups:
        is_given = getattr(holder, item.name) != item.default
        if is_given and not any(name in kind.FLAGS for kind in kinds.values()):
            raise UserError(f"{flag_name(item)}: does not apply to {titles}; leave it out")
