"""``clear.json``: what a data folder holds, how it was made, and hashes by which others recognise it."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_clear import register
from fairseq_clear.files import versions
from fairseq_clear.preparation.reports import DocumentLengths, SplitCounts
from fairseq_clear.preparation.settings import PrepareSettings
from fairseq_clear.preparation.staging import TextParts
from fairseq_clear.text.data_folders import CLEAR_FORMAT, CLEAR_JSON

register()

PACKAGES = ("numpy", "sentencepiece", "sentencex", "torch")


def content_hash(train: TextParts, valid: TextParts) -> str:
    """Return the SHA-256 of four lines: ``train``, its text's SHA-256, ``valid``, its text's SHA-256.

    Text means canonical text, so the same content in another format, or with another tokenizer, has the same hash.
    """
    both = f"train\n{train.digest.hexdigest()}\nvalid\n{valid.digest.hexdigest()}\n"
    return hashlib.sha256(both.encode("ascii")).hexdigest()


def write_manifests(
    folder: Path,
    shards: Sequence[Path],
    settings: PrepareSettings,
    tokenizer: dict[str, Any],
    hashes: Sequence[str],
    train: Sequence[SplitCounts],
    valid: SplitCounts,
    seconds: float,
    paraphrases: Sequence[dict[str, Any]],
) -> dict[str, SplitCounts]:
    """Write ``clear.json`` for each shard and, if there are several, one for the folder above; return its counts.

    Args:
        folder: the folder being made.
        shards: the data folders in it, or ``folder`` itself.
        settings: how it was made.
        tokenizer: kind, files, id_offset (1 if a fairseq id is a sentencepiece id + 1, else null).
        hashes: for each shard its content hash.
        train: for each shard the counts of its training text.
        valid: counts of the validation text, which all shards share.
        seconds: how long it took so far.
        paraphrases: for each shard what ``clear.json`` says of the aligned texts, by name.
    """
    common = {
        "format": CLEAR_FORMAT,
        "tokenizer": tokenizer,
        "vocabulary_hash": hashlib.sha256((shards[0] / "dict.txt").read_bytes()).hexdigest(),
    }
    end = {"settings": settings.as_json(), "versions": versions(), "seconds": round(seconds, 3)}
    for shard, digest, counts, aligned in zip(shards, hashes, train, paraphrases, strict=True):
        splits = {"train": counts.as_json(), "valid": valid.as_json()}
        content = {**common, "content_hash": digest, "splits": splits}
        _write(shard, {**content, **({"paraphrases": aligned} if aligned else {}), **end})
    total = {"train": _sum(train), "valid": valid}
    if len(shards) > 1:
        digest = hashlib.sha256("\n".join(hashes).encode("ascii")).hexdigest()
        splits = {name: counts.as_json() for name, counts in total.items()}
        names = [shard.name for shard in shards]
        _write(folder, {**common, "shards": names, "content_hash": digest, "splits": splits, **end})
    return total


def _sum(counts: Sequence[SplitCounts]) -> SplitCounts:
    lengths = DocumentLengths()
    for one in counts:
        lengths.update(one.lengths)
    return SplitCounts(lengths, sum(one.tokens for one in counts), sum(one.unknown for one in counts))


def _write(folder: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, ensure_ascii=False, indent=2)
    (folder / CLEAR_JSON).write_text(text + "\n", encoding="utf-8")
