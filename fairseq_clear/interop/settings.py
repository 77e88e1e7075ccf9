"""A Hugging Face configuration as the flags of clear_roberta, and back; what neither has is refused with the reason."""

from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.interop.longformer import LONGFORMER, read_window
from fairseq_clear.interop.weights import KINDS

__all__ = ["ACTIVATIONS", "hf_activation", "kind_of", "model_flags"]

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
        UserError: another type, or one of this type with parts that fairseq's encoder does not have.
    """
    kind = config.get("model_type")
    if kind not in KINDS:
        raise UserError(
            f"{path}: is of type {kind!r}; {', '.join(KINDS)} can be imported (DistilRoBERTa and MiniLM are of these types)"
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
    if kind not in ("bert", LONGFORMER) and config.get("pad_token_id", 1) != 1:
        raise UserError(
            f"{path}: pad_token_id {config['pad_token_id']}: positions of a {kind} begin at 2, after padding's id 1"
        )
    return str(kind)


def model_flags(config: dict[str, Any], segments: int, positions: int, pooling: str, path: Path) -> dict[str, Any]:
    """The flags of clear_roberta, by name without the dashes, that make the model of this configuration.

    Args:
        config: Hugging Face's.
        segments: to keep.
        positions: how many there are, after any extension.
        pooling: of the text vector.
        path: of the configuration, for errors.
    """
    window = {"attention-window": read_window(config, path)} if config.get("model_type") == LONGFORMER else {}
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
            "segments": segments,
            "pooling": pooling,
            **window,
        }
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: lacks a usable {error}") from None


def hf_activation(name: str) -> str:
    """Hugging Face's name of fairseq's activation.

    Raises:
        UserError: they have none that computes the same.
    """
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    if name == "gelu_fast":  # fairseq's old name
        name = "gelu_accurate"
    if name not in names:
        raise UserError(f"--activation-fn {name} of the checkpoint has no counterpart in Hugging Face's encoders")
    return names[name]
