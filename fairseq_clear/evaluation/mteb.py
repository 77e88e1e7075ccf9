"""mteb, the library of the MTEB benchmarks: a SentenceEncoder as its model, and its tasks made from local files.

The tasks (STS, retrieval and clustering) need no network. Their arguments ``name`` (default: the name of the file without its
suffix, or of the folder) and ``language`` (a language and a script) are those of mteb. Importing this module does not import
mteb.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_clear import SentenceEncoder  # imports fairseq without its debug logs, so it comes first
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import SENTENCE_ENCODER
from fairseq_clear.evaluation.retrieval_data import RetrievalData, read_beir
from fairseq_clear.evaluation.sts_data import read_sts_file
from fairseq_clear.files import CorpusFile, hash_file, read_whole_lines, record_texts
from fairseq_clear.libraries import import_library
from fairseq_clear.models.encoding import Floats

if TYPE_CHECKING:
    import torch
    from mteb.abstasks.abstask import AbsTask
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models.model_meta import ModelMeta
    from mteb.types import PromptType

__all__ = ["MtebEncoder", "clustering_task", "local_tasks", "retrieval_task", "sts_task"]

ORGANIZATION = "fairseq_clear"
EMBEDDINGS = ("embed_tokens.weight", "embed_positions.weight")
ENGLISH = "eng-Latn"
SUFFIX = re.compile(r"\.(tsv|csv|txt|jsonl)(\.gz|\.xz)?$")
import_mteb = partial(import_library, extra="mteb")


class MtebEncoder:
    """Encodes texts for mteb; it has the methods of mteb's ``EncoderProtocol``.

    >>> model = MtebEncoder.from_pretrained("checkpoint_best.pt", "data-bin")
    >>> mteb.evaluate(model, mteb.get_benchmark("MTEB(eng, v2)"), encode_kwargs={"batch_size": 64})

    Vectors are compared by their cosine.

    Args:
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
            hf_split, hf_subset: not used.
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
        sizes = {
            name.removeprefix(SENTENCE_ENCODER): weight.numel()
            for name, weight in self.encoder.model.named_parameters()
            if name.startswith(SENTENCE_ENCODER)
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


def local_tasks(folder: str | Path, *, language: str = ENGLISH) -> "list[AbsTask]":
    """Make a task from each file and folder of a known format, sorted by name.

    ``NAME.tsv`` is an STS task, ``NAME.jsonl`` (also .gz, .xz) a clustering task, and a folder with ``corpus.jsonl`` a
    retrieval task of its test split. Other files and folders are ignored.

    Raises:
        UserError: mteb is not installed, a file is malformed, or there is no task.
    """
    tasks = []
    for path in sorted(Path(folder).glob("*")):
        if path.suffix == ".tsv":
            tasks.append(sts_task(path, language=language))
        elif path.is_file() and CorpusFile(path).is_jsonl:
            tasks.append(clustering_task(path, language=language))
        elif any(path.glob("corpus.jsonl*")):
            tasks.append(retrieval_task(path, language=language))
    if not tasks:
        raise UserError(f"{folder}: holds no task; give a folder with NAME.tsv, NAME.jsonl or folders in BEIR's layout")
    return tasks


def sts_task(path: str | Path, *, name: str | None = None, language: str = ENGLISH) -> "AbsTask":
    """Make an STS task from a file of pairs in one of the formats of ``sts_data.read_sts_file``.

    Its main score is the Spearman correlation of the cosine with the scores.

    Raises:
        UserError: mteb is not installed, or the file is malformed.
    """
    path = Path(path)
    (pairs,) = read_sts_file(path).subsets.values()
    columns = {"sentence1": list(pairs.first), "sentence2": list(pairs.second), "score": pairs.scores.tolist()}
    metadata = _metadata(name or SUFFIX.sub("", path.name), "STS", path, hash_file(path), "cosine_spearman", language)
    return _make("AbsTaskSTS", metadata, lambda: {"test": _dataset(columns)})


def clustering_task(
    path: str | Path,
    *,
    text_field: str = "text",
    label_field: str = "label",
    name: str | None = None,
    language: str = ENGLISH,
) -> "AbsTask":
    """Make a clustering task from a ``.jsonl`` file, also ``.gz`` and ``.xz``.

    As in mteb, ten samples of 16,384 texts, drawn with replacement, are clustered by mini-batch k-means, with as many clusters
    as there are labels. The main score is the mean of their V-measures. All texts are embedded.

    Args:
        path: of the file; a line is a record with a text and a label, which is a string.
        text_field: name of the field of the text.
        label_field: name of the field of the label.

    Raises:
        UserError: mteb is not installed, the file is malformed, or it has fewer than two labels.
    """
    path = Path(path)
    hint, fields = "name the fields with text_field and label_field", (text_field, label_field)
    records = [
        record_texts(line, fields, path, number, hint=hint) for number, line in read_whole_lines(path) if line.strip()
    ]
    columns = {"sentences": [record[0] for record in records], "labels": [record[1] for record in records]}
    if len(set(columns["labels"])) < 2:
        raise UserError(f"{path}: has {len(set(columns['labels']))} different labels; clustering needs two or more")
    metadata = _metadata(name or SUFFIX.sub("", path.name), "Clustering", path, hash_file(path), "v_measure", language)
    return _make(
        "AbsTaskClustering", metadata, lambda: {"test": _dataset(columns)}, max_fraction_of_documents_to_embed=None
    )


def retrieval_task(
    folder: str | Path, *, split: str = "test", name: str | None = None, language: str = ENGLISH
) -> "AbsTask":
    """Make a retrieval task from a folder in BEIR's layout, see ``retrieval_data.read_beir``.

    Its main score is nDCG@10. As in BEIR, a passage with the query's own id is not counted as found.

    Args:
        folder: with corpus.jsonl, queries.jsonl (also .gz, .xz) and qrels/SPLIT.tsv.
        split: name of the qrels.

    Raises:
        UserError: mteb is not installed, or a file is missing or malformed.
    """
    folder = Path(folder)
    data = read_beir(folder, split)
    revision = "-".join(digest[:16] for digest in data.hashes.values())
    metadata = _metadata(name or folder.name, "Retrieval", folder, revision, "ndcg_at_10", language)
    return _make(
        "AbsTaskRetrieval", metadata, lambda: {"default": {"test": _retrieval_split(data)}}, ignore_identical_ids=True
    )


def _retrieval_split(data: RetrievalData) -> dict[str, Any]:
    """The data in mteb's form. Ids are made from the numbers; a query with the id of a passage keeps the passage's id."""
    own = data.identical or [-1] * len(data.queries)
    ids = [f"passage{same}" if same >= 0 else f"query{number}" for number, same in enumerate(own)]
    # mteb leaves out a query without judgements, but not one whose judgements are 0
    judged = [{f"passage{n}": gain for n, gain in gains.items()} or {"passage0": 0} for gains in data.relevant]
    return {
        "queries": _dataset({"id": ids, "text": list(data.queries)}),
        "corpus": _dataset({"id": [f"passage{n}" for n in range(len(data.passages))], "text": list(data.passages)}),
        "relevant_docs": dict(zip(ids, judged, strict=True)),
        "top_ranked": None,
    }


def _dataset(columns: dict[str, list[Any]]) -> Any:
    return import_mteb("datasets").Dataset.from_dict(columns)


def _metadata(name: str, kind: str, path: Path, revision: str, main_score: str, language: str) -> Any:
    return import_mteb("mteb.abstasks.task_metadata").TaskMetadata(
        name=name,
        description=f"{kind} of the local data {path.name}.",
        type=kind,
        category="t2c" if kind == "Clustering" else "t2t",
        dataset={"path": path.name, "revision": revision},
        eval_splits=["test"],
        eval_langs=[language],
        main_score=main_score,
    )


def _make(base: str, metadata: Any, load: Callable[[], Any], **attributes: Any) -> "AbsTask":
    """Make a task of a new class, because mteb reads the metadata of classes."""

    def load_data(self: Any, num_proc: int | None = None, **kwargs: Any) -> None:
        if not self.data_loaded:
            self.dataset, self.data_loaded = load(), True

    kind = getattr(import_mteb("mteb.abstasks"), base)
    task: AbsTask = type(f"Local{base}", (kind,), {"metadata": metadata, "load_data": load_data, **attributes})()
    return task
