"""``fairseq-clear back-translate``: translates a text into another language and back."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from fairseq_clear.cli.flags import Command, add_flags, read_flags
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, ModelSource, Search
from fairseq_clear.settings import setting

MODEL = (
    "a folder with model*.pt (several are an ensemble), checkpoint_best.pt or checkpoint_last.pt; or checkpoints joined "
    "by ':'"
)
DICTIONARIES = "folder of the model's dict.LANGUAGE.txt (default: the checkpoint's folder)"
CODES = (
    "the model's BPE codes (of fastBPE or subword-nmt) or sentencepiece FILE.model (default: bpecodes, code, codes, "
    "sentencepiece.bpe.model or spm.model in the checkpoint's folder)"
)


@dataclass(kw_only=True)
class ModelFlags:
    """The models of both directions."""

    GROUP: ClassVar[str] = "models"

    forward: str = setting(f"model that translates into the other language: {MODEL}", metavar="DIR")
    forward_data: Path | None = setting(DICTIONARIES, None, metavar="DIR")
    forward_codes: Path | None = setting(CODES, None)
    backward: str = setting("model that translates back, named as --forward", metavar="DIR")
    backward_data: Path | None = setting(DICTIONARIES, None, metavar="DIR")
    backward_codes: Path | None = setting(CODES, None)


@dataclass(kw_only=True)
class BackTranslate(Command, ModelFlags):
    """Translate every line of a text into another language and back, with translation models of fairseq-train.

    A model is an unpacked WMT19 archive, or any checkpoint of --task translation with its dictionaries and codes.

    The output has exactly one line for each input line. A blank line stays blank; control characters and runs of white space
    become one space. A line that cannot be translated keeps its own text and is counted. To resume a killed call, rerun it:
    finished chunks are not translated again, and the output equals that of an uninterrupted call. The report (identical
    lines, lengths, self-BLEU, which lines were kept and why) is written next to the output.
    """

    EXAMPLES: ClassVar[str] = r"""
fairseq-clear back-translate --input train.txt --forward wmt19.en-de.joined-dict.ensemble \
    --backward wmt19.de-en.joined-dict.ensemble --output train.de.txt --device cuda --fp16
fairseq-clear back-translate --input train.txt --forward en-de --backward de-en --output train.de.txt \
    --num-shards 16 --shard-id $SLURM_ARRAY_TASK_ID        # train.de.txt.00of16 ...
fairseq-clear back-translate --input train.txt --forward en-de --backward de-en --output train.de.txt \
    --num-shards 16 --merge                                # the same flags: joins the shards and their reports"""

    settings: BackTranslateSettings
    merge: bool = setting(
        "join the finished shards into OUTPUT, with one report; fails if a shard is missing or has other settings",
        False,
        group="running",
    )

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Declare the flags of the command, of its settings and of the search."""
        super().add_arguments(parser)
        add_flags(parser, BackTranslateSettings)
        add_flags(parser, Search)

    @classmethod
    def from_flags(cls, args: argparse.Namespace) -> Self:
        """Make the command with its settings from the flags."""
        models = {
            name: ModelSource(*(getattr(args, f"{name}{part}") for part in ("", "_data", "_codes")))
            for name in ("forward", "backward")
        }
        settings = read_flags(BackTranslateSettings, args, search=read_flags(Search, args), **models)
        return read_flags(cls, args, settings=settings)

    def run(self) -> int:
        """Translate the text and print the report."""
        self.settings.check()
        # fairseq takes seconds to import
        from fairseq_clear.preparation.back_translation.round_trip import back_translate, merge_shards

        outcome = merge_shards(self.settings) if self.merge else back_translate(self.settings)
        print(outcome.summary())
        return 0
