"""Commands that make what is trained on: ``prepare``, ``synonyms``, ``translate`` and ``back-translate``."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fairseq_clear.cli.flags import Command
from fairseq_clear.errors import UserError
from fairseq_clear.files import check_output_file, hash_file
from fairseq_clear.preparation.back_translation.translation_settings import OneDirection, RoundTrip, TranslationSettings
from fairseq_clear.preparation.prepare_settings import PrepareSettings
from fairseq_clear.settings import setting
from fairseq_clear.text.data_folders import data_folders, load_tokenizer, read_dictionary

SHORT_DOCUMENTS = (
    "most documents have one sentence, but --views titles, neighbor, cloze and span need several; blank lines end documents "
    "unless --document-start says where they start (file: each file is one), and --split-sentences splits running text"
)


@dataclass(kw_only=True)
class Prepare(Command, PrepareSettings):
    """Convert raw text to a folder that fairseq-train reads, with stock masked_lm as with clear_lm.

    It holds the tokenizer, dict.txt, train and valid in fairseq's binary format, and clear.json with settings, counts and
    hashes.

    The input is UTF-8 text with one sentence per line and a blank line between documents; the end of a file also ends a
    document. In .jsonl, every record is a document, and its line breaks are sentence ends. All files may be compressed as .gz
    or .xz. Memory does not grow with the corpus. If the command fails, DEST is not written.
    """

    EXAMPLES: ClassVar[str] = r"""
fairseq-clear prepare corpus.txt.gz --dest data-bin --vocab-size 16000
fairseq-clear prepare wiki.*.txt.xz --dest data-bin --document-start '^ = [^=]' --split-sentences
fairseq-clear prepare articles/*.txt --dest data-bin --document-start file --split-sentences paragraphs
fairseq-clear prepare train.jsonl --valid valid.jsonl --dest data-bin --shards 8    # shard0 ... shard7
fairseq-clear prepare corpus.txt --dest data-bin --gpt2-encoder-json encoder.json --gpt2-vocab-bpe vocab.bpe \
    --dict roberta.base/dict.txt                                                    # continues from roberta.base
fairseq-clear prepare corpus.txt --dest data-bin --tokenizer-dir minilm   # what `import` made
fairseq-clear prepare rte.txt --paraphrase de=rte.de.txt zh=rte.zh.txt --dest data-bin  # --views paraphrase:de,zh"""

    def run(self) -> int:
        """Prepare the folder and print the summary."""
        from fairseq_clear.preparation.preparing import prepare, write_text  # fairseq takes seconds to import

        report = write_text(self) if self.text_only else prepare(self)
        print(report.summary())
        # with --document-start . documents of one sentence are intended
        if 2 * report.lengths[1] > report.lengths.total() and self.document_start != ".":
            print(f"fairseq-clear prepare: warning: {self.dest}: {SHORT_DOCUMENTS}", file=sys.stderr)
        return 0


@dataclass(kw_only=True)
class Synonyms(Command):
    """Build the table of synonyms that --augment subs and eda use, for the vocabulary of a data folder."""

    data_bin: Path = setting("data folder of `fairseq-clear prepare`", metavar="DIR")
    source: str = setting(
        'a JSON file of word -> list of synonyms, such as {"film": ["movie"]}, or WordNet through nltk',
        metavar="FILE.json|wordnet",
    )
    output: Path | None = setting("file to write (default: synonyms.npz in --data-bin)", None)
    overwrite: bool = setting("replace an existing table", False)

    def run(self) -> int:
        """Build the table, write it and print a report; errors come before anything is written."""
        from fairseq_clear.preparation.synonym_building import WORDNET, build_table, read_synonyms, read_wordnet
        from fairseq_clear.text.synonym_files import SYNONYMS_NPZ, save_synonyms

        # where training looks for the table; all shards have the same vocabulary
        folder = data_folders(self.data_bin)[0]
        output: Path = self.output or folder / SYNONYMS_NPZ
        check_output_file(output, self.overwrite)
        tokenizer = load_tokenizer(folder)
        symbols = read_dictionary(folder / "dict.txt")
        source = read_wordnet() if self.source == WORDNET else read_synonyms(Path(self.source))
        table = build_table(source.synonyms, tokenizer, symbols)
        if not len(table):
            raise UserError(
                f"--source {self.source}: none of its {len(source.synonyms)} words is in the vocabulary of {folder}"
            )
        vocabulary_hash = hash_file(folder / "dict.txt")
        save_synonyms(
            output, table, vocabulary_hash=vocabulary_hash, source=source.name, source_hash=source.content_hash
        )
        mean = table.row_offsets[-1] / len(table)
        print(f"{source.name}: {len(source.synonyms):,} words; in three cases, {len(table):,} are in the vocabulary")
        print(f"wrote {output}: {mean:.2f} alternatives of a word on average")
        return 0


@dataclass(kw_only=True)
class TranslationCommand(Command, TranslationSettings):
    """What both commands do."""

    SHARES_WORK: ClassVar[bool] = True

    def run(self) -> int:
        """Translate and print the report, on the first process of torchrun."""
        # importing fairseq is slow
        from fairseq_clear.preparation.back_translation.translating import report_text, translate_file

        if report := translate_file(self):
            print(f"{report_text(report)}\ncomplete: {', '.join(map(str, self.files))}")
        return 0


@dataclass(kw_only=True)
class Translate(TranslationCommand, OneDirection):
    """Translate every line of a text with a translation model of any kind.

    The output has exactly one line for each input line. A blank line stays blank; control characters and runs of white space
    become one space. A line that cannot be translated keeps its own text and is counted. To resume a killed call, rerun it:
    finished chunks are not translated again, and the output equals the output of an uninterrupted call. torchrun starts it on
    several GPUs or machines, with the same result. The report is written to OUTPUT.report.json.
    """

    EXAMPLES: ClassVar[str] = r"""
fairseq-clear translate --input train.txt --model opus-mt-en-de --output train.de.txt
torchrun --nproc-per-node 8 -m fairseq_clear.cli translate --input train.txt --model nllb \
    --model-languages eng_Latn:por_Latn --output train.pt.txt --fp16"""


@dataclass(kw_only=True)
class BackTranslate(TranslationCommand, RoundTrip):
    """Translate every line of a text into another language and back, with translation models of any kind.

    Lines, resuming and several processes are as in ``fairseq-clear translate``. The report (unchanged lines, lengths,
    self-BLEU, self-chrF, lines that could not be translated) is written to OUTPUT.report.json.
    """

    EXAMPLES: ClassVar[str] = r"""
fairseq-clear back-translate --input train.txt --forward en-de --backward de-en --output train.de.txt
fairseq-clear back-translate --input train.txt --forward opus-mt-en-pt --backward opus-mt-pt-en \
    --output train.pt.txt --copies 2 --sampling            # train.pt.0.txt and train.pt.1.txt
fairseq-clear back-translate --input train.txt --forward nllb --forward-languages eng_Latn:por_Latn \
    --backward nllb --backward-languages por_Latn:eng_Latn --output train.pt.txt
torchrun --nproc-per-node 8 -m fairseq_clear.cli back-translate --input train.txt --forward en-de \
    --backward de-en --output train.de.txt --fp16"""
