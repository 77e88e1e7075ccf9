"""What prepare writes: ids, counts, splits, shards, hashes, the same bytes again, and fairseq reads it; text alone."""

import argparse
import hashlib
import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from fairseq.data import Dictionary, data_utils
from fairseq.data.data_utils import load_indexed_dataset

from fairseq_clear.cli.main import main
from fairseq_clear.cli.prepare import Prepare
from fairseq_clear.errors import UserError
from fairseq_clear.preparation import binarize
from fairseq_clear.preparation.prepare_settings import PrepareSettings
from fairseq_clear.preparation.preparing import PrepareReport, prepare, write_text
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.tokenizers import Tokenizer
from fairseq_clear.text.vocabulary import load_dictionary
from tests.conftest import sentences
from tests.faults import commands
from tests.interop.folders import wordpiece, write_tokenizer
from tests.preparation.corpora import canonical, documents, gpt2_files, sentencepiece_model, write_corpus


def make(dest: Path, *inputs: Path, **options: object) -> PrepareReport:
    chosen: dict[str, object] = {"vocab_size": 300, "workers": 1, **options}
    return prepare(PrepareSettings(inputs=inputs, dest=dest, **chosen))  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def data_of(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if not name.endswith("clear.json")}


def clear_json(folder: Path) -> dict[str, dict[str, object]]:
    return dict(json.loads((folder / "clear.json").read_text()))


def ids_of(folder: Path, split: str) -> list[list[int]]:
    """The lines of a split as stored, read by fairseq."""
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    dataset = data_utils.load_indexed_dataset(str(folder / split), dictionary)
    return [dataset[index].tolist() for index in range(len(dataset))]


