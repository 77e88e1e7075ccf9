"""Views per second on one core, compared with nlpaug, EDA and DeCLUTR's sampler on the same texts.

    python scripts/bench/views.py [--words 25 320] [--texts 400] [--repeats 5] [--corpora DIR --synonyms FILE] [--json FILE]

Our side makes whole items of the training set, ready to be collated: it reads a line from the memory map, hashes its identity,
makes the generators of two views and augments both. The other side calls only the augmenter, text to text, twice per line. In
training the ids of these views must be made too; the rows ``with sentencepiece`` include this. Texts, share of changed words
and synonyms are the same on both sides. Spans are six of a document of 2,100 words: two anchors with two positives each. The
sides take turns. Seconds are the processor time of the process; the ratio is the median of the ratios of the rounds.
"""

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from prepare import SAMPLE_LINES, train_model, write_text
from results import compare, finish, flags, is_installed, missing_row
from steps import COMMON
from text_peers import Augment, declutr, eda, nlpaug
from texts import documents, generate, make_words, neighbours

from fairseq_clear.cli.main import main as main_of_cli
from fairseq_clear.lifecycle import Needs
from fairseq_clear.text.data_folders import load_tokenizer

AIM = ">= 50"
DOCUMENT_WORDS, LINE_WORDS = 2_100, 25
SPAN = "span:anchors=2,positives=2"
Side = Callable[[int], object]
# Our spec, and the corresponding augmenter of nlpaug.
PAIRS = (
    ("del-word:ratio=0.3", "delete"),
    ("reorder", "swap"),
    ("subs:ratio=0.3", "synonym"),
    ("subs:ratio=0.3", "substitute"),
)


def main() -> None:
    """Print the table; --json also writes it to a file."""
    arguments = flags(
        __doc__, words=[25, 320], texts=400, documents=50, vocab_size=16_000, sample_lines=SAMPLE_LINES, corpora=Path,
        synonyms=Path,
    )  # fmt: skip
    if (arguments.corpora is None) != (arguments.synonyms is None):
        sys.exit("--corpora and --synonyms go together: real words need real synonyms")
    table, found = table_of(arguments.synonyms), []
    with tempfile.TemporaryDirectory() as name:
        tokenizer = make_tokenizer(Path(name), arguments.corpora, arguments.vocab_size, arguments.sample_lines)
        for words in arguments.words:
            texts = make_texts(arguments.corpora, words, arguments.texts)
            folder = Path(name) / str(words)
            data = make_data(folder, texts, tokenizer, table)
            found += beside_nlpaug(texts, data, table, arguments.repeats, words)
            found += beside_eda(texts, data, table, arguments.repeats, words)
        texts = make_texts(arguments.corpora, DOCUMENT_WORDS, arguments.documents)
        data = make_data(Path(name) / "documents", [in_lines(text) for text in texts], tokenizer)
        ours = views_of(data, len(texts), "--views", SPAN)
        sampler = "DeCLUTR's sampler (reimplemented)"
        what, theirs = "6 spans of a document", peer(declutr(), texts)
        found.append(compare_views(what, ours, theirs, 6 * len(texts), sampler, "", arguments.repeats))
    finish(found, arguments)


def beside_nlpaug(
    texts: list[str], data: Path, table: Mapping[str, list[str]], repeats: int, words: int
) -> list[dict[str, Any]]:
    """The rows of nlpaug for one length."""
    if not is_installed("nlpaug"):
        return [missing_row(f"views, {spec}, {words} words", "nlpaug", AIM) for spec, _ in PAIRS]
    augmenters = nlpaug(table, data)
    # a lower bound of the cost of our views
    what, ours = f"views, none, {words} words", views_of(data, len(texts), "--augment", "none")
    theirs = peer(augmenters["delete"], texts, 2)
    rows = [compare_views(what, ours, theirs, 2 * len(texts), "nlpaug delete", "", repeats)]
    encode = load_tokenizer(data).encode
    for spec, name in PAIRS:
        what, count = f"views, {spec}, {words} words", 2 * len(texts)
        ours = views_of(data, len(texts), "--augment", spec)
        theirs = peer(augmenters[name], texts, 2)
        rows.append(compare_views(what, ours, theirs, count, f"nlpaug {name}", AIM, repeats))
        if name == "delete":
            theirs = peer(augmenters[name], texts, 2, encode)
            baseline = f"nlpaug {name}, with sentencepiece"
            rows.append(compare_views(what, ours, theirs, count, baseline, "", repeats))
    return rows


