"""Divides documents, or pairs to train on, into training and held-out ones; makes the question by which encoders are compared.

The question is a folder in BEIR's layout, with queries and the passages that they search. The dev queries choose recipe and
merge; the test queries compare encoders.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import Encoder
from fairseq_clear.evaluation.mining import mine_negatives
from fairseq_clear.evaluation.retrieval_data import MiningSettings, Pair
from fairseq_clear.files import read_json, write_json
from fairseq_clear.output_folder import output_folder

MOST_TEST, MOST_DEV = 1000, 300
# Passages that no query asks for: those of all other documents, unless there are more, as every merge encodes each of them.
# With few, an encoder such as MiniLM finds nearly every document by its title, and no change can be seen. For the same reason,
# a passage is only the beginning of a text.
MOST_OTHERS, BEGIN_WORDS = 5000, 40
MOST_VALID = 30  # documents of the validation loss, which reads all their sentences; those with a title or LONG first
LONG = 4  # sentences, which every recipe can make a pair of
QUESTION, HARDER = "question", "harder-question"  # folders
FEWEST = 2  # pairs that retrieval needs
FEWEST_HELD_OUT = 10  # documents, unless that is more than half of them
MOST_TITLE_WORDS = 25  # of a first line that is taken as a title
START = 20  # characters by which most texts differ
COUNTS = "counts.json"
ROWS = "pairs.json"  # the pairs to train on, with given negatives, and further texts, among which negatives are found
QUERY, PASSAGE, NEGATIVE = "query", "passage", "negative"  # names of the files of rows
VALID_SHARE = 0.05  # of the training pairs, at most MOST_VALID of them, whose loss is shown
Row = tuple[str, ...]  # query, passage, hard negatives
Asked = dict[str, list[Pair]]  # split -> its pairs


@dataclass(frozen=True)
class HeldOut:
    """Counts of documents and queries."""

    documents: int  # of the text
    long_documents: int  # documents of several sentences
    titled: int  # documents of several sentences whose first is short and begins no other document
    dev: int  # queries that choose the recipe and the share of the refined weights; 0 if there are too few
    test: int  # queries that compare the encoders
    pairs: int = 0  # of --train-pairs and of titles that are trained on
    left_out: int = 0  # pairs of --train-pairs, and documents, with a query or a passage of the comparison
    negatives: int = 0  # hard negatives that each pair of --train-pairs has in the file
    shared: int = 0  # pairs to train on whose passage answers another query of the comparison


def hold_out(text: Path, folder: Path, share: float, seed: int) -> HeldOut:
    """Write train.txt, valid.txt, the question and, last, counts.json to ``folder``, from canonical text.

    A query is the first sentence of a held-out document; the passage that it must find is the first BEGIN_WORDS words of the
    rest of the document. Half of the held-out documents, at most MOST_DEV, are dev, the others test. The search covers the
    passages of all documents, but of at most MOST_OTHERS that are not held out. In the harder question, a passage is the
    sentence in the middle of the rest.
    Copies of held-out documents are not trained on.

    Raises:
        UserError: there is only one document, or no other than copies of held-out ones.
    """
    documents, titled = _read_text(text)
    order = np.random.default_rng(seed).permutation(len(documents)).tolist()
    count = count_held_out(len(documents), share)
    chosen, others = order[:count], order[count : count + MOST_OTHERS]
    copied = {part for n in chosen for part in (tuple(documents[n]), below_title(documents[n]))}
    held_out = {n for n, one in enumerate(documents) if not copied.isdisjoint((tuple(one), below_title(one)))}
    if len(held_out) == len(documents):
        raise UserError("every document equals one that is held out, so none is left to train on; give other documents")
    dev_count = min(max(FEWEST, count // 2), count, MOST_DEV)
    parts = {"dev": chosen[:dev_count], "test": chosen[dev_count:]}
    _write_parts(folder, documents, titled, parts["dev"], held_out, len(documents) // 2)

    def ask(passage: Callable[[Sequence[str]], str]) -> tuple[Asked, list[str]]:
        long = {name: [documents[n] for n in some if len(documents[n]) > 1] for name, some in parts.items()}
        pairs = {name: [(document[0], passage(document)) for document in some] for name, some in long.items()}
        return pairs, [passage(documents[n]) for n in others]

    write_question(folder / HARDER, *ask(lambda document: (document[1:] or document)[(len(document) - 1) // 2]))
    begun = ask(lambda document: " ".join(below_title(document).split()[:BEGIN_WORDS]))
    return write_held_out(folder, *begun, documents, len(titled), left_out=len(held_out) - count)


def count_held_out(total: int, share: float) -> int:
    """How many of all documents or passages are held out for a share."""
    return min(max(FEWEST_HELD_OUT, round(share * total)), MOST_DEV + MOST_TEST, total // 2)


def below_title(document: Sequence[str]) -> str:
    """What follows the first sentence, without repeating that sentence; the sentence itself if nothing follows."""
    rest = " ".join(document[1:])
    repeated = rest.startswith(document[0]) and not rest[len(document[0]) :][:1].isalnum()  # a whole word follows
    return rest.removeprefix(document[0] if repeated else "").strip() or rest or document[0]


def divide_pairs(pairs: list[Pair], text: Path, folder: Path, seed: int) -> HeldOut:
    """As ``hold_out``, by given pairs; documents with a query as a sentence are left out. UserError if too few are left."""
    if len(pairs) < 2 * FEWEST:
        raise UserError(f"--pairs: {len(pairs)} pairs; give {2 * FEWEST} or more")
    rng, (documents, titled) = np.random.default_rng(seed), _read_text(text)
    divided, others = split_pairs(pairs, rng)
    asked = {_squeezed(query) for query, _ in pairs}
    left_out = {n for n, document in enumerate(documents) if not asked.isdisjoint(map(_squeezed, document))}
    candidates = [n for n in rng.permutation(len(documents)).tolist() if n not in left_out]
    if len(candidates) < 2:
        raise UserError(
            f"--pairs: {len(left_out):,} of {len(documents):,} documents have a query as a sentence, and are not trained on; "
            "give other queries, or more text"
        )
    _write_parts(folder, documents, titled, candidates, left_out, max(1, len(candidates) // 10))
    further = others[:MOST_OTHERS]
    return write_held_out(folder, divided, further, documents, len(titled), left_out=len(left_out))


def split_pairs(pairs: list[Pair], rng: np.random.Generator) -> tuple[Asked, list[str]]:
    """Divide pairs by their queries: a fifth of them, at most MOST_DEV, are dev, MOST_TEST or fewer others test.

    Also returns the passages of the other pairs.
    """
    queries = list(dict.fromkeys(query for query, _ in pairs))
    count = min(max(FEWEST, len(queries) // 5), MOST_DEV)
    order = [queries[n] for n in rng.permutation(len(queries))]
    chosen = {"dev": set(order[:count]), "test": set(order[count : count + MOST_TEST])}
    divided = {name: [pair for pair in pairs if pair[0] in some] for name, some in chosen.items()}
    return divided, [passage for query, passage in pairs if not any(query in some for some in chosen.values())]


def _read_text(text: Path) -> tuple[list[list[str]], set[int]]:
    """The documents, and the numbers of those with a title; UserError if there is only one document."""
    documents = read_documents(text)
    if len(documents) < 2:
        raise UserError(
            f"the text is one document of {len(documents[0])} sentences, and some documents must be held out; put a blank line "
            "between documents, or add --document-start . if every line stands for itself"
        )
    return documents, find_titles(documents)


def find_titles(documents: Sequence[Sequence[str]]) -> set[int]:
    """Numbers of the documents whose first sentence is a title: short, followed by others, and of no other document.

    Numbers are not compared, so that lines such as "Page 3 of 20" are found to be no titles.
    """
    first_lines = {
        n: re.sub(r"\d+", "0", document[0])
        for n, document in enumerate(documents)
        if len(document) > 1 and len(document[0].split()) <= MOST_TITLE_WORDS
    }
    counts = Counter(first_lines.values())
    return {n for n, line in first_lines.items() if counts[line] == 1}


def _write_parts(
    folder: Path, documents: list[list[str]], titled: set[int], candidates: list[int], held_out: set[int], most: int
) -> None:
    """Write valid.txt, at most ``most`` of the candidates, and train.txt, the documents that are neither there nor held out."""
    wanted = sorted(candidates, key=lambda n: (n not in titled, -min(len(documents[n]), LONG)))
    valid = sorted(wanted[: min(MOST_VALID, most)])
    left_out = {*valid, *held_out}
    for name, numbers in (("valid", valid), ("train", [n for n in range(len(documents)) if n not in left_out])):
        text = "".join("\n".join(documents[n]) + "\n\n" for n in numbers)
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def write_held_out(
    folder: Path, asked: Asked, further: Iterable[str], documents: list[list[str]], titled: int, **counted: int
) -> HeldOut:
    """Write the question, unless there are too few pairs, and the counts."""
    enough = all(some and min(len(set(side)) for side in zip(*some, strict=True)) >= FEWEST for some in asked.values())
    if enough:
        write_question(folder / QUESTION, asked, further)
    sizes = {name: len({query for query, _ in some}) if enough else 0 for name, some in asked.items()}
    long_documents = sum(len(document) > 1 for document in documents)
    counts = HeldOut(len(documents), long_documents, titled, sizes["dev"], sizes["test"], **counted)
    write_json(folder / COUNTS, asdict(counts), flag="--dest")
    return counts


def write_question(folder: Path, asked: Asked, further: Iterable[str]) -> None:
    """Write the pairs of a query and its passage of each split, and further passages, in BEIR's layout.

    Equal texts are one query or passage.
    """
    queries: dict[str, int] = {}
    passages: dict[str, int] = {}
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for split, pairs in asked.items():
        judged = [(queries.setdefault(q, len(queries)), passages.setdefault(p, len(passages))) for q, p in pairs]
        lines = [f"q{query}\tp{passage}\t1" for query, passage in dict.fromkeys(judged)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    for passage in further:
        passages.setdefault(passage, len(passages))
    for name, letter, texts in (("queries", "q", queries), ("corpus", "p", passages)):
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for text, number in texts.items():
                file.write(json.dumps({"_id": f"{letter}{number}", "text": text}, ensure_ascii=False) + "\n")


def read_documents(text: Path) -> list[list[str]]:
    """The sentences of each document of canonical text."""
    with open(text, encoding="utf-8") as lines:
        groups = groupby((line.rstrip("\n") for line in lines), bool)
        return [list(group) for is_document, group in groups if is_document]


def divide_training_pairs(
    rows: Iterable[Row], judged: list[Pair] | None, text: Path | None, folder: Path, share: float, seed: int
) -> HeldOut:
    """Write pairs.json, valid.txt, the question and, last, counts.json to ``folder``.

    No query and no passage of the comparison is trained on: a pair with one of them is left out, and so is a hard negative, and
    a document of the text with sentences that are one of them. White space is ignored. The titles of the other documents and
    what follows them are further pairs. If more than half of the pairs would be left out, because queries share passages, only
    the queries of the comparison are left out.

    Args:
        rows: query, passage and hard negatives of each pair; equal ones count once.
        judged: pairs to compare by; None holds out a share of the passages, with all pairs of their queries, or of the
            queries, if they share passages.
        text: canonical text, or None.
    """
    spaced = [tuple(" ".join(part.split()) for part in row) for row in rows]
    rows = list(dict.fromkeys((*row[:2], *dict.fromkeys(row[2:])) for row in spaced))
    negatives, rng = min(len(row) - 2 for row in rows), np.random.default_rng(seed)
    for column in (1, 0):  # passages are held out, or queries alone
        compared, others = _choose_compared(rows, judged, column, share, rng)
        taken = {_squeezed(part) for pair in compared for part in pair[: 1 + column]}
        free_rows = [row for row in others if taken.isdisjoint(map(_squeezed, row[: 1 + column]))]
        if 2 * len(free_rows) >= len(rows):
            break
    answers = {_squeezed(passage) for _, passage in compared}
    left_out, shared = len(others) - len(free_rows), sum(_squeezed(row[1]) in answers for row in free_rows)
    unwanted = taken | answers
    positives: dict[str, set[str]] = defaultdict(set)  # of each query, and the query: never its hard negatives
    for row in rows:
        positives[row[0]].update(row[:2])
    rows = [
        (*row[:2], *(text for text in row[2:] if text not in positives[row[0]] and _squeezed(text) not in unwanted))
        for row in free_rows
    ]
    documents = [] if text is None else read_documents(text)
    titled = find_titles(documents)
    longest, starts = max(map(len, taken), default=0), {text[:START] for text in taken}
    free = [n for n, document in enumerate(documents) if not _holds(document, taken, starts, longest)]
    left_out += len(documents) - len(free)
    known = {row[:2] for row in rows}
    of_titles = [(documents[n][0], below_title(documents[n])) for n in free if n in titled]
    further = [" ".join(documents[n]) for n in free if n not in titled]
    rows += [pair for pair in of_titles if pair not in known]
    if len(rows) < 2:
        raise UserError(
            f"--train-pairs: {len(rows)} pairs to train on; {len(compared):,} pairs compare encoders, and {left_out:,} have a "
            "query or a passage of those; give pairs with other queries"
        )
    write_json(folder / ROWS, {"pairs": rows, "further": further}, flag="--dest")
    shown = dict.fromkeys(part for pair in compared or rows for part in pair[:2])
    (folder / "valid.txt").write_text("".join(f"{one}\n" for one in shown), encoding="utf-8")
    divided, unasked = split_pairs(compared, rng)
    candidates = [*unasked, *further, *dict.fromkeys(row[1] for row in rows)]
    searched = [candidates[n] for n in rng.permutation(len(candidates))[:MOST_OTHERS]]
    counted = {"pairs": len(rows), "left_out": left_out, "negatives": negatives, "shared": shared}
    return write_held_out(folder, divided, searched, documents, len(titled), **counted)


def _choose_compared(
    rows: list[Row], judged: list[Pair] | None, column: int, share: float, rng: np.random.Generator
) -> tuple[list[Pair], list[Row]]:
    """Return the pairs to compare by, and the other rows: those given, or all of the queries of drawn texts of a column."""
    if judged is not None:
        return [(" ".join(query.split()), " ".join(passage.split())) for query, passage in judged], rows
    texts = list(dict.fromkeys(row[column] for row in rows))
    chosen = {texts[n] for n in rng.permutation(len(texts))[: count_held_out(len(texts), share)]}
    asked = {row[0] for row in rows if row[column] in chosen}
    return [(row[0], row[1]) for row in rows if row[0] in asked], [row for row in rows if row[0] not in asked]


def _holds(document: Sequence[str], texts: set[str], starts: set[str], longest: int) -> bool:
    """Whether adjacent sentences of a document, without white space, are one of the texts.

    ``starts`` are the first START characters of the texts, and ``longest`` is the length of the longest.
    """
    sentences = [*map(_squeezed, document)]
    for first in range(len(sentences)):
        joined = ""
        for sentence in sentences[first:]:
            joined += sentence
            if joined in texts:
                return True
            if len(joined) >= longest or (len(joined) >= START and joined[:START] not in starts):
                break
    return _squeezed(below_title(document)) in texts  # without a repeated title


def write_rows(folder: Path, dest: Path, load: Callable[[], Encoder], count: int, margin: float, device: str) -> None:
    """Write query.txt, passage.txt, negative1.txt and so on to ``dest``: line n of each belongs to one pair.

    The given hard negatives of a pair come first. Where they are too few, others are mined among the passages of all pairs and
    the documents without a title. Pairs for which too few are found are left out. ``folder`` is of ``divide_training_pairs``;
    ``load`` returns the encoder that mines.
    """
    known = read_json(folder / ROWS, f"remove {folder} and rerun")
    rows, further = [tuple(row) for row in known["pairs"]], known["further"]
    short = sum(len(row) - 2 < count for row in rows)
    if short:
        last = max(MiningSettings.last_rank, count)
        settings, found, filled = MiningSettings(negatives=count, margin=margin, last_rank=last), {}, []
        encoder = load()
        try:
            mined = mine_negatives(encoder, [(row[0], row[1]) for row in rows], further, settings, device=device)
            found = dict(zip(mined.kept.tolist(), mined.negatives.tolist(), strict=True))
        except UserError:  # too few texts: the pairs that have all of theirs are left
            if short == len(rows):
                raise
        for n, row in enumerate(rows):
            texts = dict.fromkeys((*row[2:], *(mined.texts[number] for number in found.get(n, ()))))
            if len(texts) >= count:
                filled.append((*row[:2], *texts))
        print(f"# {len(filled):,} of {len(rows):,} pairs have {count} hard negatives; others are left out", flush=True)
        rows = filled
    names = (QUERY, PASSAGE, *(f"{NEGATIVE}{n + 1}" for n in range(count)))
    with output_folder(dest, overwrite=False) as written:
        for name, column in zip(names, zip(*(row[: count + 2] for row in rows), strict=True), strict=True):
            (written / f"{name}.txt").write_text("".join(f"{one}\n" for one in column), encoding="utf-8")


def read_rows(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the passages of a folder of ``write_rows``, and the fields of PrepareSettings that align the others to them."""
    text, count = folder / f"{PASSAGE}.txt", len(list(folder.glob(f"{NEGATIVE}*.txt")))
    names = (QUERY, *(f"{NEGATIVE}{n + 1}" for n in range(count)))
    with open(text, encoding="utf-8") as lines:
        share = min(VALID_SHARE, MOST_VALID / sum(1 for _ in lines))
    paraphrases = tuple((name, folder / f"{name}.txt") for name in names)
    return text, {"paraphrase": paraphrases, "document_start": ".", "valid_share": float(f"{share:.3g}")}


def _squeezed(text: str) -> str:
    """The text without white space, which splitting into sentences changes."""
    return "".join(text.split())
