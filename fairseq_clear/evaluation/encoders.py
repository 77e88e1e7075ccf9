"""Encoders for evaluation: their interface, a cache of vectors, and loading them from the command line.

``--encoder`` names a checkpoint, a file of word vectors, or a Python function.
"""

import inspect
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import read_lines
from fairseq_clear.libraries import FACTORY, import_factory
from fairseq_clear.shared_work import BlockFiles, gather_blocks, join_workers
from fairseq_clear.text.tokenizers import Tokenizer

Floats = npt.NDArray[np.float32]
# The encoder itself sorts and batches the sentences of a block; the progress bar advances once per block.
BATCHES_PER_BLOCK = 64
VECTOR_FILE = re.compile(r"\.(?:vec|txt)(?:\.gz|\.xz)?$")
WORD = re.compile(r"\w+(?:['-]\w+)*|[^\w\s]")


class Encoder(Protocol):
    """Anything that encodes texts as vectors: a SentenceEncoder, a SentenceTransformer, or your own class."""

    def encode(self, sentences: list[str], batch_size: int = 32) -> Any:
        """Return vectors (N, D) of N texts in their order, as an array, a tensor or nested lists."""


class CachedEncoder:
    """Encodes each distinct sentence once, for all tasks, and keeps the vectors in memory.

    New sentences go to the encoder in blocks, longest first, so an encoder that does not sort them still needs little
    padding. A CachedEncoder is itself an Encoder.

    Args:
        name: name of the encoder in messages and on the progress bar (default: its class).
        progress: show a progress bar on stderr.
        vectors: text -> vector, where vectors are looked up and kept (default: an empty dictionary).

    Attributes:
        transform: if set, applied to the vectors that ``encode`` returns, not to the cached ones: (N, D) -> (N, D').
        seconds: time spent in the encoder.
        sentences: number of distinct sentences that were encoded.
        notes: added to the encoder's description in reports, such as the file that ``transform`` was fitted on.
        kept: if set, files for finished blocks, from which a killed command resumes.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        batch_size: int = 32,
        name: str = "",
        progress: bool = False,
        vectors: dict[str, Floats] | None = None,
    ) -> None:
        if not callable(getattr(encoder, "encode", None)):
            raise UserError(
                f"encoder {name or type(encoder).__name__}: has no method encode(sentences, batch_size=...)"
            )
        self.encoder, self.batch_size, self.progress = encoder, batch_size, progress
        self.transform: Callable[[Floats], Floats] | None = None
        self.name = name or type(encoder).__name__
        self.seconds, self.sentences = 0.0, 0
        self.notes: dict[str, Any] = {}
        self.kept: BlockFiles | None = None
        self._vectors: dict[str, Floats] = {} if vectors is None else vectors

    @classmethod
    def of(cls, encoder: Encoder) -> "CachedEncoder":
        """The encoder itself if it is a CachedEncoder, else a new one around it."""
        return encoder if isinstance(encoder, cls) else cls(encoder)

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts of the encoder, by name."""
        return dict(getattr(self.encoder, "prompts", None) or {})

    @property
    def default_prompt_name(self) -> str | None:
        """The name of the prompt that ``encode`` uses by default."""
        return getattr(self.encoder, "default_prompt_name", None)

    def encode(self, sentences: Sequence[str], batch_size: int | None = None, prompt: str | None = None) -> Floats:
        """Return vectors (N, D) in float32 of one or more texts.

        Args:
            batch_size: overrides the constructor's batch size for this call.
            prompt: is put before each text (default: the encoder's default prompt, if it has one).
        """
        self.embed(sentences, batch_size, prompt)
        vectors = np.stack([self._vectors[_key(text, prompt)] for text in sentences])  # (N, D)
        return vectors if self.transform is None else self.transform(vectors)

    def embed(self, sentences: Sequence[str], batch_size: int | None = None, prompt: str | None = None) -> None:
        """Encode the sentences that are not cached yet, with one progress bar. The workers of a distributed job share them."""
        new = {text for text in sentences if _key(text, prompt) not in self._vectors}
        missing = sorted(new, key=lambda text: (-len(text), text))
        size = batch_size or self.batch_size
        per_block = size * BATCHES_PER_BLOCK
        blocks = [missing[begin : begin + per_block] for begin in range(0, len(missing), per_block)]

        def encode(block: list[str]) -> Floats:
            if self.kept is None or len(blocks) == 1:
                return compute(block)
            return self.kept.get([size, prompt, block], lambda: compute(block))

        def compute(block: list[str]) -> Floats:
            if prompt is not None and hasattr(self.encoder, "prompts"):
                returned = self.encoder.encode(block, batch_size=size, prompt=prompt)  # type: ignore[call-arg]
            else:
                returned = self.encoder.encode([(prompt or "") + text for text in block], batch_size=size)
            return to_vectors(returned, len(block), self.name)

        workers, started = join_workers(), time.perf_counter()
        hidden = None if self.progress and not workers.rank else True
        with tqdm(total=len(missing), unit="sentence", desc=self.name, disable=hidden, leave=False) as bar:
            for block, vectors in zip(blocks, gather_blocks(blocks, encode, workers), strict=True):
                known = next(iter(self._vectors.values()), vectors[0])
                if known.shape != vectors[0].shape:
                    what = f"vectors have dimension {len(vectors[0])}, earlier ones {len(known)}"
                    raise UserError(f"encoder {self.name}: {what}")
                self._vectors |= {_key(text, prompt): vector for text, vector in zip(block, vectors, strict=True)}
                bar.update(len(block))
        self.seconds += time.perf_counter() - started
        self.sentences += len(missing)

    def forget(self) -> None:
        """Drop all cached vectors, to free their memory."""
        self._vectors.clear()

    def describe(self) -> dict[str, Any]:
        """Describe the encoder for a report: by its own ``describe()`` if it has one, else by its class."""
        own = getattr(self.encoder, "describe", None)
        described = own() if callable(own) else None
        if not isinstance(described, dict):
            described = {"class": f"{type(self.encoder).__module__}.{type(self.encoder).__qualname__}"}
        return {**described, **self.notes}


