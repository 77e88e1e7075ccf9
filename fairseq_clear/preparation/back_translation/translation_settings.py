"""Settings of ``back-translate``: plain data, importable without fairseq."""

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.prepare_settings import available_cores

BPE_KINDS = ("auto", "none", "bpe", "sentencepiece")
TOKENIZER_KINDS = ("auto", "none", "moses")
SAMPLING_PASSES = ("both", "forward", "backward")
TOO_LONG = ("split", "copy")
PASSES = ("forward", "backward")


@dataclass(frozen=True)
class ModelSource:
    """The model of one direction.

    Args:
        path: folder of a model, or one checkpoint, or several joined by ``:`` for an ensemble.
        dictionaries: folder with ``dict.LANGUAGE.txt``; None for the folder of the checkpoint.
        codes: file of BPE codes or a sentencepiece model; None to look for it in the folder of the checkpoint.
    """

    path: str
    dictionaries: Path | None = None
    codes: Path | None = None


@dataclass(frozen=True)
class Search:
    """How a translation is chosen.

    The fields are the flags of the same names in ``fairseq-clear back-translate --help``. ``beam`` None means 5, or 1 with
    sampling.
    """

    beam: int | None = None
    sampling: str | None = None
    sampling_topk: int | None = None
    sampling_topp: float | None = None
    temperature: float = 1.0
    lenpen: float = 1.0
    max_len_a: float = 1.5
    max_len_b: int = 50

    def samples_in(self, which: str) -> bool:
        """Whether the pass, forward or backward, draws its words."""
        return self.sampling in ("both", which)

    def beam_in(self, which: str) -> int:
        """Beam width of the pass."""
        return self.beam if self.beam is not None else 1 if self.samples_in(which) else 5

    def check(self) -> None:
        """Raise UserError for values that are out of range or contradict each other."""
        for flag, value in (("--beam", self.beam), ("--sampling-topk", self.sampling_topk)):
            if value is not None and value < 1:
                raise UserError(f"{flag} {value}: must be 1 or more")
        if self.sampling not in (None, *SAMPLING_PASSES):
            raise UserError(f"--sampling {self.sampling}: choose from {', '.join(SAMPLING_PASSES)}")
        for flag, given in (("--sampling-topk", self.sampling_topk), ("--sampling-topp", self.sampling_topp)):
            if given is not None and self.sampling is None:
                raise UserError(f"{flag} {given}: needs --sampling; add --sampling")
        if self.sampling_topk is not None and self.sampling_topp is not None:
            raise UserError("--sampling-topk and --sampling-topp exclude each other; give one")
        if self.sampling_topp is not None and not 0 < self.sampling_topp <= 1:
            raise UserError(f"--sampling-topp {self.sampling_topp}: a probability, above 0 and at most 1")
        if not self.temperature > 0:
            raise UserError(f"--temperature {self.temperature}: must be above 0; it divides the logits")
        if self.max_len_a < 0 or self.max_len_b < 0 or self.max_len_a + self.max_len_b < 1:
            raise UserError(f"--max-len-a {self.max_len_a} --max-len-b {self.max_len_b}: allow no word at all")


@dataclass(frozen=True)
class BackTranslateSettings:
    """Settings of a run.

    The fields are the flags of the same names in ``fairseq-clear back-translate --help``.
    """

    input: Path
    output: Path
    forward: ModelSource
    backward: ModelSource
    bpe: str = "auto"
    tokenizer: str = "auto"
    search: Search = field(default_factory=Search)
    seed: int = 1
    too_long: str = "split"
    max_tokens: int = 4096
    batch_size: int | None = None
    chunk_lines: int = 1024
    num_shards: int = 1
    shard_id: int = 0
    workers: int = 1
    threads: int | None = None
    device: str | None = None
    fp16: bool = False
    overwrite: bool = False
    log_interval: float = 60.0

    def check(self) -> None:
        """Raise UserError for values that contradict each other or are out of range; looks at no file."""
        self.search.check()
        for name in ("max_tokens", "chunk_lines", "workers", "num_shards", "batch_size", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be 1 or more")
        if not 0 <= self.shard_id < self.num_shards:
            raise UserError(f"--shard-id {self.shard_id}: must be 0 to {self.num_shards - 1}, below --num-shards")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed}: must be 0 or more")
        for flag, given, known in (
            ("--bpe", self.bpe, BPE_KINDS),
            ("--tokenizer", self.tokenizer, TOKENIZER_KINDS),
            ("--too-long", self.too_long, TOO_LONG),
        ):
            if given not in known:
                raise UserError(f"{flag} {given}: choose from {', '.join(known)}")

    @property
    def threads_each(self) -> int:
        """Threads of each process: ``threads``, else OMP_NUM_THREADS, else the available cores divided by ``workers``."""
        wanted = os.environ.get("OMP_NUM_THREADS", "")
        given = self.threads or (int(wanted) if wanted.isdecimal() else 0)
        return given or max(available_cores() // self.workers, 1)

    def deciding(self) -> dict[str, Any]:
        """Everything that determines the output, except files and device; a run resumes only with the same values."""
        names = ("bpe", "tokenizer", "seed", "too_long", "max_tokens", "batch_size", "chunk_lines", "fp16")
        flags = {name: getattr(self, name) for name in names} | asdict(self.search)
        return flags | {"num_shards": self.num_shards, "shard_id": self.shard_id}

    @property
    def shard_output(self) -> Path:
        """The file that this run writes."""
        return shard_path(self.output, self.shard_id, self.num_shards)


def shard_path(output: Path, shard: int, shards: int) -> Path:
    """``OUTPUT.02of16``, which sorts in order; OUTPUT itself for a single shard."""
    width = len(str(shards))
    return output if shards == 1 else output.with_name(f"{output.name}.{shard:0{width}}of{shards}")
