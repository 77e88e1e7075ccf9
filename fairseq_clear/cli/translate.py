"""``fairseq-clear translate`` and ``back-translate``: translate a text, or translate it into another language and back."""

from dataclasses import dataclass
from typing import ClassVar

from fairseq_clear.cli.flags import Command
from fairseq_clear.preparation.back_translation.translation_settings import (
    OneDirection,
    RoundTrip,
    TranslationSettings,
)


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
