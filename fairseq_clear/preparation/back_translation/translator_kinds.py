"""Finds out which library runs the model of ``--forward`` or ``--backward``, and which flags apply to it."""

from dataclasses import fields
from pathlib import Path
from typing import Protocol

import torch

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation import (
    ctranslate2_translator,
    factory_translator,
    fairseq_translator,
    huggingface_translator,
)
from fairseq_clear.preparation.back_translation.translation_settings import (
    PASSES,
    BackTranslateSettings,
    ModelSource,
    Search,
)
from fairseq_clear.preparation.back_translation.translator import Translator
from fairseq_clear.settings import flag_name


class TranslatorKind(Protocol):
    """What the module of each kind has.

    Attributes:
        TITLE: name for messages.
        LOOKED_FOR: what identifies the kind, for messages.
        FLAGS: flags that apply to it: of a direction (``data``, ``codes``, ``languages``) and of both (``bpe``, ``tokenizer``,
            ``search``, ``fp16``); ``drawn-beam`` for ``--beam`` with ``--sampling``.
    """

    TITLE: str
    LOOKED_FOR: str
    FLAGS: frozenset[str]

    def matches(self, path: str) -> bool:
        """Whether the value of ``--forward`` or ``--backward`` is of this kind; reads no file."""

    def identity(self, settings: BackTranslateSettings, which: str) -> dict[str, str]:
        """Return names and hashes of what determines the translations of a direction."""

    def load_translator(self, settings: BackTranslateSettings, which: str, device: torch.device) -> Translator:
        """Load the model of a direction."""


KINDS: tuple[TranslatorKind, ...] = (  # the first that matches is taken
    ctranslate2_translator,
    huggingface_translator,
    fairseq_translator,
    factory_translator,
)


def find_kind(source: ModelSource, which: str) -> TranslatorKind:
    """Find the kind of a model.

    Raises:
        UserError: nothing that belongs to a model was found.
    """
    for kind in KINDS:
        if kind.matches(source.path):
            return kind
    looked_for = "; ".join(kind.LOOKED_FOR for kind in KINDS if kind is not factory_translator)
    if Path(source.path).is_dir():
        raise UserError(f"--{which} {source.path}: holds no model; looked for {looked_for}")
    raise UserError(
        f"--{which} {source.path}: no such file or folder, and not of the form {factory_translator.LOOKED_FOR}; give a folder "
        f"with {looked_for}"
    )


def identity(settings: BackTranslateSettings, which: str) -> dict[str, str]:
    """Return the names and hashes of what determines the translations of a direction.

    Raises:
        UserError: the model is missing or incomplete, or a flag does not apply to it.
    """
    source: ModelSource = getattr(settings, which)
    found = find_kind(source, which).identity(settings, which)
    return found | {"languages": ":".join(source.languages)} if source.languages else found


def load_translator(settings: BackTranslateSettings, which: str, device: torch.device) -> Translator:
    """Load the model of ``--forward`` or ``--backward`` on the device.

    Raises:
        UserError: the model is missing, incomplete, or needs a package that is not installed.
    """
    return find_kind(getattr(settings, which), which).load_translator(settings, which, device)


def check_flags(settings: BackTranslateSettings) -> None:
    """Check that every flag applies to a model.

    Raises:
        UserError: a flag does not apply; the message names the flag and the model.
    """
    kinds = {which: find_kind(getattr(settings, which), which) for which in PASSES}
    for which, kind in kinds.items():
        source: ModelSource = getattr(settings, which)
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
    for flag, name in _shared_flags(settings).items():
        if not any(name in kind.FLAGS for kind in kinds.values()):
            raise UserError(f"{flag}: does not apply to {titles}; leave it out")


def _shared_flags(settings: BackTranslateSettings) -> dict[str, str]:
    """The flags of both directions that were given, with their names in ``FLAGS``."""
    changed = {
        flag_name(item): "search" for item in fields(Search) if getattr(settings.search, item.name) != item.default
    }
    for name in ("bpe", "tokenizer", "fp16"):
        item = next(item for item in fields(BackTranslateSettings) if item.name == name)
        if getattr(settings, name) != item.default:
            changed[flag_name(item)] = name
    return changed
