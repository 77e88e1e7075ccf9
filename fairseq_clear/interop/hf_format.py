"""Converts names, sizes and configuration between Hugging Face's BERT, RoBERTa and Longformer and clear_roberta.

All are post-norm Transformers. Apart from names they differ in three things: positions start at 0 in BERT and after the padding
id in RoBERTa and Longformer; BERT adds an embedding of the segment; the rows of the vocabulary have another order. Longformer
has a window, and separate projections for tokens with global attention. clear_roberta has one set of projections and always
gives ``<s>`` global attention.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.modules.window_attention import is_covered

STACK = "encoder.sentence_encoder."
HEAD_WEIGHT = "encoder.lm_head.weight"
HEAD_ROWS = ("bias", "decoder.weight")  # parts of the MLM head with a row for each token
LONGFORMER = "longformer"
OFFSET = 2  # rows of fairseq's position embedding before the first position: the padding id + 1
WORDS = "embeddings.word_embeddings.weight"
POSITIONS = "embeddings.position_embeddings.weight"
SEGMENTS = "embeddings.token_type_embeddings.weight"
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


@dataclass(frozen=True)
class Kind:
    """Names of the parts of a Hugging Face ``model_type``.

    Attributes:
        prefix: prefix of the encoder's names in a model with a head.
        offset: number of rows of the position embedding before the first position.
        head: prefix of the names of the MLM head.
        dense, norm: names of the head's layer and LayerNorm.
    """

    prefix: str
    offset: int
    head: str
    dense: str
    norm: str


_ROBERTA = Kind("roberta.", OFFSET, "lm_head.", "dense", "layer_norm")
KINDS: dict[str, Kind] = {
    "bert": Kind("bert.", 0, "cls.predictions.", "transform.dense", "transform.LayerNorm"),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    LONGFORMER: replace(_ROBERTA, prefix="longformer."),
}


def kind_for(name: str, padding: int) -> Kind:
    """Return the Kind of a model type. Longformer counts positions from its padding id, as RoBERTa's code does."""
    return replace(KINDS[name], offset=padding + 1) if name == LONGFORMER else KINDS[name]


def encoder_names(layers: int) -> Iterator[tuple[str, str]]:
    """Yield (Hugging Face's name, fairseq's name) of every tensor of the encoder except its embeddings, without prefix."""
    for part in ("weight", "bias"):
        yield f"embeddings.LayerNorm.{part}", f"{STACK}layernorm_embedding.{part}"
        for layer in range(layers):
            for theirs, ours in LAYER.items():
                yield f"encoder.layer.{layer}.{theirs}.{part}", f"{STACK}layers.{layer}.{ours}.{part}"


def head_names(kind: Kind) -> Iterator[tuple[str, str]]:
    """Yield (Hugging Face's name, fairseq's name) of the MLM head's tensors, except those with a row for each token."""
    for part in ("weight", "bias"):
        yield f"{kind.head}{kind.dense}.{part}", f"encoder.lm_head.dense.{part}"
        yield f"{kind.head}{kind.norm}.{part}", f"encoder.lm_head.layer_norm.{part}"


