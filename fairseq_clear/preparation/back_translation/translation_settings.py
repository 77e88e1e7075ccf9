"""Settings of ``back-translate``: importable without fairseq."""

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.prepare_settings import available_cores
from fairseq_clear.settings import check_settings, setting

BPE_KINDS = ("auto", "none", "bpe", "sentencepiece")
TOKENIZER_KINDS = ("auto", "none", "moses")
SAMPLING_PASSES = ("both", "forward", "backward")
TOO_LONG = ("split", "copy")
PASSES = ("forward", "backward")


@dataclass(frozen=True)
class ModelSource:
    """The model of one direction.

    Args:
        path: folder of a model; or one checkpoint of fairseq, or several joined by ``:`` for an ensemble; or
            ``package.module:factory``.
        dictionaries: folder with ``dict.LANGUAGE.txt``; None for the folder of the checkpoint.
        codes: file of BPE codes or a sentencepiece model; None to look for it in the folder of the checkpoint.
        languages: source and target language, for models that do not name them.
    """

    path: str
    dictionaries: Path | None = None
    codes: Path | None = None
    languages: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Search:
    """Settings of the search for a translation."""

    GROUP: ClassVar[str] = "search"

    beam: int | None = setting(
        "beam width; with --sampling, number of samples, of which the most probable is kept (default: 5, with --sampling 1)",
        None,
        least=1,
    )
    sampling: str | None = setting(
        "draw words from the model's distribution in both passes, or in one of them",
        None,
        choices=SAMPLING_PASSES,
        nargs="?",
        const=SAMPLING_PASSES[0],
    )
    sampling_topk: int | None = setting("draw from the K most probable words", None, least=1, metavar="K")
    sampling_topp: float | None = setting(
        "draw from the most probable words whose probabilities sum to P", None, metavar="P"
    )
    temperature: float = setting("divides the logits", 1.0, above=0)
    lenpen: float = setting("scores are divided by length to this power; above 1 favours long translations", 1.0)
    max_len_a: float = setting("a translation has at most A times the source's tokens, plus B", 1.5, metavar="A")
    max_len_b: int = setting("see --max-len-a", 50, metavar="B")

    def samples_in(self, which: str) -> bool:
        """Whether the pass, forward or backward, draws its words."""
        return self.sampling in ("both", which)

    def beam_in(self, which: str) -> int:
        """Beam width of the pass."""
        return self.beam if self.beam is not None else 1 if self.samples_in(which) else 5

    def check(self) -> None:
        """Raise UserError for values that are out of range or contradict each other."""
        check_settings(self)
        for flag, given in (("--sampling-topk", self.sampling_topk), ("--sampling-topp", self.sampling_topp)):
            if given is not None and self.sampling is None:
                raise UserError(f"{flag} {given}: needs --sampling; add --sampling")
        if self.sampling_topk is not None and self.sampling_topp is not None:
            raise UserError("--sampling-topk and --sampling-topp exclude each other; give one")
        if self.sampling_topp is not None and not 0 < self.sampling_topp <= 1:
            raise UserError(f"--sampling-topp {self.sampling_topp}: must be a probability, above 0 and at most 1")
        if self.max_len_a < 0 or self.max_len_b < 0 or self.max_len_a + self.max_len_b < 1:
            raise UserError(
                f"--max-len-a {self.max_len_a} --max-len-b {self.max_len_b}: allow no word at all; give larger values"
            )


