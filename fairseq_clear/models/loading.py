"""Making a checkpoint's weights fit a model that has another head or one vocabulary row more or fewer."""

import logging

import torch
from torch import Tensor

from fairseq_clear.errors import UserError

__all__ = ["complete_copies", "fit_state_dict"]

logger = logging.getLogger(__name__)

EMBEDDING = "encoder.sentence_encoder.embed_tokens.weight"
POSITIONS = "encoder.sentence_encoder.embed_positions.weight"
SEGMENTS = "encoder.sentence_encoder.embed_positions.segments.weight"
VOCABULARY_ROWS = (EMBEDDING, "encoder.lm_head.weight", "encoder.lm_head.bias")
SENTENCE_ENCODER = "sentence_encoder."
HEAD = "projection_head."
# Copies of a part of the model, and of which.
COPIES = {
    "guide.encoder.": "encoder." + SENTENCE_ENCODER,
    "key_encoder.encoder.": "encoder." + SENTENCE_ENCODER,
    "key_encoder.head.": HEAD,
}
COPIED_ROWS = tuple(copy + "embed_tokens.weight" for copy, part in COPIES.items() if part != HEAD)
QUEUE = "key_queue."
TRAINING_ONLY = ("guide.", "key_encoder.", QUEUE)
# Of a part with more tensors the log gives the number, not every name.
FEW = 8
# Never dropped and never made up: a difference here means another architecture, which loading must refuse.
BACKBONE = ("encoder.sentence_encoder.", "encoder.lm_head.", "classification_heads.")


def fit_state_dict(loaded: dict[str, Tensor], own: dict[str, Tensor], prefix: str = "") -> None:
    """Change ``loaded`` in place so that a model with the weights ``own`` can load it strictly; say what was done.

    * One vocabulary row fewer than the model (stock RoBERTa has no ``<del>``): the model's own row is appended. One more:
      the last row, ``<del>``, is dropped.
    * Parts beside the encoder that the model lacks (a queue, a key encoder, another head): dropped and named.
    * Parts beside the encoder that the checkpoint lacks: the model's initial values, named. Copies of the encoder and of the
      head are not named, since ``begin_training`` fills them, nor is the queue, which starts empty.

    Args:
        loaded: the checkpoint's weights, changed in place.
        own: the model's current weights.
        prefix: of both in ``loaded``.

    Raises:
        UserError: another vocabulary or fewer positions.
    """
    _fit_vocabulary(loaded, own, prefix)
    _check_positions(loaded, own, prefix)
    _check_segments(loaded, own, prefix)
    foreign = [
        key
        for key in loaded
        if key.startswith(prefix) and key[len(prefix) :] not in own and not _is_backbone(key, prefix)
    ]
    other_shape = [
        prefix + key
        for key, value in own.items()
        if prefix + key in loaded
        and not _is_backbone(prefix + key, prefix)
        and loaded[prefix + key].shape != value.shape
    ]
    if any(key.startswith(prefix + QUEUE) for key in other_shape):  # one of another size: its fill would be wrong
        other_shape = sorted({*other_shape, *(key for key in loaded if key.startswith(prefix + QUEUE))})
    for key in foreign + other_shape:
        del loaded[key]
    missing = [key for key in own if prefix + key not in loaded and not _is_backbone(prefix + key, prefix)]
    for key in missing:
        loaded[prefix + key] = own[key]
    if foreign:
        # what only training needs is no surprise where the model is used or trained otherwise
        expected = all(key[len(prefix) :].startswith(TRAINING_ONLY) for key in foreign)
        level = logging.INFO if expected else logging.WARNING
        logger.log(level, "left out of the checkpoint, as this model has no such part: %s", _names(foreign, prefix))
    differing = [key for key in other_shape if not key[len(prefix) :].startswith(tuple(COPIES))]
    if differing:
        logger.warning("left out of the checkpoint, as their shapes differ: %s", _names(differing, prefix))
    fresh = [key for key in missing if not key.startswith(TRAINING_ONLY)]
    if fresh:
        logger.warning("not in the checkpoint, freshly initialised: %s", _names(fresh, ""))


def complete_copies(loaded: dict[str, Tensor], own: dict[str, Tensor], prefix: str = "") -> None:
    """Let a copy of the encoder that the checkpoint lacks be a copy of the checkpoint's encoder.

    Before fairseq's own upgrade, which takes an encoder without its ``version`` for one of 2018.

    Args:
        loaded, own, prefix: as in ``fit_state_dict``.
    """
    for copy, part in COPIES.items():
        wanted = [key for key in own if key.startswith(copy)]
        if any(prefix + key in loaded for key in wanted):
            continue
        for key in wanted:
            # fairseq before 0.10 called the encoder a decoder
            for name in (part, part.replace("encoder.", "decoder.", 1)):
                original = prefix + name + key[len(copy) :]
                if original in loaded:
                    loaded[prefix + key] = loaded[original].clone()


def _names(keys: list[str], prefix: str) -> str:
    """The keys, or for a part of many its name and their number."""
    parts = [key[len(prefix) :].partition(".")[0] for key in keys]
    few = [key for key, part in zip(keys, parts, strict=True) if parts.count(part) <= FEW]
    many = [f"{part} ({parts.count(part)} tensors)" for part in set(parts) if parts.count(part) > FEW]
    return ", ".join(sorted(few) + sorted(many))


def _is_backbone(key: str, prefix: str) -> bool:
    return key[len(prefix) :].startswith(BACKBONE)


def _fit_vocabulary(loaded: dict[str, Tensor], own: dict[str, Tensor], prefix: str) -> None:
    if prefix + EMBEDDING not in loaded:
        return
    wanted, found = own[EMBEDDING].shape[0], loaded[prefix + EMBEDDING].shape[0]
    if wanted == found:
        return
    if abs(wanted - found) > 1:
        raise UserError(
            f"the checkpoint's vocabulary has {found} entries and the data's {wanted}: they are not of the same dict.txt; "
            "binarize the text with the checkpoint's dictionary and tokenizer"
        )
    copies = [key for key in COPIED_ROWS if key in own and prefix + key in loaded]
    for key in (*VOCABULARY_ROWS, *copies):
        rows = loaded[prefix + key]
        loaded[prefix + key] = torch.cat([rows, own[key][-1:].to(rows)]) if wanted > found else rows[:wanted]
    if wanted > found:
        logger.warning(
            "the checkpoint has no <del>: its vocabulary row is freshly initialised (%d to %d)", found, wanted
        )
    else:
        logger.warning(
            "this task has no <del>: the checkpoint's last vocabulary row is dropped (%d to %d)", found, wanted
        )


def _check_positions(loaded: dict[str, Tensor], own: dict[str, Tensor], prefix: str) -> None:
    if prefix + POSITIONS not in loaded or POSITIONS not in own:
        return
    wanted, found = own[POSITIONS].shape[0], loaded[prefix + POSITIONS].shape[0]
    if wanted != found:
        # The rows of the padding index and of those before it are no positions.
        offset = 2
        raise UserError(
            f"the checkpoint has {found - offset} positions and the model {wanted - offset}: "
            f"give --max-positions {found - offset}"
        )


def _check_segments(loaded: dict[str, Tensor], own: dict[str, Tensor], prefix: str) -> None:
    if prefix + POSITIONS not in loaded:
        return
    found, wanted = (len(weights.get(key, (0,))) for weights, key in ((loaded, prefix + SEGMENTS), (own, SEGMENTS)))
    if wanted != found:
        raise UserError(f"the checkpoint has {found} segments and the model {wanted}: give --segments {found}")