def from_hf(
    weights: dict[str, Tensor], kind: Kind, layers: int, rows: Tensor, source: object
) -> tuple[dict[str, Tensor], list[str]]:
    """Convert the weights of a Hugging Face model to weights of clear_roberta.

    Args:
        weights, kind: Hugging Face's weights, and their names.
        layers: number of blocks.
        rows: (V,) int64, for each of fairseq's ids its row in Hugging Face's vocabulary.
        source: named in errors.

    Returns:
        The weights (with the MLM head's if the model has one), and the names of weights that were not used.

    Raises:
        UserError: a weight is missing, or the embedding has no row for a token of the tokenizer.
    """
    # The first releases of BERT named a LayerNorm's weight gamma and its bias beta.
    old = {"gamma": "weight", "beta": "bias"}
    names = {name: name.removeprefix(kind.prefix).rpartition(".") for name in weights}
    theirs = {f"{part}{dot}{old.get(last, last)}": weights[name] for name, (part, dot, last) in names.items()}
    left = set(theirs)

    def take(name: str) -> Tensor:
        if name not in theirs:
            raise UserError(f"{source}: its weights lack {name}; is the folder complete, and is its model_type right?")
        left.discard(name)
        return theirs[name]

    words = take(WORDS)
    if int(rows.max()) >= len(words):
        raise UserError(
            f"{source}: its tokenizer gives a token the id {int(rows.max())}, but its embedding has {len(words)} rows; "
            "tokenizer and weights belong to different models"
        )
    ours = {name: take(their_name) for their_name, name in encoder_names(layers)}
    ours[STACK + "embed_tokens.weight"] = words[rows]
    positions = take(POSITIONS)
    head = torch.zeros(OFFSET, positions.shape[1]) if kind.offset != OFFSET else positions[:OFFSET]
    positions = positions[kind.offset :]
    types = take(SEGMENTS) if SEGMENTS in theirs else torch.zeros(1, positions.shape[1])
    positions = positions + types[0]  # exact for texts of one segment
    ours[STACK + "embed_positions.weight"] = torch.cat([head, positions])
    bias, output = (f"{kind.head}{part}" for part in HEAD_ROWS)
    if bias in theirs and f"{kind.head}{kind.dense}.weight" in theirs:
        ours |= {name: take(their_name) for their_name, name in head_names(kind)}
        ours["encoder.lm_head.bias"] = take(bias)[rows]
        ours[HEAD_WEIGHT] = (take(output) if output in theirs else words)[rows]
    return ours, sorted(left)


def to_hf(
    weights: dict[str, Tensor], kind: Kind, layers: int, rows: Tensor, size: int, with_head: bool, is_tied: bool
) -> dict[str, Tensor]:
    """Convert fairseq's weights to weights of a Hugging Face model, or of its encoder; the inverse of from_hf.

    ``AutoModel`` always builds a pooler, and initialises it at random if the weights lack it. The exported pooler is the
    identity, so ``pooler_output`` is the tanh of the first token's state.

    Args:
        weights, kind, layers, rows: fairseq's weights; else as for from_hf.
        size: number of rows of Hugging Face's vocabulary; rows without a token of fairseq are 0.
        with_head: also convert the MLM head; the names of the encoder then have its prefix.
        is_tied: whether the output embedding of the head is the encoder's, so that it is left out.
    """

    def spread(name: str) -> Tensor:
        """A tensor with a row for each token, in Hugging Face's order."""
        value = weights[name]
        return torch.zeros(size, *value.shape[1:]).index_copy(0, rows, value)

    theirs = {name: weights[our_name] for name, our_name in encoder_names(layers)}
    theirs[WORDS] = spread(STACK + "embed_tokens.weight")
    positions = weights[STACK + "embed_positions.weight"]
    width = positions.shape[1]
    unused = positions.new_zeros(max(0, kind.offset - OFFSET), width)
    theirs[POSITIONS] = torch.cat([unused, positions[max(0, OFFSET - kind.offset) :]])
    # At least two rows, because tokenizers give the second text of a pair the segment 1.
    theirs[SEGMENTS] = weights.get(STACK + "embed_positions.segments.weight", torch.zeros(2, width))
    theirs["pooler.dense.weight"], theirs["pooler.dense.bias"] = torch.eye(width), torch.zeros(width)
    if with_head:
        theirs = {kind.prefix + name: value for name, value in theirs.items()}
        theirs |= {name: weights[our_name] for name, our_name in head_names(kind)}
        bias, output = (f"{kind.head}{part}" for part in HEAD_ROWS)
        theirs[bias] = spread("encoder.lm_head.bias")
        theirs |= {} if is_tied else {output: spread(HEAD_WEIGHT)}
    return {name: value.contiguous().clone() for name, value in theirs.items()}


def window_of(model: Any) -> int:
    """The attention window W of a clear_roberta; 0 for full attention, also if the window covers the longest text."""
    window = int(getattr(model.args, "attention_window", 0) or 0)
    return 0 if is_covered(int(model.max_positions()), window) else window


