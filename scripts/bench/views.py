"""Batches of views on one core, compared with stock masked_lm's, with other augmenters and with a plain copy.

    python scripts/bench/views.py [--batches 64 256] [--words 25 320] [--corpora DIR --synonyms FILE] [--json FILE]

Our side makes whole batches of the training set: it reads the memory map, hashes identities, masks, augments, pads and
collates. With stock masked_lm the other side does the same with its data set and collater, item by item as torch's loader does;
texts are sentences, of WikiText-2 with --corpora. nlpaug and textaugment only augment, text to text, twice a text; the rows
``with sentencepiece`` include making ids, which a training needs. Texts, share of changed words and synonyms are the same on
both sides. The plain copy reads the same texts and pads them. Spans are six of a document of 2,100 words: two anchors with two
positives each. The sides take turns. Seconds are the processor time of the process; a ratio is the median of the rounds.
"""

import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from prepare import SAMPLE_LINES, train_model, write_text
from results import compare, finish, flags, is_installed, missing_row
from steps import COMMON
from text_peers import Augment, declutr, eda, hf_masks, nlpaug
from texts import documents, generate, make_words, neighbours

from fairseq_clear.cli.main import main as main_of_cli
from fairseq_clear.lifecycle import Needs
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.documents import content_hashes
from fairseq_clear.tokens import Ragged
from fairseq_clear.views.view_table import SameText

