"""Converts models of transformers (BERT, RoBERTa and Longformer) to the weights and flags of clear_roberta, and back.

All are post-norm Transformers. Apart from names they differ in three things: positions start at 0 in BERT and after the padding
id in RoBERTa and Longformer; BERT adds an embedding of the segment; the rows of the vocabulary have another order. Longformer
has a window, and separate projections for tokens with global attention. clear_roberta has one set of projections and always
gives ``<s>`` global attention.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_clear.errors import UserError
from fairseq_clear.models.hf_encoder import HfSource, build_source
from fairseq_clear.models.state_dicts import EMBEDDING, POSITIONS, SEGMENTS, VOCABULARY_ROWS
from fairseq_clear.modules.window_attention import is_covered

STACK = "encoder.sentence_encoder."
_, HEAD_WEIGHT, HEAD_BIAS = VOCABULARY_ROWS
BERT, ROBERTA, LONGFORMER = "bert", "roberta", "longformer"
IMPORTED = (BERT, ROBERTA, "xlm-roberta")
OFFSET = 2  # rows of fairseq's position embedding before the first position: the padding id + 1
THEIR_WORDS = "embeddings.word_embeddings.weight"
THEIR_POSITIONS = "embeddings.position_embeddings.weight"
THEIR_SEGMENTS = "embeddings.token_type_embeddings.weight"
LAYER = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
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


def encoder_names(layers: int) -> dict[str, str]:
    """Return the encoder's tensors by Hugging Face's name, without prefix, with fairseq's; except positions and segments."""
    names = {THEIR_WORDS: EMBEDDING}
    for part in ("weight", "bias"):
        names[f"embeddings.LayerNorm.{part}"] = f"{STACK}layernorm_embedding.{part}"
        for layer in range(layers):
            names |= {
                f"encoder.layer.{layer}.{theirs}.{part}": f"{STACK}layers.{layer}.{ours}.{part}"
                for theirs, ours in LAYER.items()
            }
    return names


def head_names(kind: str) -> dict[str, str]:
    """Return the tensors of the MLM head of a ``model_type`` by Hugging Face's name, with fairseq's."""
    start, inner, norm = (
        ("cls.predictions.", "transform.", "LayerNorm") if kind == BERT else ("lm_head.", "", "layer_norm")
    )
    names = {f"{start}bias": HEAD_BIAS, f"{start}decoder.bias": HEAD_BIAS, f"{start}decoder.weight": HEAD_WEIGHT}
    for part in ("weight", "bias"):
        names[f"{start}{inner}dense.{part}"] = f"encoder.lm_head.dense.{part}"
        names[f"{start}{inner}{norm}.{part}"] = f"encoder.lm_head.layer_norm.{part}"
    return names


def from_hf(source: HfSource, rows: Tensor, folder: object) -> dict[str, Tensor]:
    """Convert a model of transformers to weights of clear_roberta, with those of the MLM head if the model has one.

    Args:
        rows: (V,) int64, for each of fairseq's ids its row in Hugging Face's vocabulary.
        folder: named in errors.

    Raises:
        UserError: the embedding has no row for a token of the tokenizer.
    """
    config, theirs = source.base.config, source.base.state_dict()
    names = encoder_names(config.num_hidden_layers)
    if int(rows.max()) >= len(theirs[THEIR_WORDS]):
        raise UserError(
            f"{folder}: its tokenizer gives a token the id {int(rows.max())}, but its embedding has "
            f"{len(theirs[THEIR_WORDS])} rows; tokenizer and weights belong to different models"
        )
    if source.head is not None:
        theirs, names = theirs | source.head.state_dict(), names | head_names(config.model_type)
    weights = {ours: theirs[name][rows] if ours in VOCABULARY_ROWS else theirs[name] for name, ours in names.items()}
    offset = 0 if config.model_type == BERT else OFFSET
    positions = theirs[THEIR_POSITIONS][offset:] + theirs[THEIR_SEGMENTS][0]  # exact for texts of one segment
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
    args, known, window = model.args, model.encoder.dictionary, window_of(model)
    weights, rows, padding = model.state_dict(), torch.tensor(ids), ids[known.pad()]
    kind = LONGFORMER if window else ROBERTA if padding == OFFSET - 1 else BERT
    unused = 0 if kind == BERT else padding + 1  # rows of the position embedding before the first position
    config = {
        "model_type": kind,
        "vocab_size": max(ids) + 1,
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
    # The MLM heads of RoBERTa and Longformer always use GELU.
    with_head = with_head and (kind == BERT or config["hidden_act"] == "gelu")
    made = build_source(json.dumps({"config": config, "head": with_head, "pooler": True}), {})

    def convert(names: dict[str, str]) -> dict[str, Tensor]:
        """The weights by Hugging Face's names, those with a row for each token in its order."""
        found = {name: weights[ours] for name, ours in names.items()}
        for name, ours in names.items():
            if ours in VOCABULARY_ROWS:
                empty = torch.zeros(config["vocab_size"], *found[name].shape[1:])
                found[name] = empty.index_copy(0, rows, found[name][: len(ids)])
        return found

    theirs = convert(encoder_names(args.encoder_layers))
    theirs[THEIR_POSITIONS] = nn.functional.pad(weights[POSITIONS][OFFSET:], (0, 0, unused, 0))
    theirs[THEIR_SEGMENTS] = weights.get(SEGMENTS, torch.zeros(2, args.encoder_embed_dim))
    for name in made.base.state_dict():
        if "_global." in name:  # Longformer's projections for tokens with global attention
            theirs[name] = theirs[name.replace("_global.", ".")]
    made.base.load_state_dict(theirs)
    if made.head is not None:
        made.head.load_state_dict(made.head.state_dict() | convert(head_names(kind)))
    nn.init.eye_(made.pooler.dense.weight)
    nn.init.zeros_(made.pooler.dense.bias)
    return made


def window_of(model: Any) -> int:
    """The attention window W of a clear_roberta; 0 for full attention, also if the window covers the longest text."""
    window = int(getattr(model.args, "attention_window", 0) or 0)
    return 0 if is_covered(int(model.max_positions()), window) else window


def kind_of(config: dict[str, Any], path: Path) -> str:
    """The ``model_type`` of a config.json, if it is one that can be imported exactly.

    Raises:
        UserError: another type, or a model with parts that fairseq's encoder does not have.
    """
    kind = config.get("model_type")
    if kind not in IMPORTED:
        raise UserError(
            f"{path}: has model_type {kind!r}; {', '.join(IMPORTED)} can be converted (also DistilRoBERTa and MiniLM); give "
            "--arch clear_hf, which takes every encoder as it is"
        )
    for name, usual, known in (
        ("position_embedding_type", "absolute", ("absolute",)),
        ("hidden_act", "gelu", tuple(ACTIVATIONS)),
    ):
        if config.get(name, usual) not in known:
            raise UserError(f"{path}: {name} {config[name]!r} has no counterpart in fairseq; known: {', '.join(known)}")
    padding = config.get("pad_token_id", 1)
    if kind != BERT and padding != 1:
        raise UserError(f"{path}: pad_token_id {padding}: positions of a {kind} begin at 2, after padding's id 1")
    return str(kind)


def model_flags(config: Any, positions: int, pooling: str) -> dict[str, Any]:
    """Return the flags of clear_roberta, by name without dashes, for a configuration of transformers."""
    sizes = {ours.replace("_", "-"): getattr(config, theirs) for theirs, ours in SETTINGS.items()}
    return {**sizes, "activation-fn": ACTIVATIONS[config.hidden_act], "max-positions": positions, "pooling": pooling}
