"""Converts models of transformers (BERT, RoBERTa and Longformer) to the weights and flags of clear_roberta, and back.

All are post-norm Transformers. Apart from names they differ in three things: positions start at 0 in BERT and after the padding
id in RoBERTa and Longformer; BERT adds an embedding of the segment; the rows of the vocabulary have another order. Longformer
has a window, and separate projections for tokens with global attention. clear_roberta has one set of projections and always
gives ``<s>`` global attention.
"""

import json
import logging
import re
import shlex
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_clear.errors import UserError
from fairseq_clear.models.hf_source import CONFIG, HfSource, build_source
from fairseq_clear.models.state_dicts import EMBEDDING, OFFSET, POSITIONS, SEGMENTS, VOCABULARY_ROWS
from fairseq_clear.modules.window_attention import is_covered

logger = logging.getLogger(__name__)

HEAD_WEIGHT = "encoder.lm_head.weight"
BERT, ROBERTA, LONGFORMER = "bert", "roberta", "longformer"
IMPORTED = (BERT, ROBERTA, "xlm-roberta")
# Parts of Hugging Face's weight names -> parts of fairseq's, replaced in this order.
NAMES = {
    "cls.predictions.": "lm_head.",  # BERT's MLM head
    "transform.LayerNorm": "layer_norm",
    "transform.": "",
    "lm_head.decoder.": "lm_head.",
    "embeddings.word_embeddings": "embed_tokens",
    "embeddings.position_embeddings": "embed_positions",
    "embeddings.token_type_embeddings": "embed_positions.segments",
    "embeddings.LayerNorm": "layernorm_embedding",
    "encoder.layer.": "layers.",
    "_global.": ".",  # Longformer's projections for tokens with global attention
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
# Settings of transformers -> settings of clear_roberta.
SETTINGS = {
    "num_hidden_layers": "encoder_layers",
    "hidden_size": "encoder_embed_dim",
    "intermediate_size": "encoder_ffn_embed_dim",
    "num_attention_heads": "encoder_attention_heads",
    "layer_norm_eps": "layer_norm_eps",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
# Hugging Face's name of an activation -> fairseq's, and back; all but gelu and relu are GELU's tanh approximation.
ACTIVATIONS = {"gelu": "gelu", "relu": "relu"}
ACTIVATIONS |= dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_accurate")
THEIR_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_accurate": "gelu_new", "gelu_fast": "gelu_new"}


def rename(name: str) -> str:
    """Return fairseq's name of a tensor of a model of transformers, given without the prefix of its encoder."""
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return f"encoder.{name}" if name.startswith("lm_head.") else f"encoder.sentence_encoder.{name}"


def named_model(source: HfSource) -> tuple[Any, dict[str, str]]:
    """Return the model with its MLM head, or the encoder without one, and Hugging Face's name -> fairseq's of its tensors."""
    model, prefix = source.base if source.head is None else source.head, f"{source.base.base_model_prefix}."
    return model, {name: rename(name.removeprefix(prefix)) for name in model.state_dict()}


def from_hf(source: HfSource, rows: Tensor, folder: object) -> dict[str, Tensor]:
    """Convert a model of transformers to weights of clear_roberta, including the MLM head if the model has one.

    Args:
        rows: (V,) int64, for each of fairseq's ids its row in Hugging Face's vocabulary.
        folder: named in errors.

    Raises:
        UserError: the embedding has no row for a token of the tokenizer.
    """
    model, names = named_model(source)
    theirs, size = model.state_dict(), source.base.config.vocab_size
    if int(rows.max()) >= size:
        raise UserError(
            f"{folder}: its tokenizer gives a token the id {int(rows.max())}, but its embedding has {size} rows; tokenizer and "
            "weights belong to different models"
        )
    weights = {ours: theirs[name][rows] if ours in VOCABULARY_ROWS else theirs[name] for name, ours in names.items()}
    segments, unused = weights.pop(SEGMENTS), 0 if source.base.config.model_type == BERT else OFFSET
    positions = weights[POSITIONS][unused:] + segments[0]  # exact for texts of one segment
    return weights | {POSITIONS: nn.functional.pad(positions, (0, 0, OFFSET, 0))}


def to_hf(model: Any, ids: list[int], *, with_head: bool) -> HfSource:
    """Convert a clear_roberta to a model of transformers, with the MLM head if ``with_head``; the inverse of from_hf.

    ``AutoModel`` always builds a pooler, and initialises it at random if the weights lack it. The pooler here is the identity,
    so ``pooler_output`` is the tanh of the first token's state.

    Args:
        ids: Hugging Face's id for each of fairseq's ids, without ``<del>``; the rows of other ids are 0.

    Raises:
        UserError: transformers has no such activation.
    """
    args, known, window, weights = model.args, model.encoder.dictionary, window_of(model), model.state_dict()
    padding, size, width = ids[known.pad()], max(ids) + 1, args.encoder_embed_dim
    kind = LONGFORMER if window else ROBERTA if padding == OFFSET - 1 else BERT
    unused = 0 if kind == BERT else padding + 1  # rows of the position embedding before the first position
    config = {
        "model_type": kind,
        "vocab_size": size,
        "hidden_act": THEIR_ACTIVATIONS.get(args.activation_fn),
        **{theirs: getattr(args, ours) for theirs, ours in SETTINGS.items()},
        "max_position_embeddings": len(weights[POSITIONS]) - OFFSET + unused,
        "type_vocab_size": max(2, args.segments),  # tokenizers give the second text of a pair the segment 1
        "bos_token_id": ids[known.bos()],
        "eos_token_id": ids[known.eos()],
        "pad_token_id": padding,
        "tie_word_embeddings": torch.equal(weights[HEAD_WEIGHT], weights[EMBEDDING]),
        **({"attention_window": [window] * args.encoder_layers} if window else {}),
    }
    if config["hidden_act"] is None:
        raise UserError(f"--activation-fn {args.activation_fn} of the checkpoint has no counterpart in transformers")
    if with_head and kind != BERT and config["hidden_act"] != "gelu":
        logger.warning(
            "the MLM head is left out: the head of a %s always uses GELU, the checkpoint's %s", kind, args.activation_fn
        )
        with_head = False
    made = build_source(json.dumps({"config": config, "head": with_head, "pooler": True}), {})
    for name in VOCABULARY_ROWS:
        known_rows = weights[name][: len(ids)]
        weights[name] = torch.zeros(size, *known_rows.shape[1:]).index_copy(0, torch.tensor(ids), known_rows)
    weights[POSITIONS] = nn.functional.pad(weights[POSITIONS][OFFSET:], (0, 0, unused, 0))
    weights.setdefault(SEGMENTS, torch.zeros(2, width))
    target, names = named_model(made)
    target.load_state_dict({name: weights[ours] for name, ours in names.items()})
    assert made.pooler is not None  # asked for above
    made.pooler.load_state_dict({"dense.weight": torch.eye(width), "dense.bias": torch.zeros(width)})
    return made


def window_of(model: Any) -> int:
    """The attention window W of a clear_roberta; 0 for full attention, also if the window covers the longest text."""
    window = int(getattr(model.args, "attention_window", 0) or 0)
    return 0 if is_covered(int(model.max_positions()), window) else window


def check_folder(folder: Path) -> None:
    """Raise UserError if there is no folder with a config.json; for the name of a model on the hub, say how to get it."""
    if folder.is_file():
        raise UserError(f"{folder}: is a file; give the folder that it is in")
    if not folder.is_dir():
        repository = str(folder) if re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder)) else f"OWNER/{folder.name}"
        raise UserError(
            f"{folder}: no such folder; give a local Hugging Face folder, which is not downloaded here: on a machine with "
            f"network run `hf download {repository} --local-dir {shlex.quote(folder.name)}`, copy that folder and give its path"
        )
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder}: has no {CONFIG}, and no model.pt of fairseq either; give a folder of a model")


