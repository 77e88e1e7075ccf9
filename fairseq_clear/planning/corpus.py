"""What a data folder says of its text: as many texts as the recipe makes of it, and the vocabulary."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.spec import check_knobs
from fairseq_clear.text.data_folders import CLEAR_JSON
from fairseq_clear.views.view_table import find_view_source

__all__ = ["Corpus", "Folder", "read_folder"]

SYMBOLS = 6  # <s>, <pad>, </s>, <unk>, which dict.txt leaves out, then <mask> and <del>


@dataclass(frozen=True)
class Corpus:
    """The training text of a data folder: texts as the recipe cuts them, and its tokens."""

    texts: int
    tokens: int


@dataclass(frozen=True)
class Folder:
    """What a plan takes from a data folder.

    Attributes:
        corpus: its text.
        vocabulary: rows of the embedding.
        text_length: tokens of a text on average, where each sentence is one; None where texts are filled up.
    """

    corpus: Corpus
    vocabulary: int
    text_length: int | None


def read_folder(folder: Path, task: Mapping[str, Any]) -> Folder:
    """Read clear.json and dict.txt; of a folder of shards their sum.

    Raises:
        UserError: no such file, or not what fairseq-clear prepare wrote.
    """
    manifest = folder / CLEAR_JSON
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        counts = content["splits"]["train"]
        sentences, tokens = int(counts["sentences"]), int(counts["tokens"])
        documents = int(counts.get("documents", 1))
        shards = content.get("shards") or ["."]
        with open(folder / shards[0] / "dict.txt", encoding="utf-8") as lines:
            vocabulary = sum(1 for _ in lines) + SYMBOLS
    except OSError as error:
        raise UserError(
            f"--data-bin {folder}: {error.filename}: {error.strerror}; give a folder of fairseq-clear prepare, or "
            "--vocabulary in its place"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"--data-bin {folder}: {manifest} is not what fairseq-clear prepare writes ({error!r})"
        ) from None
    if sentences < 1 or tokens < 1:
        raise UserError(f"--data-bin {folder}: {manifest} counts no text to train on")
    if str(task.get("document_boundary", "blank")) == "line":
        documents = sentences
    texts, length = _texts(task, sentences, tokens, documents)
    return Folder(Corpus(texts, tokens), vocabulary, length)


def _texts(task: Mapping[str, Any], sentences: int, tokens: int, documents: int) -> tuple[int, int | None]:
    """The number of texts that the recipe makes, and the tokens of a text, or of a sentence where a text is several.

    Neighbours are counted as if all documents had the same length, and sentences too; every document has spans.
    """
    limit = int(task.get("tokens_per_sample", 512))
    length = min(round(tokens / sentences) + 1, limit)  # <s> is not among the tokens counted
    kind, step = find_view_source(str(task.get("views", "same")), flag="task.views")
    if step.name == "span":
        return documents, None
    if step.name == "neighbor":
        each = int(check_knobs(step, kind.knobs, flag="task.views")["sentences"])
        return max(sentences // each - documents, 1), length
    if str(task.get("sample_break_mode", "none")) == "eos":
        is_aligned = bool(kind.values or task.get("hard_negatives"))  # a long line is then cut off, not split
        return sentences if is_aligned else max(sentences, math.ceil((tokens - sentences) / max(limit - 2, 1))), length
    return math.ceil(tokens / max(limit - 1, 1)), None