def beside_eda(
    texts: list[str], data: Path, table: Mapping[str, list[str]], repeats: int, words: int
) -> list[dict[str, Any]]:
    """The row of EDA for one length."""
    what = f"views, eda, {words} words"
    if not is_installed("textaugment"):
        return [missing_row(what, "textaugment")]
    ours = views_of(data, len(texts), "--augment", "eda")
    theirs = peer(eda(table), texts, 2)
    return [compare_views(what, ours, theirs, 2 * len(texts), "EDA (textaugment)", "", repeats)]


def compare_views(what: str, ours: Side, theirs: Side, views: int, baseline: str, aim: str, repeats: int) -> Any:
    """One row; each call of a side makes ``views`` views on one core."""
    return compare(
        what, ours, theirs, repeats, baseline=baseline, aim=aim, unit="views/s", amount=views, warm_up=1,
        clock=time.process_time,
    )  # fmt: skip


def items_of(data: Path, texts: int, *recipe: str) -> Any:
    """The training set for these flags."""
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, [str(data), *COMMON, "--arch", "clear_roberta_tiny", *recipe])
    task: Any = tasks.setup_task(convert_namespace_to_omegaconf(args).task)
    task.needs = Needs(mlm=False, views=True)
    task.load_dataset("train")
    dataset = task.dataset("train")
    assert len(dataset) == texts, f"{len(dataset)} items of {texts} texts"
    return dataset


def views_of(data: Path, texts: int, *recipe: str) -> Callable[[int], object]:
    """A function that makes all items of the training set for these flags, in another epoch at each call."""
    dataset = items_of(data, texts, *recipe)

    def make(epoch: int) -> None:
        dataset.set_epoch(epoch + 1)
        for index in range(len(dataset)):
            dataset[index]

    return make


def peer(
    augment: Augment, texts: list[str], calls: int = 1, encode: Callable[[str], list[str]] | None = None
) -> Callable[[int], object]:
    """A function that makes all views of the texts with another library, and encodes them if ``encode`` is given."""

    def make(_: int) -> None:
        for text in texts:
            for _ in range(calls):
                views = augment(text)
                if encode is not None:
                    for view in views:
                        encode(view)

    return make


def make_texts(corpora: Path | None, words: int, count: int) -> list[str]:
    """``count`` texts of ``words`` words: generated, or cut from the running text of a corpus."""
    if corpora is None:
        return list(generate(count, (words, words)))
    running: Iterator[str] = (word for text in documents(corpora, "movie_reviews") for word in text.split())
    return [" ".join(word for _, word in zip(range(words), running, strict=False)) for _ in range(count)]


def in_lines(text: str) -> str:
    """The words of a document, in lines of LINE_WORDS words."""
    words = text.split()
    return "\n".join(" ".join(words[begin : begin + LINE_WORDS]) for begin in range(0, len(words), LINE_WORDS))


def table_of(synonyms: Path | None) -> dict[str, list[str]]:
    """A table of synonyms by word: read from a file, or generated."""
    if synonyms is None:
        return neighbours(make_words())
    return dict(json.loads(synonyms.read_text(encoding="utf-8")))


def make_tokenizer(folder: Path, corpora: Path | None, size: int, lines: int) -> Path:
    """Train a sentencepiece model on more text of the same kind."""
    write_text(folder / "text.txt", lines, corpora)
    train_model(folder, size)
    return folder / "model.model"


def make_data(folder: Path, texts: list[str], tokenizer: Path, table: Mapping[str, list[str]] | None = None) -> Path:
    """Make a data folder with ``prepare``, one text per document, and its table of synonyms with ``synonyms``."""
    folder.mkdir()
    text, valid, data = (folder / name for name in ("text.txt", "valid.txt", "bin"))
    text.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    valid.write_text(texts[0] + "\n", encoding="utf-8")
    clear("prepare", text, "--dest", data, "--valid", valid, "--spm-model", tokenizer, "--workers", 1)
    if table is not None:
        source = folder / "synonyms.json"
        source.write_text(json.dumps(table), encoding="utf-8")
        clear("synonyms", "--data-bin", data, "--source", source)
    return data


def clear(*command: object) -> None:
    """Run a command of fairseq-clear in this process; exit if it fails."""
    with redirect_stdout(sys.stderr):
        if main_of_cli(list(map(str, command))):
            sys.exit(f"fairseq-clear {' '.join(map(str, command))}: failed")


if __name__ == "__main__":
    random.seed(1)
    main()
