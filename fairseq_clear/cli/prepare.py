"""``fairseq-clear prepare``: converts raw text to a data folder."""

import argparse
import sys
from pathlib import Path

from fairseq_clear.preparation.prepare_settings import (
    SPLIT_MODES,
    SPM_MODEL_TYPES,
    TOKENIZER_KINDS,
    PrepareSettings,
    available_cores,
)

DESCRIPTION = """\
Turn raw text into a folder that fairseq-train reads (stock masked_lm and clear_lm alike): the tokenizer, dict.txt,
train and valid binarized by fairseq, clear.json with settings, counts and hashes.

The input is UTF-8, with one sentence per line and a blank line between documents; the end of a file also ends a document. In
.jsonl every record is a document, and its line breaks are sentence ends. All files may be compressed as .gz or .xz. Memory does
not grow with the corpus. If the command fails, DEST is not written."""

EPILOG = """\
examples:
  fairseq-clear prepare corpus.txt.gz --dest data-bin --vocab-size 16000
  fairseq-clear prepare wiki.*.txt.xz --dest data-bin --document-start '^ = [^=]' --split-sentences
  fairseq-clear prepare articles/*.txt --dest data-bin --document-start file --split-sentences paragraphs
  fairseq-clear prepare train.jsonl --valid valid.jsonl --dest data-bin --shards 8    # shard0 ... shard7
  fairseq-clear prepare corpus.txt --dest data-bin --gpt2-encoder-json encoder.json --gpt2-vocab-bpe vocab.bpe \\
      --dict roberta.base/dict.txt                                                    # goes on from roberta.base
  fairseq-clear prepare corpus.txt --dest data-bin --tokenizer hf --tokenizer-dir minilm   # what `import` made
  fairseq-clear prepare rte.txt --paraphrase de=rte.de.txt zh=rte.zh.txt --dest data-bin  # --views paraphrase:de,zh"""

SHORT_DOCUMENTS = (
    "most documents have one sentence, but --views neighbor and span need several; blank lines end documents unless "
    "--document-start says where they start (file: each file is one), and --split-sentences splits running text"
)
_DEFAULTS = PrepareSettings(inputs=(), dest=Path(), workers=1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; their names are those of ``PrepareSettings``."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    _add_text_arguments(parser)
    _add_part_arguments(parser.add_argument_group("part of the input"))
    _add_split_arguments(parser.add_argument_group("train, valid, shards"))
    _add_tokenizer_arguments(parser.add_argument_group("tokenizer: trained here, or reused"))
    running = parser.add_argument_group("running")
    running.add_argument(
        "--workers", type=int, default=None, metavar="N",
        help="processes that binarize; the result does not depend on it (default: the available cores, "
        f"{available_cores()})",
    )  # fmt: skip
    running.add_argument(
        "--seed", type=int, default=_DEFAULTS.seed,
        help="seed for the choice of held-out documents and of the lines that train the tokenizer; the same seed, text and "
        "versions give identical files (default: %(default)s)",
    )  # fmt: skip
    running.add_argument("--overwrite", action="store_true", help="replace DEST if it is a data folder")


def _add_text_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", nargs="+", type=Path, metavar="INPUT",
        help="text to train on: .txt, .jsonl, either also .gz or .xz, or a folder of such files",
    )  # fmt: skip
    parser.add_argument("--dest", required=True, type=Path, help="folder to create; must not exist yet")
    text = parser.add_argument_group("text")
    text.add_argument(
        "--text-field", default=_DEFAULTS.text_field, metavar="NAME",
        help="field of a .jsonl record that holds its text (default: %(default)s)",
    )  # fmt: skip
    text.add_argument(
        "--document-start", metavar="REGEX",
        help="in .txt, a line that matches this regular expression starts a document, and blank lines do not: '^ = [^=]' "
        "for WikiText, '.' for one document per line. The word file: each file is one document. A document never "
        "continues in the next file",
    )  # fmt: skip
    text.add_argument(
        "--split-sentences", nargs="?", const=SPLIT_MODES[0], choices=SPLIT_MODES,
        help="the input is running text: split it into sentences with sentencex (extra `split`). `lines` (the default "
        "of the bare flag) splits every line by itself, `paragraphs` first joins hard-wrapped lines up to a blank line",
    )  # fmt: skip
    text.add_argument(
        "--language", default=_DEFAULTS.language, metavar="CODE",
        help="language of --split-sentences, e.g. en, de, zh (default: %(default)s)",
    )  # fmt: skip

    text.add_argument(
        "--paraphrase", nargs="+", type=_named_file, default=[], metavar="NAME=FILE",
        help="paraphrases of a .txt input: line n of FILE says what line n of INPUT says, as in the output of back-translate. "
        "FILE becomes DEST/paraphrase/NAME, for --views paraphrase:NAME,... A blank line is replaced by the original in "
        "training, and counted. With several inputs, give NAME=FILE once for each, in their order",
    )  # fmt: skip


