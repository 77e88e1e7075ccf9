"""Settings of ``translate`` and ``back-translate``. This module does not import fairseq."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fairseq_clear.settings import setting

Languages = tuple[str, str]

TOKENIZERS = ("auto", "none", "moses")
MODEL = (
    "a fairseq folder (model*.pt, checkpoint_best.pt or checkpoint_last.pt; dict.LANGUAGE.txt; BPE codes or a sentencepiece "
    "model, named as in fairseq's archives), or a checkpoint in such a folder; a CTranslate2 folder (model.bin); a local "
    "Hugging Face folder of Marian, NLLB or M2M100; or package.module:factory, a function that returns an object with "
    "translate(list of str) -> list of str"
)
LANGUAGES = (
    "source and target language in the model's own codes, such as eng_Latn:por_Latn (NLLB) or en:pt (M2M100); required by "
    "multilingual models of CTranslate2 and Hugging Face, optional for a function; a fairseq model names its languages itself"
)


def language_pair(text: str) -> Languages:
    """Parse SOURCE:TARGET; raise argparse.ArgumentTypeError for any other form."""
    source, _, target = text.partition(":")
    if not source or not target or ":" in target:
        raise argparse.ArgumentTypeError(f"{text!r} is not SOURCE:TARGET, such as eng_Latn:por_Latn")
    return source, target


PAIR: dict[str, Any] = {"type": language_pair, "nargs": None, "metavar": "SOURCE:TARGET"}


@dataclass(kw_only=True)
class TranslationSettings:
    """Settings that ``translate`` and ``back-translate`` share; ``MODELS`` names the models in the order of their use."""

    GROUP: ClassVar[str] = "search"
    MODELS: ClassVar[tuple[str, ...]]

    input: Path = setting("UTF-8 text, one sentence per line; also .gz or .xz", group=None)
    output: Path = setting("file to write the translations to", group=None)
    overwrite: bool = setting("replace an existing output, and delete chunks of other settings", False, group=None)
    tokenizer: str = setting(
        "how text is split into words for a fairseq model; auto: moses for a model with BPE codes, else none",
        "auto",
        choices=TOKENIZERS,
    )
    beam: int | None = setting("beam width, without --sampling (default: 5)", None, least=1, exclusive="search")
    sampling: int | None = setting(
        "sample words from the distribution of each model; with a number, only from the K most probable words",
        None,
        least=0,
        nargs="?",
        const=0,
        metavar="K",
        exclusive="search",
    )
    max_len_a: float = setting(
        "maximum tokens of a translation: A x tokens of the source + B", 1.5, least=0, metavar="A"
    )
    max_len_b: int = setting("see --max-len-a", 50, least=1, metavar="B")
    seed: int = setting("seed of --sampling", 1, least=0)
    device: str | None = setting("cpu, cuda or cuda:N (default: a GPU for each process, or cpu)", None, group="running")
    fp16: bool = setting("half precision, on a GPU", False, group="running")
    max_tokens: int = setting(
        "maximum source tokens per batch, including padding (words, if the model is a Python function); use a smaller value "
        "with a beam above 5. A batch that does not fit into memory is halved",
        4096,
        least=1,
        group="running",
    )
    chunk_lines: int = setting(
        "lines per chunk; a chunk is sorted by length, translated and saved as a whole, so a killed process loses one at most",
        1024,
        least=1,
        group="running",
    )

    @property
    def beam_width(self) -> int:
        """The beam width; 1 if words are sampled."""
        return self.beam or 5 if self.sampling is None else 1

    @property
    def models(self) -> "tuple[Model, ...]":
        """The models, in the order in which they translate."""
        values = vars(self)
        return tuple(Model(self, name, values[name], values[f"{name}_languages"]) for name in self.MODELS)

    @property
    def files(self) -> list[Path]:
        """The text files to write."""
        return [self.output]


@dataclass(frozen=True)
class Model:
    """A model and its flags; ``name`` is the flag without dashes: ``model``, ``forward`` or ``backward``."""

    settings: TranslationSettings
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
    MODELS: ClassVar[tuple[str, ...]] = ("model",)

    model: str = setting(MODEL, metavar="MODEL")
    model_languages: Languages | None = setting(LANGUAGES, None, **PAIR)


@dataclass(kw_only=True)
class RoundTrip(TranslationSettings):
    """Settings of ``back-translate``."""

    GROUP: ClassVar[str] = "models"
    MODELS: ClassVar[tuple[str, ...]] = ("forward", "backward")

    forward: str = setting(f"model that translates into the other language: {MODEL}", metavar="MODEL")
    forward_languages: Languages | None = setting(LANGUAGES, None, **PAIR)
    backward: str = setting("model that translates back; takes the same values as --forward", metavar="MODEL")
    backward_languages: Languages | None = setting(LANGUAGES, None, **PAIR)
    copies: int = setting(
        "number of paraphrases per line. Each goes to its own file, for prepare --paraphrase: OUTPUT with .0, .1 ... before "
        "its suffix. They are independent samples, so they need --sampling, or a translate with a parameter seed",
        1,
        least=1,
        metavar="N",
        group=TranslationSettings.GROUP,
    )

    @property
    def files(self) -> list[Path]:
        """The text file of each copy: ``text.de.0.txt`` ... for ``text.de.txt``, or OUTPUT itself if there is only one."""
        names = (f"{self.output.stem}.{copy}{self.output.suffix}" for copy in range(self.copies))
        return [self.output] if self.copies == 1 else [self.output.with_name(name) for name in names]
