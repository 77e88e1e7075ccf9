"""The same encoder under two sets of names: BERT and RoBERTa as Hugging Face has them, clear_roberta as fairseq does.

Both are post-norm Transformers. What differs beside the names: RoBERTa's and Longformer's positions begin at the
padding's id + 1 and BERT's at 0; BERT adds an embedding of the segment; the vocabulary's rows stand in another order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairseq_clear.errors import UserError

__all__ = [
    "HEAD_WEIGHT",
    "KINDS",
    "OFFSET",
    "Kind",
    "encoder_names",
    "find_embedding",
    "from_hf",
    "kind_for",
    "head_names",
    "to_hf",
]

STACK = "encoder.sentence_encoder."
HEAD_WEIGHT = "encoder.lm_head.weight"
OFFSET = 2  # rows of fairseq's positions before the first: padding's id + 1
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
    """How a ``model_type`` names things.

    Attributes:
        prefix: of the encoder in a model with a head.
        offset: rows of positions before the first.
        head_dense, head_norm, head_bias, head_weight: of the MLM head.
    """

    prefix: str
    offset: int
    head_dense: str
    head_norm: str
    head_bias: str
    head_weight: str


_ROBERTA = Kind("roberta.", OFFSET, "lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder.weight")
_BERT_HEAD = "cls.predictions."
KINDS: dict[str, Kind] = {
    "bert": Kind(
        "bert.",
        0,
        _BERT_HEAD + "transform.dense",
        _BERT_HEAD + "transform.LayerNorm",
        _BERT_HEAD + "bias",
        _BERT_HEAD + "decoder.weight",
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "longformer": replace(_ROBERTA, prefix="longformer."),
}


def kind_for(name: str, padding: int) -> Kind:
    """How this type names things, where padding has this id: Longformer counts positions from there, as RoBERTa's code does."""
    return replace(KINDS[name], offset=padding + 1) if name == "longformer" else KINDS[name]


def encoder_names(layers: int) -> Iterator[tuple[str, str]]:
    """(Hugging Face's name, fairseq's) of every tensor of the encoder but the three embeddings, without the prefix."""
    for part in ("weight", "bias"):
        yield f"embeddings.LayerNorm.{part}", f"{STACK}layernorm_embedding.{part}"
        for layer in range(layers):
            for theirs, ours in LAYER.items():
                yield f"encoder.layer.{layer}.{theirs}.{part}", f"{STACK}layers.{layer}.{ours}.{part}"


def head_names(kind: Kind) -> Iterator[tuple[str, str]]:
    """(Hugging Face's name, fairseq's) of the MLM head's tensors, less those with a row for each token."""
    for part in ("weight", "bias"):
        yield f"{kind.head_dense}.{part}", f"encoder.lm_head.dense.{part}"
        yield f"{kind.head_norm}.{part}", f"encoder.lm_head.layer_norm.{part}"


def find_embedding(weights: dict[str, Tensor], kind: Kind, source: object) -> Tensor:
    """Their embedding of tokens, with or without the prefix."""
    for name in (WORDS, kind.prefix + WORDS):
        if name in weights:
            return weights[name]
    raise UserError(f"{source}: its weights lack {WORDS}; is the folder complete, and of the type it says?")


