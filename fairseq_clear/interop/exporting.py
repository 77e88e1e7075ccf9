"""Exports a checkpoint to Hugging Face, sentence-transformers or stock fairseq, with a model card, and compares the result."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from fairseq_clear import __version__
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import LoadedModel, load_model
from fairseq_clear.files import read_json, versions, write_json
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
from fairseq_clear.interop.parity import SAMPLES, Parity, compare_hf, compare_sentence_transformers, hf_ids, name_texts
from fairseq_clear.interop.stock import export_fairseq
from fairseq_clear.interop.tokenizer_files import write_tokenizer
from fairseq_clear.libraries import import_library
from fairseq_clear.models.clear_hf import ClearHfModel
from fairseq_clear.models.encoding import sentence_settings, text_length
from fairseq_clear.models.state_dicts import EMBEDDING, POSITIONS, VOCABULARY_ROWS
from fairseq_clear.modules.pooling import parse_pooling
from fairseq_clear.output_folder import output_folder
from fairseq_clear.patches.checkpoint_files import read_checkpoint
from fairseq_clear.text.data_folders import CLEAR_JSON, read_clear_json
from fairseq_clear.text.sentence_folders import EXPORTED, SentenceSettings, write_modules
from fairseq_clear.text.tokenizers import ROLES, HfTokenizer, Tokenizer

DELETED = "<del>"
EXPORT_JSON = "fairseq_clear.json"
# The settings of a training run that the card shows, by section of fairseq's configuration.
RECIPE = {
    "task": ("_name", "views", "augment", "sample_break_mode", "tokens_per_sample", "mask_prob", "seed"),
    "criterion": (
        *("_name", "objective", "temperature", "contrastive_weight", "mlm_weight", "negatives", "queue_size"),
        *("regularizer_weight", "frozen_layers", "guide_pooling", "guide_layers", "guide_dropout"),
    ),
    "model": ("_name", "key_encoder", "projection_layers", "projection_dim", "dropout", "attention_dropout"),
    "optimizer": ("_name", "adam_betas", "adam_eps", "weight_decay"),
    "lr_scheduler": ("_name", "warmup_updates", "total_num_update"),
    "optimization": ("lr", "max_update", "max_epoch", "update_freq", "clip_norm"),
    "dataset": ("batch_size", "max_tokens"),
    "distributed_training": ("distributed_world_size",),
}
USE = {
    "sentence-transformers": "from sentence_transformers import SentenceTransformer\n\n"
    'vectors = SentenceTransformer("FOLDER").encode(["A film.", "A movie."])',
    "hf": "from transformers import AutoModel, AutoTokenizer\n\n"
    'tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), AutoModel.from_pretrained("FOLDER")\n'
    'states = model(**tokenizer(["A film.", "A movie."], padding=True, return_tensors="pt")).last_hidden_state',
    "longformer": "import torch\nfrom transformers import AutoModel, AutoTokenizer\n\n"
    'tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), AutoModel.from_pretrained("FOLDER")\n'
    'inputs = tokenizer(["A film.", "A movie."], padding=True, return_tensors="pt")\n'
    'is_start = torch.zeros_like(inputs["input_ids"])\n'
    "is_start[:, 0] = 1  # global attention for <s>, as in training; without it the states differ\n"
    "states = model(**inputs, global_attention_mask=is_start).last_hidden_state",
    "fairseq": "from fairseq.models.roberta import RobertaModel\n\n"
    'roberta = RobertaModel.from_pretrained("FOLDER", "model.pt", bpe=None)',
}
LIBRARIES = {"sentence-transformers": "sentence-transformers", "hf": "transformers", "fairseq": "fairseq"}


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
        checkpoint: checkpoint of clear_roberta or roberta.
        data_bin: folder with its dict.txt.
        dest, pooling, normalized, dimension, scores, overwrite: as the flags of ``fairseq-clear export``.
        form: ``hf``, ``sentence-transformers`` or ``fairseq``.
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
    symbols = [symbol for symbol in loaded.dictionary.symbols if symbol != DELETED]
    names = tokenizer.special if isinstance(tokenizer, HfTokenizer) else ROLES
    texts = (*SAMPLES, *name_texts(names.values()))
    with output_folder(dest, overwrite) as folder:
        if form == "fairseq":
            if isinstance(loaded.model, ClearHfModel):
                raise UserError(
                    "--format fairseq: the encoder is a model of transformers; give hf or sentence-transformers"
                )
            parities = [export_fairseq(loaded, symbols, data_bin, folder)]
        else:
            if isinstance(loaded.model, ClearHfModel):
                _save_hf(loaded.model, tokenizer, symbols, folder, with_head=form == "hf")
            else:
                _write_hf(loaded, tokenizer, symbols, folder, with_head=form == "hf")
            parities = [compare_hf(loaded, tokenizer, folder, chosen, texts=texts)]
        if form == "sentence-transformers":
            parities.append(_add_modules(loaded, tokenizer, folder, chosen, texts, normalized, dimension))
        for parity in parities:
            parity.check()
        (folder / "README.md").write_text(card, encoding="utf-8")
        parity_json = [asdict(parity) for parity in parities]
        write_json(folder / EXPORT_JSON, {"format": form, "parity": parity_json, "versions": versions()})
    return parities


def _add_modules(
    loaded: LoadedModel,
    tokenizer: Tokenizer,
    folder: Path,
    pooling: str,
    texts: Sequence[str],
    normalized: bool,
    dimension: int | None,
) -> Parity:
    """Make the Hugging Face folder a sentence-transformers folder, with the settings that were imported, and compare it."""
    settings = SentenceSettings(**sentence_settings(loaded.model))
    # sentence-transformers scales vectors before it truncates them, so they would not have length 1
    settings = replace(settings, normalized=(settings.normalized or normalized) and dimension is None)
    width = int(loaded.model.args.encoder_embed_dim)
    write_modules(folder, pooling, width, text_length(loaded.model), settings, dimension=dimension)
    return compare_sentence_transformers(
        loaded, tokenizer, folder, pooling, normalized=settings.normalized, dimension=dimension, texts=texts
    )


def _check_format(loaded: LoadedModel, form: str, pooling: str) -> None:
    """Check that the pooling fits the encoder, and that the format can express pooling and attention; raises UserError."""
    parse_pooling(pooling, loaded.model.args.encoder_layers)
    if form != "sentence-transformers":
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


def _save_hf(model: ClearHfModel, tokenizer: Tokenizer, symbols: list[str], folder: Path, *, with_head: bool) -> None:
    """As ``_write_hf``, for a model of transformers."""
    model.encoder.save(folder, with_head=with_head)
    has_segments = getattr(model.encoder.backbone.model.config, "type_vocab_size", 0) > 1
    write_tokenizer(tokenizer, symbols, folder, text_length(model), has_segments=has_segments)


def _write_hf(loaded: LoadedModel, tokenizer: Tokenizer, symbols: list[str], folder: Path, *, with_head: bool) -> None:
    """Write config.json, model.safetensors and the tokenizer. ``symbols`` is the vocabulary without ``<del>``."""
    args, dictionary, window = loaded.model.args, loaded.dictionary, window_of(loaded.model)
    _check_architecture(args)
    ids = hf_ids(dictionary, tokenizer)
    rows, size = torch.tensor(ids[: len(symbols)]), max(ids[: len(symbols)]) + 1
    padding = ids[dictionary.pad()]
    name = LONGFORMER if window else "roberta" if padding == OFFSET - 1 else "bert"
    kind = kind_for(name, padding)
    weights = {  # without the row of <del>, the last one
        key: value[: len(symbols)] if key in VOCABULARY_ROWS else value
        for key, value in loaded.model.state_dict().items()
    }
    is_tied = torch.equal(weights[HEAD_WEIGHT], weights[EMBEDDING])
    # The MLM heads of RoBERTa and Longformer always use GELU.
    with_head = with_head and (name == "bert" or hf_activation(args.activation_fn) == "gelu")
    theirs = to_hf(weights, kind, args.encoder_layers, rows, size, with_head, is_tied)
    theirs = copy_to_global(theirs) if name == LONGFORMER else theirs
    config = _config(args, window, name, with_head=with_head) | {
        "vocab_size": size,
        "max_position_embeddings": len(weights[POSITIONS]) - OFFSET + kind.offset,
        "bos_token_id": ids[dictionary.bos()],
        "eos_token_id": ids[dictionary.eos()],
        "pad_token_id": padding,
        "tie_word_embeddings": is_tied,
    }
    write_json(folder / "config.json", config)
    path = folder / "model.safetensors"
    try:
        import_library("safetensors.torch").save_file(theirs, str(path), {"format": "pt"})
    except Exception as error:  # safetensors raises its own type for errors of the file system
        raise UserError(f"{path}: cannot write it ({error}); nothing was written") from None
    path.chmod((folder / "config.json").stat().st_mode)  # files of safetensors can only be read by their owner
    write_tokenizer(tokenizer, symbols, folder, text_length(loaded.model), has_segments=args.segments > 1)


def _config(args: Any, window: int, name: str, *, with_head: bool) -> dict[str, Any]:
    """The part of config.json that follows from the settings of the model."""
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


def model_card(
    checkpoint: Path, loaded: LoadedModel, data_bin: Path, pooling: str, form: str, scores: Path | None
) -> str:
    """Return the text of the card. It only states what checkpoint, data folder and report record; see ``export``.

    The checkpoint is read again for the settings of its training.

    Raises:
        UserError: ``scores`` is not such a report.
    """
    settings = OmegaConf.to_container(read_checkpoint(str(checkpoint))["cfg"], resolve=True, enum_to_str=True)
    sections = {
        "Method and recipe": _recipe(settings) if loaded.updates else ["No training by fairseq_clear."],
        "Data": _data(data_bin),
        "Scores": _scores(scores) if scores is not None else ["None were given to the export."],
    }
    head = f"""\
