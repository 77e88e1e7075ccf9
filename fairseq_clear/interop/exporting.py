"""Exports a checkpoint to Hugging Face, sentence-transformers or stock fairseq, and compares the result with it."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import LoadedModel, load_model
from fairseq_clear.files import versions
from fairseq_clear.interop.hf_folders import EXPORTED, write_modules
from fairseq_clear.interop.hf_format import (
    HEAD_WEIGHT,
    LONGFORMER,
    OFFSET,
    Kind,
    copy_to_global,
    head_to_hf,
    hf_activation,
    kind_for,
    to_hf,
    window_of,
)
from fairseq_clear.interop.model_card import model_card
from fairseq_clear.interop.parity import Parity, compare_hf, compare_sentence_transformers, hf_ids
from fairseq_clear.interop.stock import export_fairseq
from fairseq_clear.interop.tokenizer_files import write_tokenizer
from fairseq_clear.libraries import import_library
from fairseq_clear.models.state_dicts import EMBEDDING, POSITIONS
from fairseq_clear.modules.pooling import parse_pooling
from fairseq_clear.output_folder import output_folder
from fairseq_clear.text.tokenizers import Tokenizer

__all__ = ["FORMATS", "ExportReport", "export"]

FORMATS = ("hf", "sentence-transformers", "fairseq")
DELETED = "<del>"
EXPORT_JSON = "fairseq_clear.json"


@dataclass(frozen=True)
class Job:
    """A checkpoint to export, with its settings.

    Attributes:
        model: the checkpoint.
        tokenizer: tokenizer of its data folder.
        data_bin: the data folder.
        pooling: pooling to write to the config.
        normalized: whether vectors are scaled to length 1.
        dimension: number of dimensions that sentence-transformers keeps; None for all.
    """

    model: LoadedModel
    tokenizer: Tokenizer
    data_bin: Path
    pooling: str
    normalized: bool
    dimension: int | None = None

    @property
    def symbols(self) -> list[str]:
        """The vocabulary without ``<del>``, which does not occur in texts."""
        return [symbol for symbol in self.model.dictionary.symbols if symbol != DELETED]


@dataclass(frozen=True)
class ExportReport:
    """The folder that was written, and its differences from the checkpoint."""

    dest: Path
    parities: list[Parity]

    def lines(self) -> list[str]:
        """Lines to print."""
        return [*(parity.summary() for parity in self.parities), f"wrote {self.dest}"]


def export(
    checkpoint: Path,
    data_bin: Path,
    dest: Path,
    form: str,
    tokenizer: Tokenizer,
    *,
    pooling: str | None = None,
    normalized: bool = False,
    dimension: int | None = None,
    scores: Path | None = None,
    key_encoder: bool = False,
    overwrite: bool = False,
) -> ExportReport:
    """Write the folder ``dest``, load it with the library of its format, and compare it with the checkpoint.

    Args:
        checkpoint: checkpoint of clear_roberta or roberta.
        data_bin: folder with its dict.txt.
        dest: folder to create; it is not written if an error occurs.
        form: one of FORMATS.
        tokenizer: tokenizer of the data folder.
        pooling: pooling to write to the config (default: the checkpoint's).
        normalized: have sentence-transformers scale vectors to length 1.
        dimension: have sentence-transformers keep only the first dimensions.
        scores: report of an evaluation, for the model card.
        key_encoder: export MoCo's key encoder instead of the query encoder.
        overwrite: replace ``dest``.

    Raises:
        UserError: the format cannot express the checkpoint, or the difference is above 1e-4.
    """
    loaded = load_model(checkpoint, data_bin, key_encoder=key_encoder)
    chosen = pooling or str(loaded.model.args.pooling)
    parse_pooling(chosen, loaded.model.args.encoder_layers)
    width = int(loaded.model.args.encoder_embed_dim)
    if dimension is not None and not 1 <= dimension <= width:
        raise UserError(
            f"--dimension {dimension}: the vectors of {checkpoint} have {width} dimensions; give 1 to {width}"
        )
    job = Job(loaded, tokenizer, data_bin, chosen, normalized, dimension)
    if form == "sentence-transformers" and chosen not in EXPORTED:
        raise UserError(
            f"--pooling {chosen}: sentence-transformers only pools the last layer, by {', '.join(EXPORTED)}; choose one of "
            "them, or --format hf and pool yourself"
        )
    card = model_card(checkpoint, loaded, data_bin, chosen, form, scores)
    with output_folder(dest, overwrite) as folder:
        parities = _WRITERS[form](job, folder)
        for parity in parities:
            parity.check()
        (folder / "README.md").write_text(card, encoding="utf-8")
        content = {"format": form, "parity": [asdict(parity) for parity in parities], "versions": versions()}
        (folder / EXPORT_JSON).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return ExportReport(dest, parities)


def _export_hf(job: Job, folder: Path) -> list[Parity]:
    _write_hf(job, folder, with_head=True)
    return [compare_hf(job.model, job.tokenizer, folder, job.pooling)]


def _export_sentence_transformers(job: Job, folder: Path) -> list[Parity]:
    if window := window_of(job.model.model):
        raise UserError(
            f"--format sentence-transformers: it cannot mark <s> for global attention, which --attention-window {window} of "
            "the checkpoint needs; export --format hf and pool yourself"
        )
    _write_hf(job, folder, with_head=False)
    model = job.model.model
    positions = int(model.max_positions())
    normalized, dimension, width = job.normalized, job.dimension, model.args.encoder_embed_dim
    write_modules(folder, job.pooling, width, positions, normalized=normalized, dimension=dimension)
    compared = compare_sentence_transformers(
        job.model, job.tokenizer, folder, job.pooling, normalized=normalized, dimension=dimension
    )
    return [compare_hf(job.model, job.tokenizer, folder, job.pooling), compared]


def _write_hf(job: Job, folder: Path, *, with_head: bool) -> None:
    """Write config.json, model.safetensors and the tokenizer."""
    args = job.model.model.args
    _check_architecture(args)
    symbols = job.symbols
    rows = torch.tensor(hf_ids(job.model.dictionary, job.tokenizer)[: len(symbols)])
    padding = int(rows[job.model.dictionary.pad()])
    name = "roberta" if padding == OFFSET - 1 else "bert"
    name = LONGFORMER if window_of(job.model.model) else name
    kind = kind_for(name, padding)
    weights = job.model.model.state_dict()
    weights = {key: _drop_last(key, value, len(symbols)) for key, value in weights.items()}
    size = int(rows.max()) + 1
    theirs = to_hf(weights, kind, args.encoder_layers, rows, size)
    theirs = copy_to_global(theirs) if name == LONGFORMER else theirs
    is_tied = torch.equal(weights[HEAD_WEIGHT], weights[EMBEDDING])
    # The MLM heads of RoBERTa and Longformer always use GELU.
    with_head = with_head and (name == "bert" or hf_activation(args.activation_fn) == "gelu")
    if with_head:
        theirs = {kind.prefix + key: value for key, value in theirs.items()}
        theirs |= head_to_hf(weights, kind, rows, size, is_tied=is_tied)
    config = _config(job, name, kind, size, weights, with_head=with_head, is_tied=is_tied)
    config["pad_token_id"] = padding
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    path = folder / "model.safetensors"
    try:
        import_library("safetensors.torch").save_file(theirs, str(path), {"format": "pt"})
    except Exception as error:  # safetensors raises its own type for errors of the file system
        raise UserError(f"{path}: cannot write it ({error}); nothing was written") from None
    path.chmod((folder / "config.json").stat().st_mode)  # files of safetensors can only be read by their owner
    positions = int(job.model.model.max_positions())
    write_tokenizer(job.tokenizer, symbols, folder, positions, has_segments=args.segments > 1)


def _config(
    job: Job, name: str, kind: Kind, size: int, weights: dict[str, Tensor], *, with_head: bool, is_tied: bool
) -> dict[str, Any]:
    args = job.model.model.args
    ids = hf_ids(job.model.dictionary, job.tokenizer)
    family = {"bert": "Bert", "roberta": "Roberta", LONGFORMER: "Longformer"}[name]
    window = window_of(job.model.model)
    return {
        "architectures": [f"{family}ForMaskedLM" if with_head else f"{family}Model"],
        "model_type": name,
        "vocab_size": size,
        "hidden_size": args.encoder_embed_dim,
        "num_hidden_layers": args.encoder_layers,
        "num_attention_heads": args.encoder_attention_heads,
        "intermediate_size": args.encoder_ffn_embed_dim,
        "hidden_act": hf_activation(args.activation_fn),
        "hidden_dropout_prob": args.dropout,
        "attention_probs_dropout_prob": args.attention_dropout,
        "layer_norm_eps": args.layer_norm_eps,
        "max_position_embeddings": len(weights[POSITIONS]) - OFFSET + kind.offset,
        "type_vocab_size": max(2, args.segments),
        "position_embedding_type": "absolute",
        "bos_token_id": ids[job.model.dictionary.bos()],
        "eos_token_id": ids[job.model.dictionary.eos()],
        "tie_word_embeddings": is_tied,
        **({"attention_window": [window] * args.encoder_layers} if window else {}),
    }


def _drop_last(name: str, value: Tensor, size: int) -> Tensor:
    """Drop the last row, that of ``<del>``, from tensors with a row per vocabulary entry."""
    is_row = name in (EMBEDDING, HEAD_WEIGHT, "encoder.lm_head.bias")
    return value[:size] if is_row else value


def _check_architecture(args: Any) -> None:
    """Raise UserError for architectures that neither BERT nor RoBERTa can express."""
    refused = {
        "encoder_normalize_before": "normalises before each part",
        "no_token_positional_embeddings": "has no positions",
    }
    for name, what in refused.items():
        if getattr(args, name, None):
            raise UserError(
                f"--format hf: the checkpoint's encoder {what}, which BERT and RoBERTa do not; export --format fairseq"
            )
    if not getattr(args, "layernorm_embedding", True) or not getattr(args, "encoder_learned_pos", True):
        raise UserError(
            "--format hf: the checkpoint's embeddings are not those of BERT or RoBERTa; export --format fairseq"
        )


def _export_fairseq(job: Job, folder: Path) -> list[Parity]:
    return [export_fairseq(job.model, job.symbols, job.data_bin, folder)]


_WRITERS: dict[str, Callable[[Job, Path], list[Parity]]] = {
    "hf": _export_hf,
    "sentence-transformers": _export_sentence_transformers,
    "fairseq": _export_fairseq,
}
