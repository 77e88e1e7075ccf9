"""Exports a checkpoint to Hugging Face, sentence-transformers or stock fairseq, and compares the result with it."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import LoadedModel, load_model
from fairseq_clear.files import versions
from fairseq_clear.interop.hf_folders import EXPORTED, write_modules
from fairseq_clear.interop.hf_format import (
    HEAD_WEIGHT,
    LONGFORMER,
    OFFSET,
    copy_to_global,
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
from fairseq_clear.models.state_dicts import EMBEDDING, POSITIONS, VOCABULARY_ROWS
from fairseq_clear.modules.pooling import parse_pooling
from fairseq_clear.output_folder import output_folder
from fairseq_clear.text.tokenizers import Tokenizer

DELETED = "<del>"
EXPORT_JSON = "fairseq_clear.json"


@dataclass(frozen=True)
class Job:
    """A checkpoint to export, with its settings; see ``export``."""

    model: LoadedModel
    tokenizer: Tokenizer
    data_bin: Path
    pooling: str
    normalized: bool
    dimension: int | None

    @property
    def args(self) -> Any:
        """The settings of the model."""
        return self.model.model.args

    @property
    def positions(self) -> int:
        """Maximum number of tokens of a text."""
        return int(self.model.model.max_positions())

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
        dest, pooling, normalized, dimension, scores, overwrite: as the flags of ``fairseq-clear export``.
        form: ``hf``, ``sentence-transformers`` or ``fairseq``.
        tokenizer: tokenizer of the data folder.
        key_encoder: export MoCo's key encoder instead of the query encoder.

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
    if form == "sentence-transformers" and chosen not in EXPORTED:
        raise UserError(
            f"--pooling {chosen}: sentence-transformers only pools the last layer, by {', '.join(EXPORTED)}; choose one of "
            "them, or --format hf and pool yourself"
        )
    card = model_card(checkpoint, loaded, data_bin, chosen, form, scores)
    with output_folder(dest, overwrite) as folder:
        parities = _WRITERS[form](Job(loaded, tokenizer, data_bin, chosen, normalized, dimension), folder)
        for parity in parities:
            parity.check()
        (folder / "README.md").write_text(card, encoding="utf-8")
        parity_json = [asdict(parity) for parity in parities]
        _write_json(folder / EXPORT_JSON, {"format": form, "parity": parity_json, "versions": versions()})
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
    settings: dict[str, Any] = {"normalized": job.normalized, "dimension": job.dimension}
    write_modules(folder, job.pooling, job.args.encoder_embed_dim, job.positions, **settings)
    compared = job.model, job.tokenizer, folder, job.pooling
    return [compare_hf(*compared), compare_sentence_transformers(*compared, **settings)]


def _export_fairseq(job: Job, folder: Path) -> list[Parity]:
    return [export_fairseq(job.model, job.symbols, job.data_bin, folder)]


_WRITERS: dict[str, Callable[[Job, Path], list[Parity]]] = {
    "hf": _export_hf,
    "sentence-transformers": _export_sentence_transformers,
    "fairseq": _export_fairseq,
}


def _write_hf(job: Job, folder: Path, *, with_head: bool) -> None:
    """Write config.json, model.safetensors and the tokenizer."""
    args, symbols, dictionary = job.args, job.symbols, job.model.dictionary
    _check_architecture(args)
    ids = hf_ids(dictionary, job.tokenizer)
    rows, size = torch.tensor(ids[: len(symbols)]), max(ids[: len(symbols)]) + 1
    padding = ids[dictionary.pad()]
    name = LONGFORMER if window_of(job.model.model) else "roberta" if padding == OFFSET - 1 else "bert"
    kind = kind_for(name, padding)
    weights = {  # without the row of <del>, the last one
        key: value[: len(symbols)] if key in VOCABULARY_ROWS else value
        for key, value in job.model.model.state_dict().items()
    }
    is_tied = torch.equal(weights[HEAD_WEIGHT], weights[EMBEDDING])
    # The MLM heads of RoBERTa and Longformer always use GELU.
    with_head = with_head and (name == "bert" or hf_activation(args.activation_fn) == "gelu")
    theirs = to_hf(weights, kind, args.encoder_layers, rows, size, with_head, is_tied)
    theirs = copy_to_global(theirs) if name == LONGFORMER else theirs
    config = _config(job, name, with_head=with_head)
    config |= {
        "vocab_size": size,
        "max_position_embeddings": len(weights[POSITIONS]) - OFFSET + kind.offset,
        "bos_token_id": ids[dictionary.bos()],
        "eos_token_id": ids[dictionary.eos()],
        "pad_token_id": padding,
        "tie_word_embeddings": is_tied,
    }
    _write_json(folder / "config.json", config)
    path = folder / "model.safetensors"
    try:
        import_library("safetensors.torch").save_file(theirs, str(path), {"format": "pt"})
    except Exception as error:  # safetensors raises its own type for errors of the file system
        raise UserError(f"{path}: cannot write it ({error}); nothing was written") from None
    path.chmod((folder / "config.json").stat().st_mode)  # files of safetensors can only be read by their owner
    write_tokenizer(job.tokenizer, symbols, folder, job.positions, has_segments=args.segments > 1)


def _config(job: Job, name: str, *, with_head: bool) -> dict[str, Any]:
    """The part of config.json that follows from the settings of the model."""
    args, window = job.args, window_of(job.model.model)
    family = {"bert": "Bert", "roberta": "Roberta", LONGFORMER: "Longformer"}[name]
    return {
        "architectures": [f"{family}ForMaskedLM" if with_head else f"{family}Model"],
        "model_type": name,
        "hidden_size": args.encoder_embed_dim,
        "num_hidden_layers": args.encoder_layers,
        "num_attention_heads": args.encoder_attention_heads,
        "intermediate_size": args.encoder_ffn_embed_dim,
        "hidden_act": hf_activation(args.activation_fn),
        "hidden_dropout_prob": args.dropout,
        "attention_probs_dropout_prob": args.attention_dropout,
        "layer_norm_eps": args.layer_norm_eps,
        "type_vocab_size": max(2, args.segments),
        "position_embedding_type": "absolute",
        **({"attention_window": [window] * args.encoder_layers} if window else {}),
    }


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _check_architecture(args: Any) -> None:
    """Raise UserError for architectures that neither BERT nor RoBERTa can express."""
    parts = {
        "normalises before each part": getattr(args, "encoder_normalize_before", False),
        "has no positions": getattr(args, "no_token_positional_embeddings", False),
        "has no LayerNorm of its embeddings": not getattr(args, "layernorm_embedding", True),
        "has positions that are not learned": not getattr(args, "encoder_learned_pos", True),
    }
    for what, is_so in parts.items():
        if is_so:
            raise UserError(
                f"--format hf: the checkpoint's encoder {what}, unlike BERT's and RoBERTa's; export --format fairseq"
            )
