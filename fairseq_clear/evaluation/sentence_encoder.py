"""Sentences to vectors: a checkpoint, its vocabulary and its tokenizer behind one call."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from fairseq_clear import __version__
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import load_model
from fairseq_clear.files import versions
from fairseq_clear.models.clear_roberta import ClearRobertaModel
from fairseq_clear.models.encoding import EncodingCounts, Floats, encode_texts
from fairseq_clear.modules.pooling import parse_pooling
from fairseq_clear.text.data_folders import data_folders, load_tokenizer
from fairseq_clear.text.tokenizers import Tokenizer

__all__ = ["SentenceEncoder"]

logger = logging.getLogger(__name__)

# More than this share of unknown tokens means another tokenizer than that of the training text.
MANY_UNKNOWN = 0.5


class SentenceEncoder:
    """Encodes texts as sentence-transformers does.

    >>> encoder = SentenceEncoder.from_pretrained("checkpoints/checkpoint_best.pt", "data-bin")
    >>> vectors = encoder.encode(["A film.", "A movie."], normalize=True)  # (2, D) float32

    Args:
        model: in memory; nothing of it is changed.
        dictionary: fairseq's, as the model was trained with.
        tokenizer: text to symbols of the dictionary.
        pooling: another one than the model's.
        origin: where it comes from, for ``describe``.

    Attributes:
        last: counts of the last call of ``encode``.
        max_length: texts longer than this many tokens, ``<s>`` and ``</s>`` included, are cut; at first the number of the
            model's positions, which is the ``--tokens-per-sample`` that it was trained with.
    """

    def __init__(
        self,
        model: ClearRobertaModel,
        dictionary: Any,
        tokenizer: Tokenizer,
        *,
        pooling: str | None = None,
        origin: dict[str, Any] | None = None,
    ) -> None:
        self.pooling = pooling or str(model.args.pooling)
        parse_pooling(self.pooling, model.args.encoder_layers, flag="pooling")
        self.model, self.dictionary, self.tokenizer = model, dictionary, tokenizer
        self.max_length = int(model.max_positions())
        self.last = EncodingCounts()
        self._origin = dict(origin or {})

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str | Path,
        data_bin: str | Path,
        *,
        tokenizer: Tokenizer | None = None,
        pooling: str | None = None,
        device: str | torch.device | None = None,
    ) -> "SentenceEncoder":
        """Load a checkpoint, in float32 whatever precision it was trained in.

        Args:
            checkpoint: of ``clear_roberta``, whatever it was trained with, or of fairseq's own ``roberta``.
            data_bin: folder with the ``dict.txt`` that it was trained with, usually its data folder. The training run's
                own paths are not looked at.
            tokenizer: needed where ``data_bin`` comes from plain fairseq-preprocess, which does not record one:
                ``SentencePieceTokenizer(model)``, ``Gpt2Tokenizer(encoder_json, vocab_bpe)`` or ``WhitespaceTokenizer()``
                of ``fairseq_clear.text.tokenizers``.
            pooling: cls, mean, max, first-last, last2 or layer:N; default: the one that the checkpoint was trained with,
                and mean for a stock roberta checkpoint, which states none.
            device: such as ``cpu`` or ``cuda``; default: cuda where there is one.

        Raises:
            UserError: a missing or damaged checkpoint, another architecture or vocabulary, no tokenizer, no such pooling
                or device.
        """
        where = _device(device)
        folder = data_folders(data_bin, flag="data_bin")[0]
        tokenizer = tokenizer if tokenizer is not None else load_tokenizer(folder)
        loaded = load_model(checkpoint, folder)
        origin = {
            "checkpoint": str(checkpoint),
            "data_bin": str(data_bin),
            "architecture": loaded.architecture,
            "updates": loaded.updates,
            "vocabulary_hash": loaded.vocabulary_hash,
        }
        return cls(loaded.model.to(where), loaded.dictionary, tokenizer, pooling=pooling, origin=origin)

    def encode(
        self,
        sentences: str | Sequence[str],
        batch_size: int = 32,
        pooling: str | None = None,
        normalize: bool = False,
        show_progress_bar: bool = False,
    ) -> Floats:
        """Vectors of texts, in their order; how it batches, see ``models.encoding.encode_texts``.

        Args:
            sentences: one text or several; an empty one is embedded as ``<s> </s>``.
            batch_size: rows of the longest text per batch; batches of short texts have more rows. Speed and memory depend
                on it, results do not.
            pooling: for this call.
            normalize: scale vectors to length 1.
            show_progress_bar: on stderr.

        Returns:
            (N, D) float32; (D,) for a single str.
        """
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        with tqdm(total=len(texts), unit="sentence", disable=not show_progress_bar) as bar:
            vectors = self.encode_block(texts, batch_size, pooling, normalize, on_batch=bar.update)
        if self.truncated:
            logger.warning(
                "%d of %d texts are longer than %d tokens and were cut", self.truncated, len(texts), self.max_length
            )
        if self.last.unknown_share > MANY_UNKNOWN:
            logger.warning(
                "%.0f %% of the tokens are not in the vocabulary: is %s the tokenizer of the training text?",
                100 * self.last.unknown_share,
                type(self.tokenizer).__name__,
            )
        return vectors[0] if isinstance(sentences, str) else vectors

    def encode_block(
        self,
        texts: Sequence[str],
        batch_size: int = 32,
        pooling: str | None = None,
        normalize: bool = False,
        on_batch: Callable[[int], object] | None = None,
    ) -> Floats:
        """``encode`` for callers that read and report ``last`` themselves: (N, D) always, no bar, no warning."""
        vectors, self.last = encode_texts(
            self.model,
            self.dictionary,
            self.tokenizer,
            texts,
            pooling=pooling or self.pooling,
            batch_size=batch_size,
            normalize=normalize,
            max_length=self.max_length,
            on_batch=on_batch,
        )
        return vectors

    @property
    def dimension(self) -> int:
        """Length D of the vectors."""
        return int(self.model.args.encoder_embed_dim)

    @property
    def truncated(self) -> int:
        """How many texts of the last call were cut."""
        return self.last.truncated

    @property
    def padding_share(self) -> float:
        """Which share of what the last call computed was padding."""
        return self.last.padding_share

    def describe(self) -> dict[str, Any]:
        """What a report should name: checkpoint, vocabulary, pooling, sizes, device and versions; fit for JSON."""
        return {
            **self._origin,
            "pooling": self.pooling,
            "dimension": self.dimension,
            "layers": int(self.model.args.encoder_layers),
            "max_length": self.max_length,
            "device": str(next(self.model.parameters()).device),
            "versions": {**versions(), "fairseq_clear": __version__},
        }


def _device(name: str | torch.device | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device {name}: no such device; give cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {name}: there are {torch.cuda.device_count()} CUDA devices here; give cpu or another")
    return device