@dataclass(frozen=True, kw_only=True)
class BackTranslateSettings:
    """Settings of a run."""

    input: Path = setting("UTF-8 text, one sentence per line; also .gz or .xz")
    output: Path  # file to write the translated text to; with ``copies``, see copy_path
    overwrite: bool = setting("replace an existing output, and delete chunks of other settings", False)
    forward: ModelSource
    backward: ModelSource
    bpe: str = setting(
        "how words are split into subwords; auto: as the file of codes says, or not at all without such a file",
        "auto",
        choices=BPE_KINDS,
        group="models",
    )
    tokenizer: str = setting(
        "how text is split into words; auto: moses before bpe, else none",
        "auto",
        choices=TOKENIZER_KINDS,
        group="models",
    )
    search: Search = field(default_factory=Search)
    copies: int = setting(
        "paraphrases per line, each in its own file for prepare --paraphrase: OUTPUT with .0, .1 ... before its suffix. With "
        "--sampling they are independent samples; else they are the N best translations back, which differ if the beam finds "
        "enough different ones",
        1,
        least=1,
        metavar="N",
        group="search",
    )
    seed: int = setting("seed of --sampling", 1, least=0, group="search")
    too_long: str = setting(
        "what to do with a line that is too long for the model: split it into sentences (or copy it if a sentence is still too "
        "long), or copy it",
        "split",
        choices=TOO_LONG,
        group="search",
    )
    device: str | None = setting("cpu, cuda or cuda:N (default: cuda if available)", None, group="running")
    fp16: bool = setting("half precision, on a GPU", False, group="running")
    max_tokens: int = setting(
        "maximum source tokens per batch, padding included (words, for a function); give less for a beam above 5. A batch "
        "that does not fit into memory is halved",
        4096,
        least=1,
        group="running",
    )
    batch_size: int | None = setting("maximum lines per batch (default: no limit)", None, least=1, group="running")
    chunk_lines: int = setting(
        "lines per chunk; a chunk is sorted by length, translated and saved as a whole, so a killed call loses at most one "
        "chunk per worker",
        1024,
        least=1,
        group="running",
    )
    workers: int = setting(
        "number of processes, each with both models; with cuda, each on its own GPU. The output does not depend on it",
        1,
        least=1,
        group="running",
    )
    threads: int | None = setting(
        "threads of each process (default: OMP_NUM_THREADS, else the available cores divided by --workers)",
        None,
        least=1,
        group="running",
    )
    num_shards: int = setting(
        "divide the input among N calls, each with its --shard-id; they write OUTPUT.0ofN and so on, which joined in this "
        "order equal the output of a single call",
        1,
        least=1,
        group="running",
    )
    shard_id: int = setting("shard that this call translates, 0 to N - 1", 0, metavar="I", group="running")
    show: int = setting("examples in the report", 10, least=0, metavar="K", group="running")
    log_interval: float = setting(
        "seconds between two lines of progress if standard error is not a terminal",
        60.0,
        metavar="SECONDS",
        group="running",
    )

    def check(self) -> None:
        """Raise UserError for values that contradict each other or are out of range; reads no file."""
        self.search.check()
        check_settings(self)
        if not 0 <= self.shard_id < self.num_shards:
            raise UserError(f"--shard-id {self.shard_id}: must be 0 to {self.num_shards - 1}, below --num-shards")

    def source(self, which: str) -> ModelSource:
        """The model of ``forward`` or ``backward``."""
        return self.forward if which == "forward" else self.backward

    @property
    def threads_each(self) -> int:
        """Threads of each process: ``threads``, else OMP_NUM_THREADS, else the available cores divided by ``workers``."""
        wanted = os.environ.get("OMP_NUM_THREADS", "")
        given = self.threads or (int(wanted) if wanted.isdecimal() else 0)
        return given or max(available_cores() // self.workers, 1)

    def deciding(self) -> dict[str, Any]:
        """Return all settings that determine the output, except files and device; a run resumes only with the same values."""
        names = ("bpe", "tokenizer", "seed", "too_long", "max_tokens", "batch_size", "chunk_lines", "fp16")
        flags = {name: getattr(self, name) for name in names} | asdict(self.search)
        if self.copies > 1:
            flags["copies"] = self.copies
        return flags | {"num_shards": self.num_shards, "shard_id": self.shard_id}

    @property
    def shard_output(self) -> Path:
        """The file of this run; with ``copies``, the name from which those of the copies are made."""
        return shard_path(self.output, self.shard_id, self.num_shards)

    @property
    def output_files(self) -> list[Path]:
        """The text files that this run writes, one for each copy."""
        return [shard_path(path, self.shard_id, self.num_shards) for path in copy_paths(self.output, self.copies)]


def shard_path(output: Path, shard: int, shards: int) -> Path:
    """The file of a shard, ``OUTPUT.02of16``, whose names sort in order; OUTPUT itself if there is only one shard."""
    width = len(str(shards))
    return output if shards == 1 else output.with_name(f"{output.name}.{shard:0{width}}of{shards}")


def copy_paths(output: Path, copies: int) -> list[Path]:
    """The files of the copies, ``text.de.0.txt`` for ``text.de.txt``; OUTPUT itself if there is only one copy."""
    if copies == 1:
        return [output]
    return [output.with_name(f"{output.stem}.{copy}{output.suffix}") for copy in range(copies)]
