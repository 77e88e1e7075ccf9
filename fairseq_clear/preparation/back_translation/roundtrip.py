"""A chunk of lines there and back again: as many lines out as in, and what happened to them counted."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.models import load_translation_model
from fairseq_clear.preparation.back_translation.report import compare
from fairseq_clear.preparation.back_translation.segmentation import one_line
from fairseq_clear.preparation.back_translation.settings import PASSES, BackTranslateSettings
from fairseq_clear.preparation.back_translation.translating import Pass

__all__ = ["ChunkResult", "RoundTrip", "choose_device"]


@dataclass(frozen=True)
class ChunkResult:
    """The lines that a chunk became, and its counts (see ``report``)."""

    chunk: int
    lines: list[str]
    counts: Counter[str]


class RoundTrip:
    """Both models, ready to translate chunks.

    Args:
        settings: of the run.
        device: where the models go.
        on_lines: called as lines are done; those that only one model has translated count half.
    """

    def __init__(
        self, settings: BackTranslateSettings, device: torch.device, on_lines: Callable[[float], object]
    ) -> None:
        torch.set_num_threads(settings.threads_each)
        models = [load_translation_model(settings, which, device) for which in PASSES]
        there, back = (model.languages for model in models)
        if there[1] != back[0] or there[0] != back[1]:
            raise UserError(
                f"--forward translates {' to '.join(there)} and --backward {' to '.join(back)}: the second must undo "
                "the first"
            )
        self.language = there[0]
        self.passes = [Pass(model, settings, lambda texts: on_lines(texts / 2)) for model in models]
        self._on_lines = on_lines

    def translate(self, chunk: int, lines: Sequence[str]) -> ChunkResult:
        """The chunk's lines back in their own language; where that fails, the line itself, blanks normalised."""
        originals = [one_line(line) for line in lines]
        counts: Counter[str] = Counter()
        # what goes on: a line's pieces, several once it was too long; a line that is lost keeps its own text
        pieces = {index: [text] for index, text in enumerate(originals) if text}
        counts["lines"], counts["blank"] = len(lines), len(lines) - len(pieces)
        for number, one_pass in enumerate(self.passes):
            translated = one_pass.translate(list(pieces.values()), chunk, counts)
            before = len(pieces)
            pieces = {index: parts for index, parts in zip(pieces, translated, strict=True) if parts is not None}
            self._on_lines((len(self.passes) - 1 - number) * (before - len(pieces)) / 2)
        results = [" ".join(pieces.get(index, [text])) for index, text in enumerate(originals)]
        counts["kept"] = len(lines) - counts["blank"] - len(pieces)
        self._on_lines(counts["blank"])
        counts.update(compare(originals, results, self.language))
        return ChunkResult(chunk, results, counts)


def choose_device(name: str | None, fp16: bool, worker: int = 0) -> torch.device:
    """The device of a worker: with ``cuda`` the GPUs are dealt out in turn.

    Raises:
        UserError: no such device, or half precision without a GPU.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise UserError(f"--device {name}: no such device; give cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or (device.index or 0) >= count:
            raise UserError(f"--device {device}: there {'is 1 GPU' if count == 1 else f'are {count} GPUs'} here")
        return torch.device("cuda", worker % count) if device.index is None else device
    if fp16:
        raise UserError(f"--fp16: needs a GPU, and --device is {device}; leave it out")
    return device