def documents_of(folder: Path, split: str, tokenizer: Tokenizer | None = None) -> list[list[str]]:
    """The documents of a split, decoded; a lone </s> is a blank line."""
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    chosen = tokenizer or load_tokenizer(folder)
    text = [chosen.decode([dictionary[number] for number in line]) for line in ids_of(folder, split)]
    assert all(line[-1] == dictionary.eos() for line in ids_of(folder, split))
    return [part.split("\n") for part in "\n".join(text).split("\n\n")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.txt", 60)


@pytest.fixture(scope="module")
def made(corpus: Path) -> Path:
    make(corpus.parent / "made", corpus, valid_share=0.2)
    return corpus.parent / "made"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentencepiece_model(tmp_path_factory.mktemp("model") / "given.model")


def test_text_comes_back_document_by_document(made: Path) -> None:
    train, valid = documents_of(made, "train"), documents_of(made, "valid")
    assert len(valid) == 12 and len(train) == 48
    order = {tuple(lines): number for number, lines in enumerate(documents(60))}
    for split in (train, valid):  # every document whole, in corpus order, in one split only
        numbers = [order.pop(tuple(lines)) for lines in split]
        assert numbers == sorted(numbers)
    assert not order


def test_fairseq_ids_are_sentencepiece_ids_plus_one_and_counts_those_of_train(made: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(made / "sentencepiece.bpe.model"))
    dictionary = Dictionary.load(str(made / "dict.txt"))
    assert len(dictionary) == len(processor) + 1 == 301
    for number in range(3, len(processor)):
        assert dictionary[number + 1] == processor.IdToPiece(number)
    line = documents_of(made, "train")[0][0]
    assert ids_of(made, "train")[0] == [number + 1 for number in processor.EncodeAsIds(line)] + [2]
    found = Counter(number for line in ids_of(made, "train") for number in line)
    assert [dictionary.count[number] for number in range(4, 301)] == [found[number] for number in range(4, 301)]
    assert dictionary.count[4:] != sorted(dictionary.count[4:], reverse=True)


def test_clear_json_tells_what_is_there(made: Path) -> None:
    clear = clear_json(made)
    both = ""
    for split in ("train", "valid"):
        part, tokens = documents_of(made, split), sum(map(len, ids_of(made, split)))
        counts = {"documents": len(part), "sentences": sum(map(len, part)), "tokens": tokens, "unknown": 0}
        assert clear["splits"][split] == counts
        both += f"{split}\n{hashlib.sha256(canonical(part).encode()).hexdigest()}\n"
    assert clear["content_hash"] == hashlib.sha256(both.encode()).hexdigest()
    assert clear["vocabulary_hash"] == hashlib.sha256((made / "dict.txt").read_bytes()).hexdigest()
    assert clear["format"] == 1 and clear["settings"]["seed"] == 1 and clear["versions"]["fairseq"]


def test_same_bytes_again_for_any_number_of_workers(made, corpus, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(binarize, "PART_BYTES", 500)  # many parts, cut inside documents
    monkeypatch.setattr(binarize, "LINES", 5)  # addresses are written in portions of 5 lines
    make(tmp_path / "again", corpus, valid_share=0.2)
    assert data_of(tmp_path / "again") == data_of(made)
    make(tmp_path / "two", corpus, valid_share=0.2, workers=2)
    assert data_of(tmp_path / "two") == data_of(made)
    make(tmp_path / "seed", corpus, valid_share=0.2, seed=2)
    assert data_of(tmp_path / "seed")["train.bin"] != data_of(made)["train.bin"]


def test_data_sets_are_what_fairseq_writes(made: Path, tmp_path: Path) -> None:
    from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer

    dictionary = Dictionary.load(str(made / "dict.txt"))
    (tmp_path / "train.txt").write_text(canonical(documents_of(made, "train")), encoding="utf-8")
    binarizer = VocabularyDatasetBinarizer(dictionary, tokenize=load_tokenizer(made).encode)
    files = {"input_file": str(tmp_path / "train.txt"), "output_prefix": str(tmp_path / "train")}
    FileBinarizer.multiprocess_dataset(**files, dataset_impl="mmap", binarizer=binarizer, vocab_size=len(dictionary))
    for name in ("train.bin", "train.idx"):
        assert (tmp_path / name).read_bytes() == (made / name).read_bytes()


def test_shards_share_out_the_training_documents(made: Path, corpus: Path, tmp_path: Path) -> None:
    report = make(tmp_path / "s", corpus, valid_share=0.2, shards=3)
    folders = [tmp_path / "s" / f"shard{number}" for number in range(3)]
    parts = [documents_of(folder, "train") for folder in folders]
    assert sorted(sum(parts, [])) == sorted(documents_of(made, "train"))
    sizes = [(folder / "train.bin").stat().st_size for folder in folders]
    assert max(sizes) < 1.3 * min(sizes)
    for folder in folders:
        shared = ["dict.txt", "sentencepiece.bpe.model", "valid.bin", "valid.idx"]
        assert sorted(contents(folder)) == sorted(["clear.json", "train.bin", "train.idx", *shared])
        for name in shared:
            assert (folder / name).read_bytes() == (made / name).read_bytes()
    total, count = clear_json(tmp_path / "s"), sum(map(len, documents_of(made, "train")))
    assert total["shards"] == ["shard0", "shard1", "shard2"]
    assert total["splits"]["train"]["sentences"] == report.splits["train"].lengths.sentences == count
    assert len({str(clear_json(folder)["content_hash"]) for folder in folders}) == 3
    assert load_tokenizer(tmp_path / "s").encode("the") == load_tokenizer(made).encode("the")
    make(tmp_path / "again", corpus, valid_share=0.2, tokenizer_dir=tmp_path / "s")
    assert (tmp_path / "again" / "train.bin").read_bytes() == (made / "train.bin").read_bytes()


@pytest.mark.parametrize("start", ["file", None])
def test_a_folder_of_articles(start: str | None, model: Path, tmp_path: Path) -> None:
    """Files end documents, in every shard, by any number of workers; with ``file``, blank lines do not."""
    (tmp_path / "articles").mkdir()
    parts = [documents(3, seed=number, longest=4) for number in range(12)]
    for number, made in enumerate(parts):
        before, after = "\n\n" * (number % 3 == 1), "\n\n" * (number % 3 == 2)
        text = before + canonical(made).rstrip("\n") + after  # no newline at the end of most
        (tmp_path / "articles" / f"{number:02d}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "articles" / "05b.txt").write_text("")
    expected = [sum(made, []) for made in parts] if start else [lines for made in parts for lines in made]
    (tmp_path / "articles" / ".hidden.txt").write_text("no article\n")
    (tmp_path / "articles" / "picture.png").write_bytes(b"\x89PNG")
    named = sorted((tmp_path / "articles").glob("[0-9]*.txt"))
    for shards, inputs in ((1, named), (2, [tmp_path / "articles"])):
        dest = tmp_path / f"{shards}"
        report = make(dest, *inputs, spm_model=model, document_start=start, shards=shards, workers=2)
        folders = [dest] if shards == 1 else [dest / "shard0", dest / "shard1"]
        found = [lines for folder in folders for lines in documents_of(folder, "train")]
        assert sorted(found + documents_of(folders[0], "valid")) == sorted(expected)
        assert report.lengths == Counter(map(len, found))
        assert f"train: {len(found)} documents, {sum(map(len, found))} sentences" in report.summary()


def test_unknown_characters_are_counted(corpus: Path, tmp_path: Path) -> None:
    model = sentencepiece_model(tmp_path / "m.model", byte_fallback=False, vocab_size=50, character_coverage=1.0)
    held_out = tmp_path / "valid.txt"
    held_out.write_text("the cat \u0416 sat\n", encoding="utf-8")
    report = make(tmp_path / "d", corpus, valid=(held_out,), spm_model=model)
    assert report.splits["valid"].unknown == 1 and report.splits["train"].unknown == 0
    assert documents_of(tmp_path / "d", "valid") == [["the cat <unk> sat"]]
    assert documents_of(tmp_path / "d", "train") == documents(60)  # none is held out
    assert f"{100 / report.splits['valid'].tokens:.3f} % unknown" in report.summary()


def test_text_that_normalises_to_nothing_is_no_blank_line_unless_it_is_invisible(
    corpus: Path, model: Path, tmp_path: Path
) -> None:
    held_out = tmp_path / "valid.txt"
    held_out.write_text("a\n\u2061\u2060\nb\n\u2581\nc\n", encoding="utf-8")
    make(tmp_path / "d", corpus, valid=(held_out,), spm_model=model)
    assert (tmp_path / "d" / "sentencepiece.bpe.model").read_bytes() == model.read_bytes()
    assert [len(line) > 1 for line in ids_of(tmp_path / "d", "valid")] == [True, False, True, True, True]


def test_gpt2_files_and_a_given_dictionary(corpus: Path, tmp_path: Path) -> None:
    encoder, merges = gpt2_files(tmp_path)
    make(tmp_path / "own", corpus, gpt2_encoder_json=encoder, gpt2_vocab_bpe=merges)
    train, valid = documents_of(tmp_path / "own", "train"), documents_of(tmp_path / "own", "valid")
    assert sorted(train + valid) == sorted(documents(60))
    assert Dictionary.load(str(tmp_path / "own" / "dict.txt")).symbols[4:] == [str(number) for number in range(260)]

    given = tmp_path / "given.txt"  # another order, as roberta.base has, and rows that no text uses
    given.write_text("".join(f"{number} {1000 - number}\n" for number in reversed(range(260))) + "madeupword0000 0 \n")
    make(tmp_path / "fit", corpus, gpt2_encoder_json=encoder, gpt2_vocab_bpe=merges, dictionary=given)
    assert (tmp_path / "fit" / "dict.txt").read_bytes() == given.read_bytes()
    assert documents_of(tmp_path / "fit", "train") == train
    assert ids_of(tmp_path / "fit", "train") != ids_of(tmp_path / "own", "train")
    assert clear_json(tmp_path / "fit")["tokenizer"] == {"kind": "gpt2", "files": ["encoder.json", "vocab.bpe"]}


@pytest.mark.parametrize("kind", ["sentencepiece", "gpt2"])
def test_the_tokenizer_of_a_data_folder(kind: str, corpus: Path, model: Path, tmp_path: Path) -> None:
    encoder, merges = gpt2_files(tmp_path)
    files = (
        {"spm_model": model} if kind == "sentencepiece" else {"gpt2_encoder_json": encoder, "gpt2_vocab_bpe": merges}
    )
    make(tmp_path / "first", corpus, **files)
    known = tmp_path / "first" / "dict.txt"
    lines = known.read_text().splitlines(keepends=True)
    known.write_text("".join(reversed(lines)))  # not what the tokenizer alone gives
    make(tmp_path / "files", corpus, seed=2, dictionary=known, **files)
    make(tmp_path / "again", corpus, seed=2, tokenizer_dir=tmp_path / "first")
    assert data_of(tmp_path / "again") == data_of(tmp_path / "files")
    assert clear_json(tmp_path / "again")["tokenizer"] == clear_json(tmp_path / "first")["tokenizer"]


@pytest.mark.parametrize("tokenizer", [{"kind": "none"}, {"kind": "gpt2", "files": ["encoder.json"]}, None])
def test_a_folder_without_tokenizer(tokenizer: object, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "clear.json").write_text(json.dumps({"format": 1, "tokenizer": tokenizer}))
    with pytest.raises(UserError, match="^--tokenizer-dir .*other: its clear.json names no tokenizer"):
        make(tmp_path / "d", corpus, tokenizer_dir=tmp_path / "other")
    assert not (tmp_path / "d").exists()


def test_overwrite_replaces_a_data_folder(corpus: Path, model: Path, tmp_path: Path) -> None:
    make(tmp_path / "d", corpus, spm_model=model)
    before = contents(tmp_path / "d")
    with pytest.raises(UserError, match="d: exists already.*--overwrite"):
        make(tmp_path / "d", corpus, spm_model=model)
    assert contents(tmp_path / "d") == before
    make(tmp_path / "d", corpus, spm_model=model, seed=3, overwrite=True)
    assert contents(tmp_path / "d")["train.bin"] != before["train.bin"]
    assert os.listdir(tmp_path) == ["d"]


def test_text_alone(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "in.txt", 5)
    before = corpus.read_bytes()
    for options, message in (
        ({"dest": corpus}, "exists already"),
        ({"dest": corpus, "overwrite": True}, "is in --dest"),
        ({"dest": tmp_path / "out.gz"}, "give a name that ends in .txt"),
        ({"dest": tmp_path / "no" / "out.txt"}, "there is no folder"),
        ({"dest": tmp_path / "out.txt", "valid": (corpus,)}, "both input and --valid|leave --valid out"),
    ):
        with pytest.raises(UserError, match=message):
            write_text(PrepareSettings(inputs=(corpus,), text_only=True, **options))  # type: ignore[arg-type]
    assert corpus.read_bytes() == before and sorted(path.name for path in tmp_path.iterdir()) == ["in.txt"]
    (tmp_path / "out.txt").write_text("old")
    write_text(PrepareSettings(inputs=(corpus,), dest=tmp_path / "out.txt", text_only=True, overwrite=True))
    assert (tmp_path / "out.txt").read_bytes() == before


# A checkpoint's tokenizer: its vocabulary, whatever the text


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    pytest.importorskip("tokenizers", reason="optional, extra hf")
    (tmp_path / "hf").mkdir()
    write_tokenizer(wordpiece(), tmp_path / "hf", "bert")
    return tmp_path / "hf"


def run_prepare(text: Path, dest: Path, *flags: str | Path) -> int:
    return main(["prepare", str(text), "--dest", str(dest), "--workers", "2", *map(str, flags)])


def test_lines_are_binarized_with_it(hf: Path, tmp_path: Path) -> None:
    lines = [*sentences(60, seed=1), "", "A Caf\u00e9 \u4e2d [SEP]!"]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    assert run_prepare(tmp_path / "text.txt", tmp_path / "bin", "--tokenizer-dir", hf) == 0
    clear = json.loads((tmp_path / "bin" / "clear.json").read_text())
    assert clear["tokenizer"] == {"kind": "hf", "files": ["tokenizer.json", "special_tokens_map.json"]}
    tokenizer = load_tokenizer(tmp_path / "bin")
    dictionary = load_dictionary(tmp_path / "bin" / "dict.txt")
    splits = [load_indexed_dataset(str(tmp_path / "bin" / split)) for split in ("train", "valid")]
    stored = {tuple(split[index].tolist()) for split in splits for index in range(len(split))}
    expected = {(*(dictionary.index(symbol) for symbol in tokenizer.encode(line)), 2) for line in lines}
    assert stored == expected


def test_the_dictionary_does_not_depend_on_the_text(hf: Path, tmp_path: Path) -> None:
    def prepared(seed: int, name: str) -> bytes:
        (tmp_path / "text.txt").write_text("\n".join(sentences(60, seed=seed)) + "\n")
        assert run_prepare(tmp_path / "text.txt", tmp_path / name, "--tokenizer-dir", hf) == 0
        return (tmp_path / name / "dict.txt").read_bytes()

    assert (one := prepared(1, "one")) == prepared(2, "two")
    (hf / "dict.txt").write_bytes(b"\n".join(reversed(one.splitlines())) + b"\n")
    assert prepared(1, "kept") == (hf / "dict.txt").read_bytes() != one
    (hf / "dict.txt").write_text("strange 1\n")
    assert run_prepare(tmp_path / "text.txt", tmp_path / "none", "--tokenizer-dir", hf) == 2
    assert not (tmp_path / "none").exists()


# The command: flags reach the settings, processes end cleanly when told to


def test_flags_reach_the_settings() -> None:
    def parse(line: str) -> Prepare:
        parser = argparse.ArgumentParser()
        Prepare.add_arguments(parser)
        return Prepare.from_flags(parser.parse_args(line.split()))

    given = parse("a.txt b.txt --dest d --valid v.txt w.txt --overwrite --dict x --split-sentences --seed 7")
    assert given.inputs == (Path("a.txt"), Path("b.txt")) and given.valid == (Path("v.txt"), Path("w.txt"))
    assert given.overwrite and given.dictionary == Path("x") and given.split_sentences == "lines"
    assert (given.seed, given.language, given.paraphrase) == (7, "en", ()) and given.workers >= 1
    given = parse("a.txt --dest d --split-sentences paragraphs --paraphrase de=x=y.txt zh=z.txt --workers 3")
    assert given.split_sentences == "paragraphs" and given.workers == 3
    assert given.paraphrase == (("de", Path("x=y.txt")), ("zh", Path("z.txt")))


@pytest.mark.parametrize(
    ("flags", "is_warned"),
    [((), True), (("--document-start", "file"), False), (("--document-start", "."), False), (("--text-only",), True)],
)
def test_documents_of_one_sentence_are_warned_of(flags, is_warned, model, tmp_path, capsys) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(4)]
    for file in files:
        file.write_text("the cat sat .\n\nthe dog ran .\n\non the mat .\n")
    dest = tmp_path / ("out.txt" if "--text-only" in flags else "d")
    arguments = ["prepare", *files, "--dest", dest, "--spm-model", model, "--workers", "1", *flags]
    assert main([str(argument) for argument in arguments]) == 0
    shown = capsys.readouterr()
    lines = [line for line in shown.err.splitlines() if "warning" in line]
    assert len(lines) == is_warned and all("--document-start" in line for line in lines)


def stalled_prepare(*arguments: object) -> int:
    """``prepare`` whose workers say that they have started, and then wait for ever."""

    def stall(*arguments: object, **others: object) -> None:
        os.write(1, b"started\n")
        while True:
            signal.pause()

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell starts with it ignored
    binarize.Encoder.encode = stall
    binarize.PART_BYTES = 500
    return commands.fairseq_clear_command("prepare", *arguments)


@pytest.mark.slow
def test_signals_end_it_and_its_workers_and_leave_nothing(corpus: Path, model: Path, tmp_path: Path) -> None:
    arguments = [corpus, "--dest", tmp_path / "new" / "d", "--spm-model", model, "--workers", "2"]
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        child, shown = commands.fork_piped(lambda: stalled_prepare(*arguments))
        assert shown.readline() == "started\n"
        assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [".d.lock", ".d.partial"]
        os.kill(child, number)
        shown.read()  # ends when the workers, who hold the pipe too, have ended
        assert commands.ended(child) == code
        assert number == signal.SIGKILL or os.listdir(tmp_path) == []
    # after SIGKILL a hidden folder is left, which the next run removes
    assert main(["prepare", *map(str, arguments)]) == 0
    assert os.listdir(tmp_path / "new") == ["d"]
