"""Adapts a checkpoint's weights to a model with another head, other training parts, or one vocabulary row more or fewer."""

import logging

import torch
from torch import Tensor

from fairseq_clear.errors import UserError

logger = logging.getLogger(__name__)

Weights = dict[str, Tensor]  # by name
EMBEDDING = "encoder.sentence_encoder.embed_tokens.weight"
POSITIONS = "encoder.sentence_encoder.embed_positions.weight"
OFFSET = 2  # rows of POSITIONS before the first position: the padding id + 1
SEGMENTS = "encoder.sentence_encoder.embed_positions.segments.weight"
VOCABULARY_ROWS = (EMBEDDING, "encoder.lm_head.weight", "encoder.lm_head.bias")
HEAD = "projection_head."
QUEUE = "key_queue."
TRAINING_ONLY = ("frozen_encoder.", "key_encoder.", QUEUE)
# Up to this many tensors of a part are named in the log; of a larger part it gives the number of tensors.
FEW = 8
# Parts that are never dropped and never initialised: a difference here means another architecture, and loading must fail.
BACKBONE = ("encoder.sentence_encoder.", "encoder.lm_head.", "classification_heads.")
HF_PARTS = ("encoder.backbone.", "encoder.")
IDS, COLUMNS = ".ids", "encoder.columns"  # buffers of clear_hf that follow from the vocabulary


def copies_of(backbone: str) -> dict[str, str]:
    """Return prefix of a copy -> prefix of the part that it copies."""
    return {"frozen_encoder.encoder.": backbone, "key_encoder.encoder.": backbone, "key_encoder.head.": HEAD}


def fit_state_dict(loaded: Weights, own: Weights, parts_of: tuple[str, ...] = BACKBONE) -> None:
    """Change ``loaded`` in place so that a model with the weights ``own`` loads it strictly; log what was changed.

    * If the checkpoint has one vocabulary row fewer (stock RoBERTa has no ``<del>``), the model's own row is appended. If it
      has one more, the last row (``<del>``) is dropped.
    * Parts of the checkpoint that the model lacks (a queue, a key encoder, another head) are dropped and named in the log.
    * Parts of the model that the checkpoint lacks keep their initial values and are named in the log. Copies of the encoder and
      of the head are not named, because ``begin`` fills them; nor is the queue, which starts empty.

    Args:
        loaded: the checkpoint's weights, changed in place.
        own: the model's current weights.
        parts_of: prefixes of the parts of the stock model, its encoder first.

    Raises:
        UserError: the checkpoint has another vocabulary, another number of positions or of segments.
    """
    if COLUMNS in own:
        _fit_hf_rows(loaded, own)
    else:
        _fit_vocabulary(loaded, own)
        _check_positions(loaded, own)
    foreign = [key for key in loaded if key not in own and not key.startswith(parts_of)]
    parts = {key: value for key, value in own.items() if not key.startswith(parts_of)}
    other_shape = [key for key, value in parts.items() if key in loaded and loaded[key].shape != value.shape]
    queue = [key for key in parts if key.startswith(QUEUE)]
    is_part = 0 < sum(key in loaded for key in queue) < len(queue)  # a queue without the vectors of a guide
    if is_part or not {*queue}.isdisjoint(other_shape):  # in a queue of another size, the fill count would be wrong
        other_shape = sorted({*other_shape, *(key for key in loaded if key.startswith(QUEUE))})
    for key in {*foreign, *other_shape}:
        del loaded[key]
    missing = [key for key in parts if key not in loaded]
    for key in missing:
        loaded[key] = parts[key]
    if foreign:
        # parts that only training needs are expected to be dropped at inference or in another recipe
        expected = all(key.startswith(TRAINING_ONLY) for key in foreign)
        level = logging.INFO if expected else logging.WARNING
        logger.log(level, "not loaded from the checkpoint, as this model has no such part: %s", _names(foreign))
    differing = [key for key in other_shape if not key.startswith(tuple(copies_of("")))]
    if differing:
        logger.warning("not loaded from the checkpoint, as their shapes differ: %s", _names(differing))
    fresh = [key for key in missing if not key.startswith(TRAINING_ONLY)]
    if fresh:
        logger.warning("not in the checkpoint, freshly initialised: %s", _names(fresh))