PEER_AIM = ">= 10"
DOCUMENT_WORDS, LINE_WORDS, LONG = 2_100, 25, 4_096
PEER_WORDS = 50_000  # that other augmenters read in a round
SPAN = "span:anchors=2,positives=2"
Side = Callable[[int], object]
# (recipe, aim of the ratio to masked_lm, flags, whether there is a masked LM)
RECIPES = (
    ("MLM + two del-word", ">= 14", ("--augment", "del-word"), True),
    ("MLM + two del-span+reorder", ">= 12", ("--augment", "del-span+reorder"), True),
    ("two del-word", ">= 20", ("--augment", "del-word"), False),
    ("two subs+del-word", ">= 10", ("--augment", "subs+del-word"), False),
    ("two eda", ">= 8", ("--augment", "eda"), False),
    ("cloze", ">= 15", ("--views", "cloze"), False),
    ("MLM alone, stock's masks", ">= 5", (), True),
)
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
        __doc__, batches=[64, 256], words=[25, 320], texts=2_000, documents=50, vocab_size=16_000,
        sample_lines=SAMPLE_LINES, corpora=Path, synonyms=Path,
    )  # fmt: skip
    if (arguments.corpora is None) != (arguments.synonyms is None):
        sys.exit("--corpora and --synonyms go together: real words need real synonyms")
    table, found = table_of(arguments.synonyms), []
    with tempfile.TemporaryDirectory() as name:
        folder, repeats = Path(name), arguments.repeats
        tokenizer = make_tokenizer(folder, arguments.corpora, arguments.vocab_size, arguments.sample_lines)
        data = make_data(folder / "sentences", sentences(arguments.corpora, arguments.texts), tokenizer, table)
        found += beside_masked_lm(data, arguments.batches, repeats)
        found += beside_hf(data, arguments.batches[0], repeats)
        for words in arguments.words:
            texts = make_texts(arguments.corpora, words, min(arguments.texts, PEER_WORDS // words))
            data = make_data(folder / str(words), texts, tokenizer, table)
            for size in arguments.batches:
                found += beside_nlpaug(texts, data, table, repeats, words, size)
                found += beside_eda(texts, data, table, repeats, words, size)
        texts = make_texts(arguments.corpora, DOCUMENT_WORDS, arguments.documents)
        data = make_data(folder / "documents", [in_lines(text) for text in texts], tokenizer)
        found += on_documents(data, texts, repeats)
    finish(found, arguments)


def beside_masked_lm(data: Path, sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    """The rows of every recipe, and of stock masked_lm's data set."""
    args = options.parse_args_and_arch(
        options.get_training_parser(),
        [str(data), "--task", "masked_lm", "--arch", "roberta_base", "--sample-break-mode", "eos"],
    )
    task: Any = tasks.setup_task(convert_namespace_to_omegaconf(args).task)
    task.load_dataset("train")
    stock, rows = task.dataset("train"), []
    lines = np.flatnonzero(np.asarray(stock.sizes) > 2)  # masked_lm keeps blank lines
    for what, aim, recipe, has_mlm in RECIPES:
        dataset = items_of(data, *recipe, mlm=has_mlm, views=bool(recipe))
        for size in sizes:
            # as many texts a round as ours has
            def theirs(epoch: int, dataset: Any = dataset, size: int = size) -> None:
                stock.set_epoch(epoch + 1)
                for batch in batches(lines[: len(dataset)], size):
                    stock.collater([stock[index] for index in batch])

            ours = batches_of(dataset, size)
            rows.append(
                compare_views(f"{what}, batch {size}", ours, theirs, len(dataset), "masked_lm", aim, repeats, "texts/s")
            )
    return rows


def beside_hf(data: Path, size: int, repeats: int) -> list[dict[str, Any]]:
    """The row of transformers' collator, which masks but makes no views."""
    what, baseline = f"MLM + two del-word, batch {size}", "DataCollatorForLanguageModeling, MLM alone"
    if not is_installed("transformers"):
        return [missing_row(what, "transformers")]
    dataset = items_of(data, "--augment", "del-word", mlm=True)
    texts = dataset.view_maker.source.sentences.rows(np.arange(len(dataset)))
    rows = [texts[row].tolist() for row in range(len(texts))]
    collate = hf_masks(1 + max(map(max, rows)))

    def theirs(_: int) -> None:
        for batch in batches(np.arange(len(rows)), size):
            collate([rows[index] for index in batch])

    return [compare_views(what, batches_of(dataset, size), theirs, len(dataset), baseline, "", repeats, "texts/s")]


def beside_nlpaug(
    texts: list[str], data: Path, table: Mapping[str, list[str]], repeats: int, words: int, size: int
) -> list[dict[str, Any]]:
    """The rows of nlpaug for one length and size of our batches."""
    if not is_installed("nlpaug"):
        return [missing_row(f"two {spec}, {words} words, batch {size}", "nlpaug", PEER_AIM) for spec, _ in PAIRS]
    augmenters, rows = nlpaug(table, data), []
    encode = load_tokenizer(data).encode
    for spec, name in PAIRS:
        what, count = f"two {spec}, {words} words, batch {size}", 2 * len(texts)
        ours = batches_of(items_of(data, "--augment", spec), size)
        theirs = peer(augmenters[name], texts, 2)
        rows.append(compare_views(what, ours, theirs, count, f"nlpaug {name}", PEER_AIM, repeats))
        if name == "delete":
            theirs = peer(augmenters[name], texts, 2, encode)
            rows.append(compare_views(what, ours, theirs, count, f"nlpaug {name}, with sentencepiece", "", repeats))
    return rows


def beside_eda(
    texts: list[str], data: Path, table: Mapping[str, list[str]], repeats: int, words: int, size: int
) -> list[dict[str, Any]]:
    """The row of EDA for one length and size of our batches."""
    what = f"two eda, {words} words, batch {size}"
    if not is_installed("textaugment"):
        return [missing_row(what, "textaugment")]
    ours = batches_of(items_of(data, "--augment", "eda"), size)
    theirs = peer(eda(table), texts, 2)
    return [compare_views(what, ours, theirs, 2 * len(texts), "EDA (textaugment)", ">= 1", repeats)]


def on_documents(data: Path, texts: list[str], repeats: int) -> list[dict[str, Any]]:
    """The rows of spans, of neighbours and of long texts."""
    spans, every = items_of(data, "--views", SPAN), len(texts)
    sampler = peer(declutr(), texts)

    def sample(epoch: int) -> None:
        for batch in batches(np.arange(len(spans)), 16):
            spans.view_maker.pairs(batch, epoch + 1)

    rows = [
        compare_views("6 spans of a document, sampled only", sample, sampler, 6 * every,
                      "DeCLUTR's sampler (reimplemented)", ">= 1", repeats),
        compare_views("6 spans of a document", batches_of(spans, 16), sampler, 6 * every,
                      "DeCLUTR's sampler (reimplemented)", "", repeats),
        compare_views("6 spans of a document, anchors masked", batches_of(items_of(data, "--views", SPAN, mlm=True), 16),
                      sampler, 6 * every, "DeCLUTR's sampler (reimplemented)", "", repeats),
    ]  # fmt: skip
    for what, recipe in (
        (f"two slice, {LONG} tokens", ("--sample-break-mode", "complete", "--augment", "slice")),
        ("neighbor:sentences=40", ("--views", "neighbor:sentences=40", "--augment", "none")),
    ):
        dataset = items_of(data, *recipe, "--tokens-per-sample", str(LONG))
        source, items, aim = dataset.view_maker.source, np.arange(len(dataset)), ">= 0.33"

        def copy(_: int, source: Any = source, items: np.ndarray = items) -> None:
            for batch in batches(items, 16):
                for _ in range(2):
                    texts = (
                        source.sentences.rows(batch) if isinstance(source, SameText) else source.pairs(batch).anchors()
                    )
                    texts.padded(1)

        rows.append(compare_views(what, batches_of(dataset, 16), copy, 2 * len(dataset), "a plain copy", aim, repeats))
        if isinstance(source, SameText):
            held = [source.sentences.rows(batch) for batch in batches(items, 16)]

            def identify(_: int, held: list[Ragged] = held) -> None:
                for texts in held:
                    content_hashes(texts)

            what = f"the hashes alone of {what}"
            rows.append(compare_views(what, identify, copy, 2 * len(dataset), "a plain copy", "", repeats))
    return rows


def compare_views(
    what: str, ours: Side, theirs: Side, views: int, baseline: str, aim: str, repeats: int, unit: str = "views/s"
) -> Any:
    """One row; each call of a side makes ``views`` views, or texts, on one core."""
    return compare(
        what, ours, theirs, repeats, baseline=baseline, aim=aim, unit=unit, amount=views, warm_up=1,
        clock=time.process_time,
    )  # fmt: skip


def items_of(data: Path, *recipe: str, mlm: bool = False, views: bool = True) -> Any:
    """The training set for these flags."""
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, [str(data), *COMMON, "--arch", "clear_roberta_tiny", *recipe])
    task: Any = tasks.setup_task(convert_namespace_to_omegaconf(args).task)
    task.needs = Needs(mlm=mlm, views=views)
    task.load_dataset("train")
    return task.dataset("train")


def batches(indices: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Batches of ``size`` indices."""
    return (indices[begin : begin + size] for begin in range(0, len(indices), size))


def batches_of(dataset: Any, size: int) -> Side:
    """A function that makes all batches of the training set, in another epoch at each call."""

    def make(epoch: int) -> None:
        dataset.set_epoch(epoch + 1)
        for batch in batches(np.arange(len(dataset)), size):
            dataset.collater(dataset.__getitems__(batch))

    return make


def peer(augment: Augment, texts: list[str], calls: int = 1, encode: Callable[[str], list[str]] | None = None) -> Side:
    """A function that makes all views of the texts with another library, and encodes them if ``encode`` is given."""

    def make(_: int) -> None:
        for text in texts:
            for _ in range(calls):
                views = augment(text)
                if encode is not None:
                    for view in views:
                        encode(view)

    return make


def sentences(corpora: Path | None, count: int) -> list[str]:
    """``count`` sentences, generated or of WikiText-2, as documents of ten."""
    if corpora is None:
        lines = list(generate(count, (8, 50)))
    else:
        found = {line for text in documents(corpora, "wikitext2") for line in re.split(r"\n|(?<= [.!?]) ", text)}
        lines = [line for line in sorted(found) if 8 <= len(line.split()) <= 60][:count]
    return ["\n".join(lines[begin : begin + 10]) for begin in range(0, len(lines), 10)]


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
