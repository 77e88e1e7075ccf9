"""Settings of ``translate`` and ``back-translate``: importable without fairseq."""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from fairseq_clear.errors import UserError
from fairseq_clear.settings import check_settings, setting

Languages = tuple[str, str]

TOKENIZERS = ("auto", "none", "moses")
PASSES = ("both", "forward", "backward")
TOO_LONG = ("split", "copy")
BEAM = 5
MODEL = (
    "a folder of fairseq (model*.pt, checkpoint_best.pt or checkpoint_last.pt; dict.LANGUAGE.txt; BPE codes or a sentencepiece "
    "model, named as in fairseq's archives), or a checkpoint in it; a folder of "
    "CTranslate2 (model.bin); a local Hugging Face folder of Marian, NLLB or M2M100; or package.module:factory, a function "
    "that returns an object with translate(list of str) -> list of str"
)
LANGUAGES = (
    "CTranslate2, Hugging Face: the languages by the model's own names, such as eng_Latn:por_Latn (NLLB), en:pt (M2M100); "
    "needed by models of several languages"
)


def language_pair(text: str) -> Languages:
    """Read SOURCE:TARGET; argparse.ArgumentTypeError for another form."""
    source, _, target = text.partition(":")
    if not source or not target or ":" in target:
        raise argparse.ArgumentTypeError(f"{text!r} is not SOURCE:TARGET, such as eng_Latn:por_Latn")
    return source, target


PAIR: dict[str, Any] = {"type": language_pair, "nargs": None, "metavar": "SOURCE:TARGET"}


@dataclass(kw_only=True)
class Search:
    """How a model searches a translation."""

    GROUP: ClassVar[str] = "search"

    beam: int | None = setting("beam width, where words are not drawn (default: 5)", None, least=1)
    sampling_topk: int | None = setting("draw from the K most probable words", None, least=1, metavar="K")
    sampling_topp: float | None = setting(
        "draw from the most probable words whose probabilities sum to P", None, above=0, most=1, metavar="P"
    )
    temperature: float = setting("divides the logits", 1.0, above=0)
    lenpen: float = setting("scores are divided by length to this power; above 1 favours long translations", 1.0)
    max_len_a: float = setting(
        "a translation has at most A times the source's tokens, plus B", 1.5, least=0, metavar="A"
    )
    max_len_b: int = setting("see --max-len-a", 50, least=1, metavar="B")
    seed: int = setting("seed of --sampling", 1, least=0)
    too_long: str = setting(
        "what to do with a line that is too long for the model: split it into sentences (or copy it if a sentence is still too "
        "long), or copy it",
        "split",
        choices=TOO_LONG,
    )


@dataclass(kw_only=True)
class Running:
    """Where and in which portions a text is translated."""

    GROUP: ClassVar[str] = "running"

    device: str | None = setting("cpu, cuda or cuda:N (default: a GPU for each process, or cpu)", None)
    fp16: bool = setting("half precision, on a GPU", False)
    max_tokens: int = setting(
        "maximum source tokens per batch, padding included (words, for a function); give less for a beam above 5. A batch "
        "that does not fit into memory is halved",
        4096,
        least=1,
    )
    chunk_lines: int = setting(
        "lines per chunk; a chunk is sorted by length, translated and saved as a whole, so a killed process loses at most one",
        1024,
        least=1,
    )


