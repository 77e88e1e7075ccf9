"""Writes the model card (README.md) of an export, from the checkpoint, the data folder and a report of scores."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fairseq_clear import __version__
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import LoadedModel
from fairseq_clear.files import read_json
from fairseq_clear.interop.hf_format import window_of
from fairseq_clear.patches.checkpoint_files import read_checkpoint
from fairseq_clear.text.data_folders import CLEAR_JSON, read_clear_json

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

roberta = RobertaModel.from_pretrained("FOLDER", "model.pt", bpe=None)""",
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


def model_card(
    checkpoint: Path, loaded: LoadedModel, data_bin: Path, pooling: str, form: str, scores: Path | None
) -> str:
    """Return the text of the card; arguments as for ``export``.

    The checkpoint is read again for the settings of its training.
    """
    args, window = loaded.model.args, window_of(loaded.model)
    use = USE[form].replace("states =", f"{GLOBAL}states =") if window else USE[form]
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
