"""Writes the model card (README.md) of an export: recipe, data, usage and scores of the encoder."""

from collections import Counter
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fairseq_clear import __version__
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import LoadedModel
from fairseq_clear.interop.hf_folders import read_json
from fairseq_clear.interop.hf_format import window_of
from fairseq_clear.patches.checkpoint_files import read_checkpoint
from fairseq_clear.text.data_folders import CLEAR_JSON, read_clear_json

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


def model_card(
    checkpoint: Path, loaded: LoadedModel, data_bin: Path, pooling: str, form: str, scores: Path | None
) -> str:
    """Return the text of the card. It only states what checkpoint, data folder and report record; see ``exporting.export``.

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