@dataclass(kw_only=True)
class TranslationSettings(Running, Search):
    """Settings that one direction and the round trip share."""

    GROUP: ClassVar[str] = "models"

    input: Path = setting("UTF-8 text, one sentence per line; also .gz or .xz", group=None)
    output: Path = setting("file to write the translations to", group=None)
    overwrite: bool = setting("replace an existing output, and delete chunks of other settings", False, group=None)
    tokenizer: str = setting(
        "fairseq: how text is split into words; auto: moses before BPE codes, else none", "auto", choices=TOKENIZERS
    )

    @property
    def models(self) -> "tuple[Model, ...]":
        """The models, in the order in which they translate."""
        raise NotImplementedError

    @property
    def files(self) -> list[Path]:
        """The text files to write."""
        return [self.output]

    def check(self) -> None:
        """Raise UserError for values that contradict each other or are out of range; reads no file."""
        check_settings(self)
        for flag, given in (("--sampling-topk", self.sampling_topk), ("--sampling-topp", self.sampling_topp)):
            if given is not None and not any(model.draws for model in self.models):
                raise UserError(f"{flag} {given}: needs --sampling; add --sampling")
        for model in self.models:
            if model.alternatives > model.beam:
                raise UserError(
                    f"--copies {model.alternatives}: more than a beam of {model.beam}; add --beam or --sampling"
                )
        if self.beam is not None and all(model.draws for model in self.models):
            raise UserError(f"--beam {self.beam}: has no effect with --sampling; leave it out")
        if self.sampling_topk is not None and self.sampling_topp is not None:
            raise UserError("--sampling-topk and --sampling-topp exclude each other; give one")

    def deciding(self) -> dict[str, Any]:
        """Return all settings that determine the output, except the models' files and the device."""
        others = {"input", "output", "overwrite", "device", *(model.name for model in self.models)}
        return {name: value for name, value in asdict(self).items() if name not in others}

    def _model(self, name: str, draws: bool, alternatives: int = 1) -> "Model":
        beam = 1 if draws else self.beam or BEAM
        return Model(self, draws, beam, alternatives, name, getattr(self, name), getattr(self, f"{name}_languages"))


@dataclass(frozen=True)
class Model:
    """A model and its flags; ``name`` is ``model``, ``forward`` or ``backward``.

    ``draws`` tells whether words are drawn, ``alternatives`` is the number of different translations of each text.
    """

    settings: TranslationSettings
    draws: bool
    beam: int
    alternatives: int
    name: str
    path: str
    languages: Languages | None

    @property
    def where(self) -> str:
        """The flag and its value, for messages."""
        return f"--{self.name} {self.path}"


@dataclass(kw_only=True)
class OneDirection(TranslationSettings):
    """Settings of ``translate``."""

    GROUP: ClassVar[str] = "models"

    model: str = setting(MODEL, metavar="MODEL")
    model_languages: Languages | None = setting(LANGUAGES, None, **PAIR)
    sampling: bool = setting("draw words from the model's distribution", False, group=Search.GROUP)

    @property
    def models(self) -> tuple[Model, ...]:
        """The model."""
        return (self._model("model", self.sampling),)


@dataclass(kw_only=True)
class RoundTrip(TranslationSettings):
    """Settings of ``back-translate``."""

    GROUP: ClassVar[str] = "models"

    forward: str = setting(f"model that translates into the other language: {MODEL}", metavar="MODEL")
    forward_languages: Languages | None = setting(LANGUAGES, None, **PAIR)
    backward: str = setting("model that translates back, named as --forward", metavar="MODEL")
    backward_languages: Languages | None = setting(LANGUAGES, None, **PAIR)
    sampling: str | None = setting(
        "draw words from the model's distribution in both passes, or in one of them",
        None,
        choices=PASSES,
        nargs="?",
        const=PASSES[0],
        group=Search.GROUP,
    )
    copies: int = setting(
        "paraphrases per line, each in its own file for prepare --paraphrase: OUTPUT with .0, .1 ... before its suffix. With "
        "--sampling they are independent samples; else they are the N best translations back, which differ if the beam finds "
        "enough different ones",
        1,
        least=1,
        metavar="N",
        group=Search.GROUP,
    )

    @property
    def models(self) -> tuple[Model, ...]:
        """The models of both passes."""
        first, second = (self.sampling in ("both", name) for name in ("forward", "backward"))
        alternatives = 1 if first or second else self.copies
        return self._model("forward", first), self._model("backward", second, alternatives)

    @property
    def files(self) -> list[Path]:
        """The text file of each copy: ``text.de.0.txt`` ... for ``text.de.txt``, or OUTPUT itself if there is only one."""
        names = (f"{self.output.stem}.{copy}{self.output.suffix}" for copy in range(self.copies))
        return [self.output] if self.copies == 1 else [self.output.with_name(name) for name in names]