def complete_copies(loaded: Weights, own: Weights, parts_of: tuple[str, ...] = BACKBONE) -> None:
    """Fill a missing copy of the encoder or of the head (frozen encoder, key encoder) with the checkpoint's weights.

    Call this before fairseq's own upgrade, which takes an encoder without ``version`` for an old one from 2018.
    """
    for copy, part in copies_of(parts_of[0]).items():
        wanted = [key for key in own if key.startswith(copy)]
        if any(key in loaded for key in wanted):
            continue
        for key in wanted:
            # fairseq before 0.10 called the encoder a decoder
            for name in (part, part.replace("encoder.", "decoder.", 1)):
                original = name + key[len(copy) :]
                if original in loaded:
                    loaded[key] = loaded[original].clone()


def _names(keys: list[str]) -> str:
    """List the keys as text; a part with more than FEW tensors is given by its name and their number."""
    parts = [key.partition(".")[0] for key in keys]
    few = [key for key, part in zip(keys, parts, strict=True) if parts.count(part) <= FEW]
    many = [f"{part} ({parts.count(part)} tensors)" for part in set(parts) if parts.count(part) > FEW]
    return ", ".join(sorted(few) + sorted(many))


def _fit_vocabulary(loaded: Weights, own: Weights) -> None:
    if EMBEDDING not in loaded:
        return
    wanted, found = own[EMBEDDING].shape[0], loaded[EMBEDDING].shape[0]
    if wanted == found:
        return
    if abs(wanted - found) > 1:
        raise UserError(
            f"the checkpoint's vocabulary has {found} entries and the data's {wanted}: they come from different dict.txt "
            "files; binarize the text with the checkpoint's dictionary and tokenizer"
        )
    copies = (copy + "embed_tokens.weight" for copy, part in copies_of(BACKBONE[0]).items() if part != HEAD)
    names = [*VOCABULARY_ROWS, *(key for key in copies if key in own and key in loaded)]
    _fit_rows(loaded, own, names, wanted, found)


def _fit_hf_rows(loaded: Weights, own: Weights) -> None:
    """As ``_fit_vocabulary``, for clear_hf: a tensor with a row for each token is identified by its shape."""
    size, found = len(own[COLUMNS]), len(loaded.get(COLUMNS, own[COLUMNS]))
    if size != found:
        raise UserError(f"the checkpoint's encoder has {found} rows for tokens, and this one {size}: they differ")
    for key, ids in own.items():
        if key.endswith(IDS) and ids.any() and key in loaded:  # else the checkpoint knows the vocabulary
            loaded[key] = ids
    by_token = {
        key: len(loaded[key])
        for key, value in own.items()
        if value.dim()
        and key in loaded
        and loaded[key].shape[1:] == value.shape[1:]
        and {len(value), len(loaded[key])} == {size, size + 1}
    }
    if by_token:
        rows = (size + 1, size) if size in by_token.values() else (size, size + 1)  # wanted, found
        _fit_rows(loaded, own, [*by_token], *rows)


def _fit_rows(loaded: Weights, own: Weights, names: list[str], wanted: int, found: int) -> None:
    """Add or drop the last row, of ``<del>``, of the tensors with these names."""
    for key in names:
        rows = loaded[key]
        loaded[key] = torch.cat([rows, own[key][-1:].to(rows)]) if wanted > found else rows[:wanted]
    what = "this task has no <del>: the checkpoint's last vocabulary row is dropped"
    if wanted > found:
        what = "the checkpoint has no <del>: its vocabulary row is freshly initialised"
    logger.warning("%s (%d to %d rows)", what, found, wanted)


def _check_positions(loaded: Weights, own: Weights) -> None:
    """Raise UserError if the number of positions or of segments differs."""
    if POSITIONS not in loaded or POSITIONS not in own:
        return
    wanted, found = own[POSITIONS].shape[0], loaded[POSITIONS].shape[0]
    if wanted != found:
        raise UserError(
            f"the checkpoint has {found - OFFSET} positions and the model {wanted - OFFSET}: "
            f"give --max-positions {found - OFFSET}"
        )
    found, wanted = (len(weights.get(SEGMENTS, (0,))) for weights in (loaded, own))
    if wanted != found:
        raise UserError(f"the checkpoint has {found} segments and the model {wanted}: give --segments {found}")
