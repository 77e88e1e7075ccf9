"""``fairseq-clear prepare``: converts raw text to a data folder."""

import sys
from dataclasses import dataclass
from typing import ClassVar

from fairseq_clear.cli.flags import Command
from fairseq_clear.preparation.prepare_settings import PrepareSettings

SHORT_DOCUMENTS = (
    "most documents have one sentence, but --views neighbor, cloze and span need several; blank lines end documents unless "
    "--document-start says where they start (file: each file is one), and --split-sentences splits running text"
)


@dataclass(kw_only=True)
class Prepare(Command, PrepareSettings):
    """Convert raw text to a folder that fairseq-train reads, with stock masked_lm as with clear_lm.

    It holds the tokenizer, dict.txt, train and valid binarized by fairseq, and clear.json with settings, counts and hashes.

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
    --dict roberta.base/dict.txt                                                    # goes on from roberta.base
fairseq-clear prepare corpus.txt --dest data-bin --tokenizer hf --tokenizer-dir minilm   # what `import` made
fairseq-clear prepare rte.txt --paraphrase de=rte.de.txt zh=rte.zh.txt --dest data-bin  # --views paraphrase:de,zh"""

    def run(self) -> int:
        """Prepare the folder and print the summary."""
        from fairseq_clear.preparation.preparing import prepare, write_text  # fairseq takes seconds to import

        report = write_text(self) if self.text_only else prepare(self)
        print(report.summary())
        # with --document-start . documents of one sentence are intended
        if report.lengths.median == 1 and self.document_start != ".":
            print(f"fairseq-clear prepare: warning: {self.dest}: {SHORT_DOCUMENTS}", file=sys.stderr)
        return 0