def from_hf(
    weights: dict[str, Tensor], kind: Kind, layers: int, rows: Tensor, segments: int, source: object
) -> tuple[dict[str, Tensor], list[str]]:
    """The weights of clear_roberta from those of a Hugging Face model.

    Args:
        weights: theirs, by their names.
        kind: how they are named.
        layers: blocks.
        rows: (V,) int64, for each of fairseq's ids the row of it in their vocabulary.
        segments: 1 adds segment 0 to the positions, which is the same sum for every text that is one segment; 2 keeps both.
        source: named in errors.

    Returns:
        The weights, those of the MLM head only where the model has one, and the names that were not taken.
    """
    theirs = {_modern(name.removeprefix(kind.prefix)): value for name, value in weights.items()}
    left = set(theirs)

    def take(name: str) -> Tensor:
        if name not in theirs:
            raise UserError(f"{source}: its weights lack {name}; is the folder complete, and of the type it says?")
        left.discard(name)
        return theirs[name]

    words = take(WORDS)
    ours = {name: take(their_name) for their_name, name in encoder_names(layers)}
    ours[STACK + "embed_tokens.weight"] = words[rows]
    positions = take(POSITIONS)
    head = torch.zeros(OFFSET, positions.shape[1]) if kind.offset != OFFSET else positions[:OFFSET]
    positions = positions[kind.offset :]
    types = take(SEGMENTS) if SEGMENTS in theirs else torch.zeros(1, positions.shape[1])
    if segments == 1:
        positions = positions + types[0]
    else:
        ours[STACK + "embed_positions.segments.weight"] = types[:segments]
    ours[STACK + "embed_positions.weight"] = torch.cat([head, positions])
    if kind.head_bias in theirs and f"{kind.head_dense}.weight" in theirs:
        ours |= {name: take(their_name) for their_name, name in head_names(kind)}
        ours["encoder.lm_head.bias"] = take(kind.head_bias)[rows]
        decoder = take(kind.head_weight) if kind.head_weight in theirs else words
        ours[HEAD_WEIGHT] = decoder[rows]
    return ours, sorted(left)


def to_hf(weights: dict[str, Tensor], kind: Kind, layers: int, rows: Tensor, size: int) -> dict[str, Tensor]:
    """A Hugging Face encoder's weights (without prefix and MLM head) of fairseq's; the inverse of from_hf.

    ``AutoModel`` builds a pooler whatever config.json says, and initialises it at random where the weights lack it. Ours is the
    identity, so ``pooler_output`` is the tanh of the first token's state.

    Args:
        weights: fairseq's.
        kind: how to name them.
        layers: blocks.
        rows: (V,) int64, for each of fairseq's ids the row of it in their vocabulary.
        size: rows of their vocabulary; those that no token of ours fills are 0.
    """
    theirs = {name: weights[our_name] for name, our_name in encoder_names(layers)}
    words = weights[STACK + "embed_tokens.weight"]
    theirs[WORDS] = torch.zeros(size, words.shape[1]).index_copy(0, rows, words)
    positions = weights[STACK + "embed_positions.weight"]
    unused = positions.new_zeros(max(0, kind.offset - OFFSET), positions.shape[1])
    theirs[POSITIONS] = torch.cat([unused, positions[max(0, OFFSET - kind.offset) :]])
    # Two rows at least: what tokenizers of pairs number 1 must find one.
    nothing = torch.zeros(2, words.shape[1])
    theirs["pooler.dense.weight"], theirs["pooler.dense.bias"] = torch.eye(words.shape[1]), torch.zeros(words.shape[1])
    theirs[SEGMENTS] = weights.get(STACK + "embed_positions.segments.weight", nothing)
    return {name: value.contiguous().clone() for name, value in theirs.items()}


def head_to_hf(weights: dict[str, Tensor], kind: Kind, rows: Tensor, size: int, *, is_tied: bool) -> dict[str, Tensor]:
    """The MLM head of fairseq's weights by Hugging Face's names; its embedding only where it is not the encoder's.

    Args:
        weights: fairseq's.
        kind: how to name them.
        rows, size: see to_hf.
        is_tied: whether the head shares the encoder's embedding.
    """
    theirs = {name: weights[our_name].clone() for name, our_name in head_names(kind)}
    bias = weights["encoder.lm_head.bias"]
    theirs[kind.head_bias] = torch.zeros(size).index_copy(0, rows, bias)
    if not is_tied:
        decoder = weights[HEAD_WEIGHT]
        theirs[kind.head_weight] = torch.zeros(size, decoder.shape[1]).index_copy(0, rows, decoder)
    return theirs


def _modern(name: str) -> str:
    """BERT's first releases called the weight of a LayerNorm gamma and its bias beta."""
    if name.endswith(".gamma"):
        return name.removesuffix("gamma") + "weight"
    return name.removesuffix("beta") + "bias" if name.endswith(".beta") else name
