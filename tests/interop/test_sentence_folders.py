"""A sentence-transformers folder that is imported and exported again is the encoder that came in."""

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.interop.exporting import export
from fairseq_clear.interop.importing import import_hf
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.sentence_folders import SentenceSettings, write_modules
from tests.interop.folders import NEEDS_ST, make_folder, make_sentence_folder, read_sentence_transformer

pytestmark = [pytest.mark.slow, NEEDS_ST]

FORM = "sentence-transformers"
TEXTS = [
    *("bada kefe linu", "A man plays, isn't he?", "Caf\u00e9 na K\u00f6nigstra\u00dfe"),
    *(" ".join(f"word {n} of a long text," for n in range(times)) for times in (4, 5, 6, 50, 120)),
]


def start(folder: Path, kind: str) -> Path:
    """An encoder to begin with."""
    if kind == "plain":  # without modules.json, sentence-transformers reads the tokenizer's limit and takes the mean
        config = make_folder(folder, "bert") / "tokenizer_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "model_max_length": 20}))
        return folder
    return make_sentence_folder(folder, kind)


def round_trip(source: Path, parent: Path) -> tuple[Path, Path]:
    """Import the folder, export the checkpoint; return both new folders."""
    import_hf(source, parent / "ours")
    export(parent / "ours/model.pt", parent / "ours", parent / "out", FORM, load_tokenizer(parent / "ours"))
    return parent / "ours", parent / "out"


def test_a_prompt_of_a_corpus_is_that_of_documents(tmp_path: Path) -> None:
    prompts = {"query": "q: ", "corpus": "p: ", "document": ""}  # sentence-transformers adds the empty one
    write_modules(tmp_path, "mean", 8, 32, SentenceSettings(config={"prompts": prompts}))
    written = json.loads((tmp_path / "config_sentence_transformers.json").read_text())["prompts"]
    assert written == {**prompts, "document": "p: "}


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "plain"])
def test_what_comes_in_goes_out(tmp_path: Path, kind: str) -> None:
    source = start(tmp_path / "start", kind)
    ours, out = round_trip(source, tmp_path)
    before, after = read_sentence_transformer(source), read_sentence_transformer(out)
    assert after.max_seq_length == before.max_seq_length
    assert [type(module) for module in after] == [type(module) for module in before]
    assert (after.prompts, after.default_prompt_name) == (before.prompts, before.default_prompt_name)
    assert after.similarity_fn_name == before.similarity_fn_name
    np.testing.assert_allclose(after.encode(TEXTS), before.encode(TEXTS), atol=1e-6)
    if prompt := before.prompts.get("query"):  # include_prompt False: the prompt is read but not pooled
        found, expected = (model.encode(TEXTS, prompt_name="query") for model in (after, before))
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert np.abs(before.encode(TEXTS, prompt=prompt) - before.encode(TEXTS, prompt="")).max() > 0.01
    encoder = SentenceEncoder.from_pretrained(ours / "model.pt", ours, device="cpu")
    np.testing.assert_allclose(encoder.encode(TEXTS), before.encode(TEXTS), atol=1e-6)
    assert encoder.last.truncated > 0
    encoder.max_length += 10  # the control: the limit counts
    assert np.abs(encoder.encode(TEXTS) - before.encode(TEXTS)).max() > 1e-3


def test_the_control_without_normalize(tmp_path: Path) -> None:
    """A folder without the module gives vectors of other lengths than 1, in both directions."""
    source = make_sentence_folder(tmp_path / "start", "bert", pooling="max")
    modules = json.loads((source / "modules.json").read_text())
    (source / "modules.json").write_text(json.dumps(modules[:2]))
    ours, out = round_trip(source, tmp_path)
    before = read_sentence_transformer(source).encode(TEXTS)
    assert np.abs(np.linalg.norm(before, axis=1) - 1).min() > 0.1
    np.testing.assert_allclose(read_sentence_transformer(out).encode(TEXTS), before, atol=1e-5)
    vectors = SentenceEncoder.from_pretrained(ours / "model.pt", ours, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors, before, atol=1e-5)