def _key(text: str, prompt: str | None) -> str:
    return text if prompt is None else f"{prompt}\0{text}"


def to_vectors(returned: Any, rows: int, name: str) -> Floats:
    """Convert an encoder's output to (rows, D) float32; UserError if the output has another shape, NaN or infinity."""
    if hasattr(returned, "detach"):
        returned = returned.detach().cpu().float().numpy()  # a tensor on any device
    elif isinstance(returned, list) and returned and hasattr(returned[0], "detach"):
        returned = [row.detach().cpu().float().numpy() for row in returned]
    try:
        vectors: Floats = np.asarray(returned, dtype=np.float32)
    except (TypeError, ValueError):
        raise UserError(f"encoder {name}: returned {type(returned).__name__}, not vectors of equal length") from None
    if vectors.ndim != 2 or len(vectors) != rows or not vectors.shape[1]:
        raise UserError(f"encoder {name}: returned an array of shape {vectors.shape} for {rows} sentences, not (N, D)")
    if not np.isfinite(vectors).all():
        bad = int((~np.isfinite(vectors).all(axis=1)).sum())
        raise UserError(f"encoder {name}: {bad} of {rows} vectors contain NaN or infinity")
    return vectors


def load_encoders(
    name: str,
    poolings: Sequence[str | None],
    *,
    data_bin: str | None = None,
    tokenizer: Callable[[], Tokenizer] | None = None,
    device: str | None = None,
) -> list[tuple[str, Any]]:
    """Load one encoder with each of several poolings; return (label, encoder) pairs. A checkpoint is loaded only once.

    Args:
        name: path of a checkpoint or of a file of word vectors (.vec, GloVe's .txt, also .gz and .xz), or
            ``package.module:factory``.
        poolings: names of poolings; None for the encoder's default.
        data_bin, device: of a checkpoint, see ``SentenceEncoder.from_pretrained``.
        tokenizer: makes the tokenizer of a checkpoint (default: the tokenizer of ``data_bin``).

    Raises:
        UserError: the encoder does not exist or cannot be loaded.
    """
    if FACTORY.fullmatch(name) and not Path(name).exists():
        factory = import_factory(name, "--encoder")
        return [(f"{name} {pooling}" if pooling else name, _make(factory, name, pooling)) for pooling in poolings]
    if VECTOR_FILE.search(name):
        if list(poolings) != [None]:
            raise UserError(f"--pooling {poolings[0]}: --encoder {name} is a file of word vectors, which are averaged")
        return [(name, WordVectors(name))]
    if not Path(name).is_file():
        folder = "; of a folder, give checkpoint/model.pt in it, or import it first" if Path(name).is_dir() else ""
        raise UserError(f"--encoder {name}: neither a checkpoint file nor package.module:factory{folder}")
    if data_bin is None:
        raise UserError(f"--encoder {name}: a checkpoint needs --data-bin, the folder with its dict.txt and tokenizer")
    from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder  # fairseq takes seconds to import

    made = None if tokenizer is None else tokenizer()
    first = SentenceEncoder.from_pretrained(name, data_bin, tokenizer=made, pooling=poolings[0], device=device)
    parts, origin = (first.model, first.dictionary, first.tokenizer), first.describe()
    encoders = [first, *(SentenceEncoder(*parts, pooling=pooling, origin=origin) for pooling in poolings[1:])]
    return [(f"{name} {encoder.pooling}", encoder) for encoder in encoders]


