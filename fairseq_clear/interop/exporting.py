"""Exports a checkpoint to Hugging Face, sentence-transformers or stock fairseq, with a model card, and compares the result."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fairseq_clear import __version__
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import LoadedModel, load_model
from fairseq_clear.files import read_json, versions, write_json
from fairseq_clear.interop.hf_format import to_hf, window_of
from fairseq_clear.interop.parity import SAMPLES, Parity, compare_hf, compare_sentence_transformers, hf_ids
from fairseq_clear.interop.stock import export_fairseq
from fairseq_clear.interop.tokenizer_files import write_tokenizer
from fairseq_clear.models.clear_hf import ClearHfModel
from fairseq_clear.models.encoding import sentence_settings, text_length
from fairseq_clear.modules.pooling import parse_pooling
from fairseq_clear.output_folder import EXPORT, check_outside, output_folder
from fairseq_clear.patches.checkpoint_files import read_checkpoint
from fairseq_clear.text.data_folders import CLEAR_JSON, read_clear_json
from fairseq_clear.text.sentence_folders import EXPORTED, SentenceSettings, write_modules
from fairseq_clear.text.tokenizers import ROLES, HfTokenizer, Tokenizer
from fairseq_clear.text.vocabulary import SPM_NAME

USE = {
    "sentence-transformers": """\
from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer("FOLDER").encode(["A film.", "A movie."])""",
    "hf": """\
from transformers import AutoModel, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), AutoModel.from_pretrained("FOLDER")
inputs = tokenizer(["A film.", "A movie."], padding=True, return_tensors="pt")
states = model(**inputs).last_hidden_state""",
    "fairseq": """\
from fairseq.models.roberta import RobertaModel

roberta = RobertaModel.from_pretrained("FOLDER", "model.pt", bpe=None).eval()
states = roberta.extract_features(ids)  # ids: (1, T) token ids, from <s> to </s>""",
}
# Inserted before the last line of the example for a Longformer.
GLOBAL = """\
# global attention for <s>, as in training; without it the states differ
inputs["global_attention_mask"] = (inputs["input_ids"] == tokenizer.cls_token_id).long()
"""
# The settings of a training run that the card shows, by section of fairseq's configuration; the others may name paths.
RECIPE = {
    "task": "views augment sample_break_mode tokens_per_sample mask_prob seed",
    "criterion": "objective temperature contrastive_weight mlm_weight negatives queue_size regularizer_weight frozen_layers "
    "guide_pooling guide_layers guide_dropout",
    "model": "key_encoder projection_layers projection_dim dropout attention_dropout",
    "optimizer": "adam_betas adam_eps weight_decay",
    "lr_scheduler": "warmup_updates total_num_update",
    "optimization": "lr max_update max_epoch update_freq clip_norm",
    "dataset": "batch_size max_tokens",
    "distributed_training": "distributed_world_size",
}


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
    overwrite: bool = False,
) -> list[Parity]:
    """Write the folder ``dest``, load it with the library of its format, and compare it with the checkpoint.

    Args:
        form: ``hf``, ``sentence-transformers`` or ``fairseq``; others are as the flags of ``fairseq-clear export``.
        tokenizer: tokenizer of the data folder.

    Returns:
        The differences from the checkpoint.

    Raises:
        UserError: the format cannot express the checkpoint, or the difference is above 1e-4.
    """
    check_outside(dest, filter(None, (checkpoint, data_bin, scores)))
    loaded = load_model(checkpoint, data_bin)
    chosen = pooling or str(loaded.model.args.pooling)
    _check_format(loaded, form, chosen, dimension)
    card = model_card(checkpoint, loaded, data_bin, chosen, form, scores)
    symbols = [symbol for symbol in loaded.dictionary.symbols if symbol != "<del>"]
    texts = (*SAMPLES, *_texts_with_names(tokenizer))
    with output_folder(dest, overwrite, EXPORT) as folder:
        if form == "fairseq":
            parities = [export_fairseq(loaded, symbols, data_bin, folder)]
        else:
            _write_hf(loaded, tokenizer, symbols, folder, with_head=form == "hf")
            parities = [compare_hf(loaded, tokenizer, folder, chosen, texts=texts)]
        if form == "sentence-transformers":
            scales = _write_modules(loaded, folder, chosen, dimension, normalized=normalized)
            parities.append(
                compare_sentence_transformers(loaded, tokenizer, folder, chosen, scales, dimension, texts=texts)
            )
        for parity in parities:
            parity.check()
        (folder / "README.md").write_text(card, encoding="utf-8")
        parity_json = [asdict(parity) for parity in parities]
        write_json(folder / EXPORT[0], {"format": form, "parity": parity_json, "versions": versions()})
    return parities


def _texts_with_names(tokenizer: Tokenizer) -> list[str]:
    """Texts with the names of special tokens, which must be plain text in the exported folder."""
    names = tokenizer.special if isinstance(tokenizer, HfTokenizer) else ROLES
    return [f"a {name} b{name.swapcase()}c{name}" for name in names.values()]