def _add_part_arguments(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--sample", type=int, metavar="N",
        help="first of all, keep only N sentences of the input, drawn at random with --seed. Those of one document remain one "
        "document, but are no longer adjacent (CERT's Table 5 compares corpora of equal size)",
    )  # fmt: skip
    group.add_argument(
        "--text-only", action="store_true",
        help="only write the text to DEST, a .txt file, with a blank line between documents; back-translate and prepare can "
        "read it",
    )  # fmt: skip


def _named_file(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE")
    return name, Path(path)


def _add_split_arguments(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--valid", nargs="+", type=Path, default=[], metavar="FILE",
        help="validation text; without it --valid-share of the documents is held out",
    )  # fmt: skip
    group.add_argument(
        "--valid-paraphrase", nargs="+", type=_named_file, default=[], metavar="NAME=FILE",
        help="paraphrases of --valid, as --paraphrase for the input; the same names",
    )  # fmt: skip
    group.add_argument(
        "--valid-share", type=float, default=_DEFAULTS.valid_share, metavar="SHARE",
        help="share of the documents, above 0 and below 1, that is held out at random; at least one document, never all "
        "(default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--shards", type=int, default=_DEFAULTS.shards, metavar="N",
        help="distribute the training documents over DEST/shard0 ... shardN-1, complete data folders of about equal size; "
        "fairseq-train DEST/shard0:DEST/shard1:... reads one per epoch (default: %(default)s, DEST itself)",
    )  # fmt: skip


def _add_tokenizer_arguments(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--vocab-size", type=int, default=_DEFAULTS.vocab_size, metavar="N",
        help="number of pieces of the sentencepiece model to train, including <unk>, <s>, </s> and 256 bytes; fairseq's "
        "dictionary has one entry more, and the tasks add <mask> and <del> (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--spm-model-type", choices=SPM_MODEL_TYPES, default=_DEFAULTS.spm_model_type,
        help="kind of sentencepiece model to train (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--no-byte-fallback", dest="byte_fallback", action="store_false",
        help="train without the 256 byte pieces; the model covers every character of the sample instead of 99.95 %% of "
        "their occurrences, and other characters become <unk>",
    )  # fmt: skip
    group.add_argument(
        "--spm-sample-mb", type=float, default=_DEFAULTS.spm_sample_mb, metavar="MB",
        help="train the model on about this many megabytes of training lines, drawn at random (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--spm-model", type=Path, metavar="FILE", help="reuse this sentencepiece model")
    group.add_argument(
        "--gpt2-encoder-json", type=Path, metavar="FILE",
        help="use GPT-2's byte-level BPE, as roberta.base does: its encoder.json",
    )  # fmt: skip
    group.add_argument(
        "--gpt2-vocab-bpe", type=Path, metavar="FILE", help="GPT-2's vocab.bpe, with --gpt2-encoder-json"
    )
    group.add_argument(
        "--tokenizer", choices=TOKENIZER_KINDS,
        help="kind of tokenizer. hf: the tokenizer.json of a Hugging Face folder, read by the `tokenizers` library (extra "
        "`hf`). sentencepiece and gpt2 are implied by the flags above",
    )  # fmt: skip
    group.add_argument(
        "--tokenizer-dir", type=Path, metavar="DIR",
        help="for --tokenizer hf: output folder of fairseq-clear import, whose dict.txt is reused, or a Hugging Face folder",
    )  # fmt: skip
    group.add_argument(
        "--dict", dest="dictionary", type=Path, metavar="FILE",
        help="dict.txt of the checkpoint to start from, copied unchanged so that token ids match (roberta.base's archive "
        "holds it); with --spm-model, the GPT-2 files or --tokenizer hf",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Prepare the folder, print the summary line and return 0."""
    # imported here because fairseq takes seconds to import, which would slow down --help
    from fairseq_clear.preparation.preparing import prepare, write_text

    names = PrepareSettings.__dataclass_fields__
    values = {name: value for name, value in vars(args).items() if name in names and value is not None}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    settings = PrepareSettings(**values)
    report = write_text(settings) if settings.text_only else prepare(settings)
    print(report.summary())
    # with --document-start . the user asked for documents of one sentence
    if report.lengths.median == 1 and settings.document_start != ".":
        print(f"fairseq-clear prepare: warning: {settings.dest}: {SHORT_DOCUMENTS}", file=sys.stderr)
    return 0
