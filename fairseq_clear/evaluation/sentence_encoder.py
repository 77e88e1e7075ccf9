"""SentenceEncoder: encodes sentences as vectors with a checkpoint, its vocabulary and its tokenizer."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from fairseq_clear.distributed import choose_device
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import load_model
from fairseq_clear.evaluation.postprocessing import Flow, first_dimensions, load_flow
from fairseq_clear.files import versions
from fairseq_clear.models.encoding import (
    EncodingCounts,
    Floats,
    encode_texts,
    prompts_of,
    sentence_settings,
    text_length,
)
from fairseq_clear.models.text_model import TextModel
from fairseq_clear.modules.pooling import parse_pooling
from fairseq_clear.text.data_folders import data_folders, load_tokenizer
from fairseq_clear.text.sentence_folders import DOCUMENT, QUERY, prompt_for
from fairseq_clear.text.tokenizers import Tokenizer

logger = logging.getLogger(__name__)

# A larger share of unknown tokens means that the training text had another tokenizer.
MANY_UNKNOWN = 0.5


class SentenceEncoder:
    """Encodes texts as vectors, with the interface of sentence-transformers.

    >>> encoder = SentenceEncoder.from_pretrained("checkpoints/checkpoint_best.pt", "data-bin")
    >>> vectors = encoder.encode(["A film.", "A movie."], normalize=True)  # (2, D) float32

    Args:
        model, dictionary: the model, which is not changed, and its vocabulary.
        tokenizer: splits text into symbols of the dictionary.
        pooling: name of a pooling (default: the model's).
        dimension: keep only the first dimensions of each vector, scaled to length 1, for a model that was trained with
            ``--matryoshka`` (default: all, not scaled).
        flow: maps each vector, see ``postprocessing`` (default: vectors stay as they are).
        origin: facts about the model's origin, for ``describe``.

    Attributes:
        last: counts of the last call of ``encode``.
        max_length: maximum number of tokens of a text, including ``<s>`` and ``</s>``; longer texts are cut. Defaults to the
            limit of the sentence-transformers folder that was imported, or to the model's number of positions.
        prompts: prompt by name, of the sentence-transformers folder that was imported: texts that are put before a query, a
            passage, and so on.
        default_prompt_name: name of the prompt that is put before every text unless a call names another; None for no prompt.
        normalized: vectors are always scaled to length 1. Defaults to whether that folder does so.
    """

    def __init__(
        self,
        model: TextModel,
        dictionary: Any,
        tokenizer: Tokenizer,
        *,
        pooling: str | None = None,
        dimension: int | None = None,
        flow: Flow | None = None,
        origin: dict[str, Any] | None = None,
    ) -> None:
        self.pooling = pooling or str(model.args.pooling)
        parse_pooling(self.pooling, model.args.encoder_layers, flag="pooling")
        self.model, self.dictionary, self.tokenizer = model, dictionary, tokenizer
        self.max_length, self.normalized = text_length(model), bool(sentence_settings(model).get("normalized"))
        self.prompts = prompts_of(model)
        self.default_prompt_name = sentence_settings(model).get("config", {}).get("default_prompt_name")
        width = int(model.args.encoder_embed_dim)
        if dimension is not None and not 1 <= dimension <= width:
            raise UserError(f"--dimension {dimension}: the vectors have {width} dimensions; give 1 to {width}")
        if dimension is not None and flow is not None:
            raise UserError(
                f"{flow.name} and --dimension {dimension}: a flow maps whole vectors; leave one of them out"
            )
        self._kept, self.flow = dimension, flow
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
        dimension: int | None = None,
        flow: str | Path | None = None,
        device: str | torch.device | None = None,
    ) -> "SentenceEncoder":
        """Load a checkpoint. The model is in float32, whatever the precision of its training.

        Args:
            checkpoint: of ``clear_roberta`` or ``clear_hf``, trained with any criterion, or of fairseq's own ``roberta``.
            data_bin: folder with the ``dict.txt`` of the training run, usually its data folder. Paths that the checkpoint
                stores are not used.
            tokenizer: required if ``data_bin`` comes from plain fairseq-preprocess, which does not record a tokenizer:
                ``SentencePieceTokenizer(model)``, ``Gpt2Tokenizer(encoder_json, vocab_bpe)`` or ``WhitespaceTokenizer()``
                of ``fairseq_clear.text.tokenizers``.
            pooling: cls, mean, max, first-last, last2, wk (SBERT-WK) or layer:N (default: the checkpoint's pooling; mean for
                stock roberta checkpoints, which have none).
            dimension, flow: as for the class; the flow is a file of ``fairseq-clear flow``.
            device: such as ``cpu`` or ``cuda`` (default: cuda where available).

        Raises:
            UserError: a missing or damaged checkpoint or flow, another architecture or vocabulary, a missing tokenizer, or an
                unknown pooling, dimension or device.
        """
        where = choose_device(device)
        mapped = None if flow is None else load_flow(flow)
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
        model, known = loaded.model.to(where), loaded.dictionary
        return cls(model, known, tokenizer, pooling=pooling, dimension=dimension, flow=mapped, origin=origin)

    def encode(
        self,
        sentences: str | Sequence[str],
        batch_size: int = 32,
        pooling: str | None = None,
        normalize: bool = False,
        show_progress_bar: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> Floats:
        """Encode texts as vectors, in their order; see ``models.encoding.encode_texts`` for the batching.

        Args:
            sentences: one text or several; an empty text is encoded as ``<s> </s>``.
            batch_size: texts per batch of the longest texts; batches of shorter texts have more. It changes
                speed and memory, not the vectors.
            pooling: name of a pooling for this call.
            normalize: scale vectors to length 1, which ``normalized`` does anyway.
            show_progress_bar: show a progress bar on stderr.
            prompt_name: name of one of ``prompts`` (default: ``default_prompt_name``).
            prompt: text that is put before each text instead; an empty one for none.

        Returns:
            (N, D) float32; (D,) for a single str.
        """
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        with tqdm(total=len(texts), unit="sentence", disable=not show_progress_bar) as bar:
            chosen = self.find_prompt(prompt_name, prompt)
            vectors = self.encode_block(texts, batch_size, pooling, normalize, on_batch=bar.update, prompt=chosen)
        if cut := self.last.truncated:
            logger.warning("%d of %d texts are longer than %d tokens and were cut", cut, len(texts), self.max_length)
        if self.last.unknown_share > MANY_UNKNOWN:
            logger.warning(
                "%.0f %% of the tokens are not in the vocabulary: is %s the tokenizer of the training text?",
                100 * self.last.unknown_share,
                type(self.tokenizer).__name__,
            )
        return vectors[0] if isinstance(sentences, str) else vectors

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Floats:
        """As ``encode``, with the prompt of queries if the encoder has one."""
        return self._encode_as(QUERY, sentences, options)

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Floats:
        """As ``encode``, with the prompt of passages if the encoder has one."""
        return self._encode_as(DOCUMENT, sentences, options)

    def _encode_as(self, names: Sequence[str], sentences: str | Sequence[str], options: dict[str, Any]) -> Floats:
        if not {"prompt", "prompt_name"} & options.keys():
            options["prompt"] = prompt_for(self, names)
        return self.encode(sentences, **options)

    def find_prompt(self, name: str | None = None, prompt: str | None = None) -> str:
        """Return ``prompt``, or else the prompt of this name, or else the default one; UserError for an unknown name."""
        name = name or self.default_prompt_name
        if prompt is not None or not name:
            return prompt or ""
        if name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise UserError(f"prompt {name}: the encoder has no such prompt; it has {known}")
        return self.prompts[name]

    def encode_block(
        self,
        texts: Sequence[str],
        batch_size: int = 32,
        pooling: str | None = None,
        normalize: bool = False,
        on_batch: Callable[[int], object] | None = None,
        prompt: str = "",
    ) -> Floats:
        """As ``encode``, but always (N, D), without progress bar and warnings; the caller reads ``last`` instead.

        Raises:
            UserError: the flow was fitted on vectors of another encoder or pooling.
        """
        if self.flow is not None:
            self.flow.check_encoder({**self._origin, "dimension": self.dimension, "pooling": pooling or self.pooling})
        vectors, self.last = encode_texts(
            self.model,
            self.dictionary,
            self.tokenizer,
            texts,
            pooling=pooling or self.pooling,
            batch_size=batch_size,
            normalize=self.normalized or (normalize and self.flow is None),
            max_length=self.max_length,
            prompt=prompt,
            on_batch=on_batch,
        )
        if self.flow is not None:
            vectors = self.flow.transform(vectors)
            is_scaled = normalize or self.normalized
            return first_dimensions(vectors, self.dimension, "the encoder") if is_scaled else vectors
        return vectors if self._kept is None else first_dimensions(vectors, self._kept, "the encoder")

    @property
    def dimension(self) -> int:
        """Dimension D of the vectors."""
        return self._kept or int(self.model.args.encoder_embed_dim)

    def describe(self) -> dict[str, Any]:
        """Describe the encoder for a report, as JSON values: checkpoint, vocabulary, pooling, sizes, device and versions."""
        return {
            **self._origin,
            "pooling": self.pooling,
            "dimension": self.dimension,
            **({"flow": self.flow.origin} if self.flow is not None else {}),
            **({"normalized": True} if self.normalized else {}),
            "layers": int(self.model.args.encoder_layers),
            "max_length": self.max_length,
            "device": str(next(self.model.parameters()).device),
            "versions": versions(),
        }