def _make(factory: Any, name: str, pooling: str | None) -> Any:
    """Call the factory with the pooling, if any; without one, an object that has a method ``encode`` is returned unchanged."""
    if pooling is None and hasattr(factory, "encode") and not inspect.isclass(factory):
        return factory
    try:
        return factory() if pooling is None else factory(pooling=pooling)
    except UserError:
        raise
    except Exception as error:
        given = "" if pooling is None else f" with pooling={pooling!r}"
        raise UserError(f"--encoder {name}: calling it{given} failed ({one_line(error)})") from None


class WordVectors:
    """Encodes a text as the mean of its words' vectors (word2vec, fastText, GloVe), a weak baseline in many papers.

    A word that the file lacks is looked up in lower case; unknown words are ignored.

    Args:
        path: text file, also .gz or .xz. A line is a word and its numbers, separated by spaces; a first line of two numbers
            (count, dimension) is skipped.

    Raises:
        UserError: a missing or empty file, or a malformed line; the message names the line.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        index: dict[str, int] = {}
        rows: list[Floats] = []
        dimension: int | None = None
        # A few words of the published files are not valid UTF-8. They occur in no text, so invalid bytes are replaced.
        for number, raw in read_lines(self.path, errors="replace"):
            line = raw.rstrip(" ")
            if number == 1 and re.fullmatch(r"\d+ \d+", line):
                dimension = int(line.split()[1])
                continue
            if not line:
                continue
            if dimension is None:
                dimension = line.count(" ")
            # Words of GloVe can contain spaces, so numbers are counted from the right.
            word, *numbers = line.rsplit(" ", dimension)
            if len(numbers) != dimension or not dimension:
                raise UserError(f"{path}:{number}: not a word and {dimension} numbers")
            if word in index:
                continue
            index[word] = len(rows)
            try:
                rows.append(np.array(numbers, dtype=np.float32))
            except ValueError as error:
                raise UserError(f"{path}:{number}: malformed number ({error})") from None
        if not rows:
            raise UserError(f"{path}: holds no word vector")
        self._index, self._matrix = index, np.stack(rows)  # (V, D)

    def encode(self, sentences: Sequence[str], batch_size: int = 32) -> Floats:
        """Return vectors (N, D), zeros for a text without known words. ``batch_size`` is part of the interface and ignored."""
        vectors = np.zeros((len(sentences), self._matrix.shape[1]), np.float32)
        for row, text in enumerate(sentences):
            found = (self._index.get(word, self._index.get(word.lower())) for word in WORD.findall(text))
            known = [place for place in found if place is not None]
            if known:
                vectors[row] = self._matrix[known].mean(axis=0)
        return vectors

    def describe(self) -> dict[str, Any]:
        """Description of the encoder for a report."""
        return {"word_vectors": str(self.path), "words": len(self._index), "dimension": int(self._matrix.shape[1])}
