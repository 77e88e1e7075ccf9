"""Flags of the commands that encode text: one encoder, or several to compare, and what is done to their vectors."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clear.cli.flags import ModelFlags, VectorFlags
from fairseq_clear.errors import UserError
from fairseq_clear.files import hash_file, read_text_lines
from fairseq_clear.settings import setting

if TYPE_CHECKING:
    from fairseq_clear.evaluation.encoders import CachedEncoder

ENCODER = (
    "a checkpoint (with --data-bin), a .vec or GloVe .txt file of word vectors to average, or package.module:factory, a "
    "function that returns an object with encode(list of str, batch_size=...) -> vectors"
)
POOLINGS = "cls, mean, max, first-last, last2, wk (SBERT-WK) or layer:N"


@dataclass(kw_only=True)
class OneEncoderFlags(ModelFlags):
    """Flags for one encoder."""

    encoder: str = setting(ENCODER, metavar="ENC")
    pooling: str | None = setting(f"{POOLINGS} (default: the checkpoint's own)", None)

    def load(self) -> "CachedEncoder":
        """Load the encoder."""
        from fairseq_clear.evaluation.encoders import CachedEncoder  # takes seconds to import

        label, encoder = self.load_encoders(self.encoder, (self.pooling,))[0]
        return CachedEncoder(encoder, batch_size=self.batch_size, name=label, progress=True)


@dataclass(kw_only=True)
class EncoderFlags(VectorFlags):
    """Flags for the encoders to score, and for the report."""

    encoder: tuple[str, ...] = setting(
        f"one or several: {ENCODER}",
        metavar="ENC",
    )
    pooling: tuple[str | None, ...] = setting(
        f"one or several: {POOLINGS}; each is a row (default: the checkpoint's own)",
        (None,),
    )
    whitening: Path | None = setting(
        "whiten the vectors (Su et al. 2021), fitted without labels on the sentences of this file, one per line",
        None,
        exclusive="dimensions",
    )
    whitening_dimensions: int | None = setting("dimensions that whitening keeps (default: all)", None, metavar="K")
    output: Path | None = setting(
        "write the report: numbers, data hashes, protocol, encoders, seeds, versions", None, metavar="FILE.json"
    )
    overwrite: bool = setting("replace an existing report", False)

    def encoders(self) -> "Iterator[CachedEncoder]":
        """Yield every encoder with every pooling; a checkpoint is freed before the next one is loaded."""
        from fairseq_clear.evaluation.encoders import CachedEncoder, first_dimensions  # takes seconds to import
        from fairseq_clear.evaluation.sentence_flow import load_flow

        flow, flow_hash = (load_flow(self.flow), hash_file(self.flow)) if self.flow is not None else (None, "")
        for name in self.encoder:
            for label, encoder in self.load_encoders(name, self.pooling):
                cached = CachedEncoder(encoder, batch_size=self.batch_size, name=label, progress=True)
                if self.whitening is not None:
                    self.whiten(cached, self.whitening)
                if flow is not None:
                    flow.check_encoder(cached.describe())
                    cached.transform, cached.name = flow.transform, f"{label} flow"
                    cached.notes["flow"] = {"file": str(self.flow), "sha256": flow_hash, "fitted on": flow.origin}
                if self.dimension is not None:
                    cached.transform = partial(first_dimensions, dimension=self.dimension, name=label)
                    cached.name, cached.notes["dimension"] = f"{label} first {self.dimension}", self.dimension
                yield cached

    def whiten(self, encoder: "CachedEncoder", file: Path) -> None:
        """Fit a whitening on the sentences of ``file``, and let the encoder apply it."""
        from fairseq_clear.evaluation.encoders import Whitening

        sentences = [line for line in read_text_lines(file) if line.strip()]
        if not sentences:
            raise UserError(f"--whitening {file}: holds no sentence")
        encoder.transform = Whitening.fit(encoder.encode(sentences), self.whitening_dimensions)
        encoder.name = f"{encoder.name} whitened"
        encoder.notes["whitening"] = {
            "file": str(file),
            "sha256": hash_file(file),
            "sentences": len(sentences),
            "dimensions": int(encoder.transform.kernel.shape[1]),
        }
