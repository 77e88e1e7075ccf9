"""Exports a checkpoint to Hugging Face, sentence-transformers or stock fairseq, with a model card, and compares the result."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import LoadedModel, load_model
from fairseq_clear.files import versions, write_json
from fairseq_clear.interop.hf_format import to_hf, window_of
from fairseq_clear.interop.model_card import model_card
from fairseq_clear.interop.parity import SAMPLES, Parity, compare_hf, compare_sentence_transformers, hf_ids
from fairseq_clear.interop.stock import export_fairseq
from fairseq_clear.interop.tokenizer_files import write_tokenizer
from fairseq_clear.models.clear_hf import ClearHfModel
from fairseq_clear.models.encoding import sentence_settings, text_length
from fairseq_clear.modules.pooling import parse_pooling
from fairseq_clear.output_folder import EXPORT, output_folder
from fairseq_clear.text.sentence_folders import EXPORTED, SentenceSettings, write_modules
from fairseq_clear.text.tokenizers import ROLES, HfTokenizer, Tokenizer


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
) -> list[Parity]:
    """Write the folder ``dest``, load it with the library of its format, and compare it with the checkpoint.

    Args:
        form: ``hf``, ``sentence-transformers`` or ``fairseq``; others are as the flags of ``fairseq-clear export``.
        tokenizer: tokenizer of the data folder.
        key_encoder: export MoCo's key encoder instead of the query encoder.

    Returns:
        The differences from the checkpoint.

    Raises:
        UserError: the format cannot express the checkpoint, or the difference is above 1e-4.
    """
    loaded = load_model(checkpoint, data_bin, key_encoder=key_encoder)
    chosen = pooling or str(loaded.model.args.pooling)
    width = int(loaded.model.args.encoder_embed_dim)
    _check_format(loaded, form, chosen)
    if dimension is not None and not 1 <= dimension <= width:
        raise UserError(
            f"--dimension {dimension}: the vectors of {checkpoint} have {width} dimensions; give 1 to {width}"
        )
    card = model_card(checkpoint, loaded, data_bin, chosen, form, scores)
    symbols = [symbol for symbol in loaded.dictionary.symbols if symbol != "<del>"]
    names = tokenizer.special if isinstance(tokenizer, HfTokenizer) else ROLES
    # the names of special tokens must be plain text in the exported folder
    texts = (*SAMPLES, *(f"a {name} b{name.swapcase()}c{name}" for name in names.values()))
    with output_folder(dest, overwrite, EXPORT) as folder:
        if form == "fairseq":
            parities = [export_fairseq(loaded, symbols, data_bin, folder)]
        else:
            _write_hf(loaded, tokenizer, symbols, folder, with_head=form == "hf")
            parities = [compare_hf(loaded, tokenizer, folder, chosen, texts=texts)]
        if form == "sentence-transformers":
            settings = SentenceSettings(**sentence_settings(loaded.model))
            # sentence-transformers scales vectors before it truncates them, so they would not have length 1
            scales = (settings.normalized or normalized) and dimension is None
            settings = replace(settings, normalized=scales)
            write_modules(folder, chosen, width, text_length(loaded.model), settings, dimension=dimension)
            parities.append(
                compare_sentence_transformers(loaded, tokenizer, folder, chosen, scales, dimension, texts=texts)
            )
        for parity in parities:
            parity.check()
        (folder / "README.md").write_text(card, encoding="utf-8")
        parity_json = [asdict(parity) for parity in parities]
        write_json(folder / EXPORT[0], {"format": form, "parity": parity_json, "versions": versions()})
    return parities


def _check_format(loaded: LoadedModel, form: str, pooling: str) -> None:
    """Check that the pooling fits the encoder, and that the format can express both; raises UserError."""
    args = loaded.model.args
    parse_pooling(pooling, args.encoder_layers)
    if form == "fairseq" and isinstance(loaded.model, ClearHfModel):
        raise UserError("--format fairseq: the encoder is a model of transformers; give hf or sentence-transformers")
    if form == "fairseq":
        return
    parts = {
        "normalises before each part": getattr(args, "encoder_normalize_before", False),
        "has no positions": getattr(args, "no_token_positional_embeddings", False),
        "has no LayerNorm of its embeddings": not getattr(args, "layernorm_embedding", True),
        "has positions that are not learned": not getattr(args, "encoder_learned_pos", True),
    }
    for what, is_so in parts.items():
        if is_so:
            raise UserError(
                f"--format {form}: the checkpoint's encoder {what}, unlike BERT's and RoBERTa's; export --format fairseq"
            )
    if form == "hf":
        return
    if pooling not in EXPORTED:
        raise UserError(
            f"--pooling {pooling}: sentence-transformers only pools the last layer, by {', '.join(EXPORTED)}; choose one of "
            "them, or --format hf and pool yourself"
        )
    if window := window_of(loaded.model):
        raise UserError(
            f"--format sentence-transformers: it cannot mark <s> for global attention, which --attention-window {window} of "
            "the checkpoint needs; export --format hf and pool yourself"
        )


def _write_hf(loaded: LoadedModel, tokenizer: Tokenizer, symbols: list[str], folder: Path, *, with_head: bool) -> None:
    """Write config.json, model.safetensors and the tokenizer. ``symbols`` is the vocabulary without ``<del>``."""
    model: Any = loaded.model
    if isinstance(model, ClearHfModel):
        model.encoder.save(folder, with_head=with_head)
        segments = getattr(model.encoder.backbone.model.config, "type_vocab_size", 0)
    else:
        ids = hf_ids(loaded.dictionary, tokenizer)[: len(symbols)]
        to_hf(model, ids, with_head=with_head).save(folder)
        segments = model.args.segments
    write_tokenizer(tokenizer, symbols, folder, text_length(model), has_segments=segments > 1)