def test_lower_casing_that_the_tokenizer_lacks(tmp_path: Path) -> None:
    lower, cased = (make_sentence_folder(tmp_path / kind, kind) for kind in ("bert", "roberta"))
    for source in (lower, cased):
        (source / "sentence_bert_config.json").write_text('{"max_seq_length": 20, "do_lower_case": true}')
    import_hf(lower, tmp_path / "ours")
    with pytest.raises(UserError, match="do_lower_case is true, but its tokenizer keeps capital letters"):
        import_hf(cased, tmp_path / "cased")
    text, data = tmp_path / "text.txt", tmp_path / "bin"
    text.write_text("bada kefe linu\n\n" * 50)
    for source, status in ((cased, 2), (lower, 0)):
        assert main(["prepare", str(text), "--dest", str(data), "--tokenizer-dir", str(source)]) == status
        assert data.exists() == (source is lower)
    assert not (tmp_path / "cased").exists()


@pytest.mark.parametrize("dimension", [None, 7])
def test_truncated_vectors_are_not_normalized_before(tmp_path: Path, dimension: int | None) -> None:
    """With --dimension the export has no Normalize: the first dimensions of a scaled vector do not have length 1."""
    if dimension and int(version("sentence-transformers").partition(".")[0]) < 6:
        pytest.skip("before version 6, truncate_dim is not read from a folder")
    import_hf(make_sentence_folder(tmp_path / "start", "bert"), tmp_path / "ours")
    checkpoint, tokenizer = tmp_path / "ours/model.pt", load_tokenizer(tmp_path / "ours")
    export(checkpoint, tmp_path / "ours", tmp_path / "out", FORM, tokenizer, dimension=dimension)
    names = [type(module).__name__ for module in read_sentence_transformer(tmp_path / "out")]
    assert ("Normalize" in names) == (dimension is None)
    config = json.loads((tmp_path / "out/config_sentence_transformers.json").read_text())
    assert config.get("truncate_dim") == dimension and config["similarity_fn_name"] == "euclidean"
    notes = import_hf(tmp_path / "out", tmp_path / "again")
    assert any("give embed and evaluations --dimension 7" in note for note in notes) == (dimension is not None)
    export(tmp_path / "again/model.pt", tmp_path / "again", tmp_path / "back", FORM, tokenizer)
    assert read_sentence_transformer(tmp_path / "back").truncate_dim == dimension


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sentence_folder(tmp_path_factory.mktemp("whole") / "start", "bert")


FILES = (
    *("config.json", "modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"),
    *("sentence_bert_config.json", "tokenizer_config.json"),
)


@pytest.mark.parametrize("name", FILES)
def test_files_that_hold_something_else_are_one_error(name: str, whole: Path, tmp_path: Path) -> None:
    for content in ("3", "[1]", "{", "null"):
        start = shutil.copytree(whole, tmp_path / "start", dirs_exist_ok=True)
        (start / name).write_text(content)
        with pytest.raises(UserError, match=Path(name).name):
            import_hf(start, tmp_path / "encoder")
        assert not (tmp_path / "encoder").exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}, "is a CrossEncoder"),
        ("config_sentence_transformers.json", {"prompts": {"query": "[SEP] "}}, "its prompt query has a special token"),
        ("modules.json", [{"type": "mine.Transformer", "path": ""}], "has a module mine.Transformer"),
    ],
)
def test_what_would_give_other_vectors_is_rejected(name, content, said, whole: Path, tmp_path: Path) -> None:
    start = shutil.copytree(whole, tmp_path / "start")
    (start / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match=said):
        import_hf(start, tmp_path / "encoder", arch="clear_hf")


def test_a_limit_above_the_positions_is_said(tmp_path: Path) -> None:
    notes = import_hf(
        make_sentence_folder(tmp_path / "start", "bert", length=60), tmp_path / "encoder", arch="clear_hf"
    )
    assert "max_seq_length 60: texts are cut to 40 tokens, as config.json says" in notes


@pytest.mark.parametrize("content", [{"prompts": ["a"]}, {"prompts": {"a": "b"}, "default_prompt_name": "query"}])
def test_prompts_without_names_or_without_the_default(content: dict[str, object], whole: Path, tmp_path: Path) -> None:
    start = shutil.copytree(whole, tmp_path / "start")
    (start / "config_sentence_transformers.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"config_sentence_transformers.json: prompts are not names and texts, or lack"):
        import_hf(start, tmp_path / "encoder")