def check_kind(config: dict[str, Any], path: Path) -> None:
    """Raise UserError if the model of a config.json has another type, or parts that fairseq's encoder does not have."""
    kind = config.get("model_type")
    if kind not in IMPORTED:
        raise UserError(
            f"{path}: has model_type {kind!r}; {', '.join(IMPORTED)} can be converted (also DistilRoBERTa and MiniLM); give "
            "--arch clear_hf, which takes every encoder as it is"
        )
    for name, known in (("position_embedding_type", ("absolute",)), ("hidden_act", tuple(ACTIVATIONS))):
        if config.get(name, known[0]) not in known:
            raise UserError(f"{path}: {name} {config[name]!r} has no counterpart in fairseq; known: {', '.join(known)}")
    padding = config.get("pad_token_id", 1)
    if kind != BERT and padding != 1:
        raise UserError(f"{path}: pad_token_id {padding}: positions of a {kind} begin at 2, after padding's id 1")


def model_flags(config: Any, positions: int, pooling: str) -> dict[str, Any]:
    """Return the flags of clear_roberta, by name without dashes, for a configuration of transformers."""
    sizes = {ours.replace("_", "-"): getattr(config, theirs) for theirs, ours in SETTINGS.items()}
    return {**sizes, "activation-fn": ACTIVATIONS[config.hidden_act], "max-positions": positions, "pooling": pooling}
