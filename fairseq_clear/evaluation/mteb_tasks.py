"""Tasks of mteb made from local files, which need no network: STS, retrieval and clustering.

The arguments ``name`` (default: the name of the file without its suffix, or of the folder) and ``language`` (a language and a
script as in mteb) are those of the task. Importing this module does not import mteb.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.mteb import import_mteb
from fairseq_clear.evaluation.retrieval_data import RetrievalData, read_beir
from fairseq_clear.evaluation.sts_data import read_sts_file
from fairseq_clear.files import CorpusFile, hash_file, read_whole_lines, record_texts

if TYPE_CHECKING:
    from mteb.abstasks.abstask import AbsTask

__all__ = ["clustering_task", "local_tasks", "retrieval_task", "sts_task"]

ENGLISH = "eng-Latn"
SUFFIX = re.compile(r"\.(tsv|csv|txt|jsonl)(\.gz|\.xz)?$")


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
