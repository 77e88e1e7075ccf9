"""A SentenceEncoder as a model of mteb, the library of the MTEB benchmarks. ``mteb_tasks`` makes tasks of local files.

Importing this module does not import mteb.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import SENTENCE_ENCODER
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.files import hash_file
from fairseq_clear.libraries import import_library
from fairseq_clear.models.encoding import Floats

if TYPE_CHECKING:
    import torch
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models.model_meta import ModelMeta
    from mteb.types import PromptType

__all__ = ["MtebEncoder", "import_mteb"]

ORGANIZATION = "fairseq_clear"
EMBEDDINGS = ("embed_tokens.weight", "embed_positions.weight")
import_mteb = partial(import_library, extra="mteb")


class MtebEncoder:
    """Encodes texts for mteb; it has the methods of mteb's ``EncoderProtocol``.

    >>> model = MtebEncoder.from_pretrained("checkpoint_best.pt", "data-bin")
    >>> mteb.evaluate(model, mteb.get_benchmark("MTEB(eng, v2)"), encode_kwargs={"batch_size": 64})

    Vectors are compared by their cosine.

    Args:
        encoder: encodes the texts.
        name: of the model in results, ``organization/model``.
        revision: of the model in results; mteb computes cached results again if it changes.
        query_prefix: is put before each query of a retrieval task.
        passage_prefix: is put before each passage of a retrieval task.
        prompts: name or type of a task -> text that is put before its texts, such as ``{"STS": "query: "}``. ``NAME-query`` and
            ``NAME-document`` are those of one side. The most specific one is used, as in mteb.
        variant: settings that influence the vectors, other than the checkpoint; mteb stores the results of each separately.

    Raises:
        UserError: mteb is not installed, or ``name`` has no organization.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        *,
        name: str,
        revision: str | None = None,
        query_prefix: str = "",
        passage_prefix: str = "",
        prompts: Mapping[str, str] | None = None,
        variant: Mapping[str, Any] | None = None,
    ) -> None:
        import_mteb("mteb")
        if name.count("/") != 1:
            raise UserError(f"name {name!r}: mteb needs organization/model, such as {ORGANIZATION}/{Path(name).name}")
        self.encoder, self.name, self.revision = encoder, name, revision
        sides = {"query": query_prefix, "document": passage_prefix}
        self.prompts = {**{side: text for side, text in sides.items() if text}, **(prompts or {})}
        self.variant = {**(variant or {}), **({"prompts": self.prompts} if self.prompts else {})}

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str | Path,
        data_bin: str | Path,
        *,
        name: str | None = None,
        query_prefix: str = "",
        passage_prefix: str = "",
        prompts: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> "MtebEncoder":
        """Load a checkpoint; its SHA-256 is the revision.

        Args:
            checkpoint, data_bin: as for ``SentenceEncoder.from_pretrained``.
            name: default: ``fairseq_clear/`` and the name of the checkpoint's folder.
            query_prefix, passage_prefix, prompts: see the class.
            settings: pooling, dimension and other arguments of ``SentenceEncoder.from_pretrained``.

        Raises:
            UserError: mteb is not installed, or the checkpoint cannot be loaded.
        """
        import_mteb("mteb")
        changing = {key: settings[key] for key in ("pooling", "dimension", "flow") if settings.get(key) is not None}
        return cls(
            SentenceEncoder.from_pretrained(checkpoint, data_bin, **settings),
            name=name or f"{ORGANIZATION}/{Path(checkpoint).resolve().parent.name}",
            revision=hash_file(checkpoint),
            query_prefix=query_prefix,
            passage_prefix=passage_prefix,
            prompts=prompts,
            variant=changing,
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: "TaskMetadata",
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: "PromptType | None" = None,
        **kwargs: Any,
    ) -> Floats:
        """Encode the texts of all batches, in their order: (N, D) float32.

        Args:
            inputs: batches of mteb's data loader, each with N texts under ``text``.
            task_metadata: name and type of the task choose the prompt.
            hf_split: not used.
            hf_subset: not used.
            prompt_type: query, document or None.
            kwargs: ``batch_size`` and ``show_progress_bar`` of ``mteb.evaluate(..., encode_kwargs=...)``; others are ignored.
        """
        prompt = self.prompt(task_metadata, prompt_type)
        texts = [prompt + text for batch in inputs for text in batch["text"]]
        return self.encoder.encode(
            texts, kwargs.get("batch_size", 32), show_progress_bar=kwargs.get("show_progress_bar", False)
        )

    def prompt(self, task_metadata: "TaskMetadata", prompt_type: "PromptType | None") -> str:
        """The text that is put before each text of a task; empty without prompts."""
        if not self.prompts:
            return ""
        choose = import_mteb("mteb.models.abs_encoder").get_prompt_name
        return self.prompts.get(choose(self.prompts, task_metadata, prompt_type), "")

    def similarity(self, embeddings1: Any, embeddings2: Any) -> "torch.Tensor":
        """Cosines (N, M) of vectors (N, D) and (M, D)."""
        return import_mteb("mteb.similarity_functions").cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> "torch.Tensor":
        """Cosines (N,) of vectors (N, D) and (N, D)."""
        return import_mteb("mteb.similarity_functions").pairwise_cos_sim(embeddings1, embeddings2)

    @property
    def mteb_model_meta(self) -> "ModelMeta":
        """Description of the model in mteb's results. Parameters are those of the encoder, without heads."""
        weights = dict(self.encoder.model.named_parameters())
        sizes = {
            key.removeprefix(SENTENCE_ENCODER): one.numel()
            for key, one in weights.items()
            if key.startswith(SENTENCE_ENCODER)
        }
        count = sum(sizes.values())
        return import_mteb("mteb.models.model_meta").ModelMeta(
            loader=None,
            name=self.name,
            revision=self.revision,
            release_date=None,
            languages=None,
            n_parameters=count,
            n_embedding_parameters=sum(sizes.get(key, 0) for key in EMBEDDINGS),
            memory_usage_mb=4 * count / 2**20,  # float32
            max_tokens=self.encoder.max_length,
            embed_dim=self.encoder.dimension,
            license=None,
            open_weights=None,
            public_training_code=None,
            public_training_data=None,
            framework=["PyTorch"],
            similarity_fn_name="cosine",
            use_instructions=bool(self.prompts),
            training_datasets=None,
            experiment_kwargs=self.variant or None,
        )