def _global_names(weights: dict[str, Tensor]) -> dict[str, str]:
    """Name of each query, key and value projection of Longformer -> its name for tokens with global attention."""
    pattern = re.compile(r"(.*\.attention\.self\.(?:query|key|value))\.(.*)")
    found = {name: pattern.fullmatch(name) for name in weights}
    return {name: f"{match[1]}_global.{match[2]}" for name, match in found.items() if match}


def copy_to_global(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add to Longformer's weights copies of the query, key and value projections, for tokens with global attention."""
    return weights | {copy: weights[name].clone() for name, copy in _global_names(weights).items()}


def global_attention(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """Return the arguments besides (B, T) ids with which a Hugging Face model equals clear_roberta: ``<s>`` is global."""
    if model.config.model_type != LONGFORMER:
        return {}
    return {"global_attention_mask": (torch.arange(ids.shape[1]) == 0).long().expand(ids.shape[0], -1)}


# Hugging Face's name of an activation -> fairseq's; all but gelu and relu are GELU's tanh approximation.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_accurate",
    "gelu_pytorch_tanh": "gelu_accurate",
    "gelu_fast": "gelu_accurate",
    "relu": "relu",
}
_BERT_EPS = 1e-12  # the default of Hugging Face's configurations


def kind_of(config: dict[str, Any], path: Path) -> str:
    """The ``model_type``, if it is one that can be imported exactly.

    Raises:
        UserError: another type, or a model with parts that fairseq's encoder does not have.
    """
    kind = config.get("model_type")
    if kind not in KINDS or kind == LONGFORMER:
        names = ", ".join(name for name in KINDS if name != LONGFORMER)
        raise UserError(
            f"{path}: has model_type {kind!r}; {names} can be converted (also DistilRoBERTa and MiniLM); give --arch clear_hf, "
            "which takes every encoder as it is"
        )
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise UserError(
            f"{path}: position_embedding_type {config['position_embedding_type']!r} has no counterpart in fairseq"
        )
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise UserError(f"{path}: is a decoder; an encoder is needed")
    if config.get("hidden_act", "gelu") not in ACTIVATIONS:
        raise UserError(
            f"{path}: hidden_act {config['hidden_act']!r} has no counterpart in fairseq; known: {', '.join(ACTIVATIONS)}"
        )
    padding = config.get("pad_token_id", 1)
    if kind != "bert" and padding != 1:
        raise UserError(f"{path}: pad_token_id {padding}: positions of a {kind} begin at 2, after padding's id 1")
    return str(kind)


def model_flags(config: dict[str, Any], positions: int, pooling: str, path: Path) -> dict[str, Any]:
    """Return the flags of clear_roberta, by name without dashes, for a model with this configuration.

    Args:
        positions: number of positions.
    """
    try:
        return {
            "encoder-layers": int(config["num_hidden_layers"]),
            "encoder-embed-dim": int(config["hidden_size"]),
            "encoder-ffn-embed-dim": int(config["intermediate_size"]),
            "encoder-attention-heads": int(config["num_attention_heads"]),
            "activation-fn": ACTIVATIONS[config.get("hidden_act", "gelu")],
            "layer-norm-eps": float(config.get("layer_norm_eps", _BERT_EPS)),
            "dropout": float(config.get("hidden_dropout_prob", 0.1)),
            "attention-dropout": float(config.get("attention_probs_dropout_prob", 0.1)),
            "max-positions": positions,
            "pooling": pooling,
        }
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: lacks a usable {error}") from None


def hf_activation(name: str) -> str:
    """Return Hugging Face's name of an activation of fairseq.

    Raises:
        UserError: Hugging Face has no such activation.
    """
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    if name == "gelu_fast":  # fairseq's old name
        name = "gelu_accurate"
    if name not in names:
        raise UserError(f"--activation-fn {name} of the checkpoint has no counterpart in Hugging Face's encoders")
    return names[name]
