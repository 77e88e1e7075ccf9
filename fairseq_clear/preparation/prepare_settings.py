"""Settings of ``prepare``, grouped by what they determine; importable without fairseq."""

import argparse
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from fairseq_clear.errors import UserError
from fairseq_clear.settings import check_settings, setting
from fairseq_clear.text.data_folders import CLEAR_JSON, DICTIONARY, epoch_folders, recorded_tokenizer

SPLIT_MODES = ("lines", "paragraphs")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # a name that --views accepts
SPLITS = "train, valid, shards"  # title of a group of flags
ORIGINAL = "original"  # the name of the text itself in --views
# Tokenizer kind in clear.json -> the settings that take its files.
FILES = {"sentencepiece": ("spm_model",), "gpt2": ("gpt2_encoder_json", "gpt2_vocab_bpe")}


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def named_file(text: str) -> tuple[str, Path]:
    """Split ``NAME=FILE``, for argparse."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE")
    return name, Path(path)


@dataclass(kw_only=True)
class DocumentSettings:
    """How input files become sentences and documents."""

    GROUP: ClassVar[str] = "text"

    text_field: str = setting("name of the field of a .jsonl record that holds its text", "text", metavar="NAME")
    title_field: str | None = setting(
        "name of the field of a .jsonl record that holds its title, which becomes the first line of the document; records "
        "without it have none",
        None,
        metavar="NAME",
    )
    document_start: str | None = setting(
        "a line of a .txt file that matches this regular expression starts a document, and blank lines do not: "
        "'^ = [^=]' for WikiText, '.' for one document per line. The word file: each file is one document. A document "
        "never continues in the next file",
        None,
        metavar="REGEX",
    )
    split_sentences: str | None = setting(
        "the input is running text: split it into sentences with sentencex (extra `split`). `lines` (the default of the "
        "flag without a value) splits every line by itself, `paragraphs` first joins hard-wrapped lines up to a blank line",
        None,
        choices=SPLIT_MODES,
        nargs="?",
        const=SPLIT_MODES[0],
    )
    language: str = setting(
        "language of --split-sentences, as a code of Wikipedia: en, de, zh; an unknown code is split as English",
        "en",
        metavar="CODE",
    )


@dataclass(kw_only=True)
class TokenizerSettings:
    """Which tokenizer to train or to reuse, and its dictionary."""

    GROUP: ClassVar[str] = "tokenizer: train one, or reuse one"

    vocab_size: int = setting(
        "number of pieces of the sentencepiece model to train, including <unk>, <s>, </s> and 256 bytes; fairseq's dictionary "
        "has one entry more, and the tasks add <mask> and <del>",
        32000,
        least=1,
        exclusive="tokenizer",
    )
    spm_sample_mb: float = setting(
        "train a unigram model on about this many megabytes of training lines, drawn at random",
        50.0,
        above=0,
        metavar="MB",
    )
    spm_model: Path | None = setting("reuse this sentencepiece model, of any kind", None, exclusive="tokenizer")
    gpt2_encoder_json: Path | None = setting(
        "use GPT-2's byte-level BPE, as roberta.base does: its encoder.json", None, exclusive="tokenizer"
    )
    gpt2_vocab_bpe: Path | None = setting("GPT-2's vocab.bpe, with --gpt2-encoder-json", None)
    tokenizer_dir: Path | None = setting(
        "reuse the tokenizer of this folder: a data folder or output of fairseq-clear import, whose dict.txt is reused too, or "
        "a Hugging Face folder; a tokenizer of Hugging Face needs the extra `hf`",
        None,
        metavar="DIR",
        exclusive="tokenizer",
    )
    dictionary: Path | None = setting(
        "dict.txt of the checkpoint to start from, copied unchanged, so that the ids match (it is in roberta.base's "
        "archive); with --spm-model, the GPT-2 files or --tokenizer-dir",
        None,
        flag="--dict",
    )

    @property
    def given_dictionary(self) -> Path | None:
        """The ``dict.txt`` to copy: the one named, or the one next to an imported tokenizer."""
        imported = None if self.tokenizer_dir is None else self.tokenizer_dir / DICTIONARY
        return self.dictionary or (imported if imported is not None and imported.is_file() else None)

    def with_recorded_files(self) -> Self:
        """The same settings, with the files that ``clear.json`` in ``tokenizer_dir`` names in place of that folder.

        Raises:
            UserError: the folder records no tokenizer of raw text.
        """
        if self.tokenizer_dir is None or not (self.tokenizer_dir / CLEAR_JSON).is_file():
            return self
        folder = epoch_folders(self.tokenizer_dir)[0]  # with --shards, the files are in the first
        kind, files = recorded_tokenizer(folder)
        if kind == "hf":
            return self
        names = FILES.get(str(kind), ())
        if not names or len(names) != len(files):
            raise UserError(
                f"--tokenizer-dir {folder}: its {CLEAR_JSON} names no tokenizer of raw text; give its files"
            )
        paths: dict[str, Any] = {name: folder / file for name, file in zip(names, files, strict=True)}
        return replace(self, tokenizer_dir=None, dictionary=self.given_dictionary, **paths)

    def check(self) -> None:
        """Raise UserError for values that contradict each other."""
        if (self.gpt2_encoder_json is None) != (self.gpt2_vocab_bpe is None):
            raise UserError("--gpt2-encoder-json and --gpt2-vocab-bpe belong together: give both")
        trains = not (self.spm_model or self.gpt2_encoder_json or self.tokenizer_dir)
        if self.dictionary is not None and trains:
            raise UserError("--dict belongs to a tokenizer: add --spm-model, --tokenizer-dir or the GPT-2 files")


@dataclass(kw_only=True)
class PrepareSettings(TokenizerSettings, DocumentSettings):
    """Everything that determines what ``prepare`` writes."""

    inputs: tuple[Path, ...] = setting(
        "text to train on: .txt, .jsonl, either also .gz or .xz, or a folder of such files",
        metavar="INPUT",
        positional=True,
    )
    dest: Path = setting("folder to create; must not exist yet", metavar="DEST")
    overwrite: bool = setting("replace DEST if it is a data folder", False)
    paraphrase: tuple[tuple[str, Path], ...] = setting(
        "paraphrases of a .txt input: line n of FILE is a paraphrase of line n of INPUT, as back-translate writes it. FILE "
        "becomes DEST/paraphrase/NAME, for --views paraphrase:NAME,...; a blank line is counted and replaced by the original. "
        "With several inputs, repeat NAME=FILE once for each, in their order",
        (),
        type=named_file,
        metavar="NAME=FILE",
        group=DocumentSettings.GROUP,
    )
    text_only: bool = setting(
        "only write the text to DEST, a .txt, with a blank line between documents, for back-translate or another prepare",
        False,
    )
    valid: tuple[Path, ...] = setting(
        "validation text; without it --valid-share of the documents is held out", (), group=SPLITS
    )
    valid_share: float = setting(
        "share of the documents, above 0 and below 1, that is held out at random; at least one document, never all",
        0.01,
        metavar="SHARE",
        group=SPLITS,
    )
    shards: int = setting(
        "distribute the training documents over DEST/shard0 ... shardN-1, complete folders of about equal size; "
        "fairseq-train DEST/shard0:DEST/shard1:... reads one per epoch; with 1, DEST itself is the data folder",
        1,
        least=1,
        group=SPLITS,
    )
    workers: int = setting(
        "number of processes that binarize; the result does not depend on it",
        factory=available_cores,
        least=1,
        group="running",
    )
    seed: int = setting(
        "seed for the choice of held-out documents and of the lines that train the tokenizer; the same seed, text and versions "
        "give identical files",
        1,
        least=0,
        group="running",
    )

    def check(self) -> None:
        """Raise UserError for values that are out of range or contradict each other; no file is read."""
        check_settings(self)
        if not 0 < self.valid_share < 1:
            raise UserError(f"--valid-share {self.valid_share}: must be a share of the documents, above 0 and below 1")
        super().check()
        if self.split_sentences is None and self.language != DocumentSettings.language:
            raise UserError(f"--language {self.language}: has no effect without --split-sentences; add it")
        for name, _ in self.paraphrase:
            if not NAME.fullmatch(name) or name == ORIGINAL:
                raise UserError(
                    f"--paraphrase {name}=...: a name has letters, digits and . _ -, and is not '{ORIGINAL}', which in "
                    "--views is the text itself"
                )
        others = {
            "--split-sentences": (self.split_sentences, "split the text before translating it"),
            "--text-only": (self.text_only, "write the text first, translate it, then give both to prepare"),
            "--valid": (self.valid, "leave it out, so that documents are held out with their paraphrases"),
        }
        for flag, (value, remedy) in others.items():
            if self.paraphrase and value:
                raise UserError(f"{flag} and --paraphrase exclude each other: {remedy}")