def _write_modules(loaded: LoadedModel, folder: Path, pooling: str, dimension: int | None, *, normalized: bool) -> bool:
    """Write the files of sentence-transformers; return whether it scales vectors to length 1."""
    settings, width = SentenceSettings(**sentence_settings(loaded.model)), int(loaded.model.args.encoder_embed_dim)
    # sentence-transformers scales vectors before it truncates them, so they would not have length 1
    scales = (settings.normalized or normalized) and dimension is None
    settings = replace(settings, normalized=scales)
    write_modules(folder, pooling, width, text_length(loaded.model), settings, dimension=dimension)
    return scales


def _check_format(loaded: LoadedModel, form: str, pooling: str, dimension: int | None) -> None:
    """Check that pooling and dimension fit the encoder, and that the format can express them; raises UserError."""
    args = loaded.model.args
    parse_pooling(pooling, args.encoder_layers)
    if dimension is not None and not 1 <= dimension <= (width := int(args.encoder_embed_dim)):
        raise UserError(f"--dimension {dimension}: the vectors have {width} dimensions; give 1 to {width}")
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
    if strange := [what for what, is_so in parts.items() if is_so]:
        raise UserError(
            f"--format {form}: the checkpoint's encoder {strange[0]}, unlike BERT's and RoBERTa's; export --format fairseq"
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


def model_card(
    checkpoint: Path, loaded: LoadedModel, data_bin: Path, pooling: str, form: str, scores: Path | None
) -> str:
    """Return the text of the card; arguments as for ``export``.

    The checkpoint is read again for the settings of its training.
    """
    args, window = loaded.model.args, window_of(loaded.model)
    use = USE[form].replace("states =", f"{GLOBAL}states =") if window else USE[form]
    if form == "fairseq" and (data_bin / SPM_NAME).is_file():
        use = use.replace("bpe=None", 'bpe="sentencepiece"').partition("(ids)")[0] + '(roberta.encode("A film."))'
    attention = f", attention window {window}" if window else ""
    trained = f"{loaded.updates:,} updates" if loaded.updates else "imported, without further training"
    return f"""\
---
library_name: {"transformers" if form == "hf" else form}
pipeline_tag: sentence-similarity
tags: [sentence-similarity, feature-extraction, fairseq_clear]
---

# Sentence encoder

{args.encoder_layers} layers x {args.encoder_embed_dim}, {args.encoder_attention_heads} heads, \
{int(loaded.model.max_positions())} positions{attention}; {trained}. \
Vectors are hidden states under **{pooling}** pooling, before any projection head.

```python
{use}
```

## Method and recipe

{_recipe(checkpoint) if loaded.updates else "No training by fairseq_clear."}

## Data

{_data(data_bin)}

## Scores

{"None were given to the export." if scores is None else _scores(scores)}

Written by fairseq_clear {__version__}.
"""


def _recipe(checkpoint: Path) -> str:
    settings: Any = OmegaConf.to_container(read_checkpoint(str(checkpoint))["cfg"], resolve=True, enum_to_str=True)
    rows = ["| setting | value |", "|---|---|"]
    for section, names in RECIPE.items():
        values = settings.get(section) or {}
        values = values if isinstance(values, dict) else vars(values)
        for name in ("_name", *names.split()):
            if (value := values.get(name)) not in (None, ""):
                what = section if name == "_name" else f"{section} {name.replace('_', '-')}"
                rows.append(f"| {what} | `{_text(value)}` |")
    return "\n".join(rows)


def _data(data_bin: Path) -> str:
    if not (data_bin / CLEAR_JSON).is_file():
        return "Not recorded: the data folder has no clear.json."
    clear = read_clear_json(data_bin)
    lines = [f"- vocabulary: SHA-256 `{clear.get('vocabulary_hash', 'unknown')}`"]
    for name, counts in (clear.get("splits") or {}).items():
        lines.append(
            f"- {name}: {counts['sentences']:,} sentences in {counts['documents']:,} documents, {counts['tokens']:,} tokens"
        )
    if "content_hash" in clear:
        lines.append(f"- text: SHA-256 `{clear['content_hash']}`")
    if "imported" in clear:
        lines.append(f"- pretrained weights of type {clear['imported'].get('model_type')}, imported")
    return "\n".join(lines)


def _scores(path: Path) -> str:
    report = read_json(path)
    try:
        columns = list(report["columns"])
        protocol = "; ".join(f"{name} {_text(value)}" for name, value in report["protocol"].items())
        lines = [f"`fairseq-clear {report['command']}`, {protocol}.", ""]
        lines += ["| " + " | ".join(["encoder", *columns]) + " |", "|" + "---|" * (len(columns) + 1)]
        for row in report["rows"]:
            name = "/".join(str(row["label"]).split("/")[-2:])  # without the folders of this machine
            cells = [f"{row['scores'][column]:.2f}" if column in row["scores"] else "" for column in columns]
            lines.append("| " + " | ".join([name, *cells]) + " |")
    except (KeyError, TypeError, AttributeError):
        raise UserError(
            f"--scores {path}: not a report of fairseq-clear; give a file that an evaluation wrote (--output)"
        ) from None
    return "\n".join(dict.fromkeys(lines))  # an encoder may occur twice


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={_text(item)}" for name, item in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list | tuple) else str(value).replace("|", "\\|")