---
library_name: {LIBRARIES[form]}
pipeline_tag: sentence-similarity
tags: [sentence-similarity, feature-extraction, fairseq_clear]
---

# Sentence encoder

{_summary(loaded)}. Vectors are hidden states under **{pooling}** pooling, before any projection head.

```python
{USE["longformer" if window_of(loaded.model) else form]}
```
"""
    body = [line for title, lines in sections.items() for line in (f"\n## {title}\n", *lines)]
    return "\n".join([head.rstrip("\n"), *body, "", f"Written by fairseq_clear {__version__}.", ""])


def _summary(loaded: LoadedModel) -> str:
    args, window = loaded.model.args, window_of(loaded.model)
    sizes = f"{args.encoder_layers} layers x {args.encoder_embed_dim}, {args.encoder_attention_heads} heads"
    positions = f"{int(loaded.model.max_positions())} positions" + (f", attention window {window}" if window else "")
    trained = f"{loaded.updates:,} updates" if loaded.updates else "imported, without further training"
    return f"{sizes}, {positions}; {trained}"


def _recipe(settings: Any) -> list[str]:
    rows = ["| setting | value |", "|---|---|"]
    for section, names in RECIPE.items():
        values = settings.get(section) or {}
        values = values if isinstance(values, dict) else vars(values)
        for name in names:
            value = values.get(name)
            if value is not None and value != "":
                rows.append(
                    f"| {section}{'' if name == '_name' else ' ' + name.replace('_', '-')} | `{_text(value)}` |"
                )
    return rows


def _data(data_bin: Path) -> list[str]:
    if not (data_bin / CLEAR_JSON).is_file():
        return ["Not recorded: the data folder has no clear.json."]
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
    return lines


def _scores(path: Path) -> list[str]:
    report = read_json(path)
    try:
        columns = list(report["columns"])
        named = [(*_names(row["label"], row["encoder"]), row["scores"]) for row in report["rows"]]
        protocol = "; ".join(f"{name} {_text(value)}" for name, value in report["protocol"].items())
        title = f"`fairseq-clear {report['command']}`, {protocol}."
    except (KeyError, TypeError, AttributeError):
        raise UserError(
            f"--scores {path}: not a report of fairseq-clear; give a file that an evaluation wrote (--output)"
        ) from None
    lines = [title, "", "| " + " | ".join(["encoder", "pooling", *columns]) + " |", "|" + "---|" * (len(columns) + 2)]
    count = Counter((short, pooling) for short, _, pooling, _ in named)
    for short, long, pooling, scores in named:
        cells = [f"{scores[column]:.2f}" if column in scores else "" for column in columns]
        lines.append("| " + " | ".join([long if count[short, pooling] > 1 else short, pooling, *cells]) + " |")
    return list(dict.fromkeys(lines))  # an encoder may occur twice


def _names(label: str, encoder: dict[str, Any]) -> tuple[str, str, str]:
    """Return a row's name with the file name of its checkpoint, its name with the folder too, and its pooling.

    The words after the path stay in the name, such as ``whitened`` or ``median of 5``; the pooling is removed.
    """
    path, pooling = str(encoder.get("checkpoint") or ""), str(encoder.get("pooling") or "")
    head = path if path and label.startswith(path) else label.partition(" ")[0]
    rest = [word for word in label[len(head) :].split() if word != pooling]
    short, long = Path(head).name, "/".join(Path(head).parts[-2:])
    return " ".join([short, *rest]), " ".join([long, *rest]), pooling


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={_text(item)}" for name, item in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list | tuple) else str(value).replace("|", "\\|")
