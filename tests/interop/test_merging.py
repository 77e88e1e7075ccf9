"""``merge``: the mean of two encoders' weights, in the folder of the first; anything else is one error line."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairseq_clear.cli.main import main
from fairseq_clear.interop.merging import merge_checkpoints, merge_folders, merge_weights
from fairseq_clear.models.hf_source import read_source
from fairseq_clear.models.state_dicts import VOCABULARY_ROWS
from fairseq_clear.text.sentence_folders import SentenceSettings, write_modules
from tests.conftest import rejected
from tests.interop.folders import CORPUS, make_folder, make_sentence_folder, read_sentence_transformer

SENTENCES = [*CORPUS[-3:], "word " * 60]


def merge(start: Path, refined: Path, dest: Path, *flags: str) -> int:
    return main(["merge", str(start), str(refined), "--dest", str(dest), *flags])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A sentence-transformers folder, and another encoder of its architecture, whose names begin with the base model."""
    made = tmp_path_factory.mktemp("merge")
    start = make_sentence_folder(made / "start", "bert", head=False, seed=1)
    refined = make_folder(made / "refined", "bert", head=True, seed=2, hidden_dropout_prob=0.3)
    shutil.copyfile(start / "tokenizer.json", refined / "tokenizer.json")  # their training is not deterministic
    return start, refined


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_weights_are_the_mean_and_all_else_is_the_start(alpha, folders, tmp_path) -> None:
    start, refined = folders
    assert merge(start, refined, tmp_path / "d", "--alpha", str(alpha)) == 0
    before, after, found = (load_file(folder / "model.safetensors") for folder in (start, refined, tmp_path / "d"))
    assert found.keys() == before.keys()
    for name, tensor in found.items():
        theirs = before[name] if "pooler" in name else after[f"bert.{name}"]
        torch.testing.assert_close(tensor, (1 - alpha) * before[name] + alpha * theirs, atol=1e-6, rtol=1e-6)
    files = {path.name for path in start.iterdir()} | {"merge.json"}
    assert {path.name for path in (tmp_path / "d").iterdir()} == files
    for name in ("modules.json", "tokenizer.json", "1_Pooling/config.json", "config_sentence_transformers.json"):
        assert (tmp_path / "d" / name).read_bytes() == (start / name).read_bytes()


def test_the_result_loads_as_the_start_does(folders: tuple[Path, Path], tmp_path: Path) -> None:
    start, refined = folders
    half = make_half(start, tmp_path / "half")
    assert merge(half, refined, tmp_path / "d", "--alpha", "0") == 0
    made, untouched = (read_sentence_transformer(folder) for folder in (tmp_path / "d", start))
    assert made[0].auto_model.dtype == torch.float32 and made.max_seq_length == untouched.max_seq_length
    assert abs(made.encode(SENTENCES) - untouched.encode(SENTENCES)).max() < 2e-3  # half precision was read
    assert merge(start, refined, tmp_path / "e", "--alpha", "0") == 0
    assert (read_sentence_transformer(tmp_path / "e").encode(SENTENCES) == untouched.encode(SENTENCES)).all()


def make_half(start: Path, folder: Path) -> Path:
    """The folder in half precision, as a pickle."""
    shutil.copytree(start, folder)
    weights = load_file(folder / "model.safetensors")
    torch.save(
        {name: one.half() if one.is_floating_point() else one for name, one in weights.items()},
        folder / "pytorch_model.bin",
    )
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float16"}))
    return folder


def other_words(folder: Path) -> Path:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def with_nan(folder: Path) -> Path:
    weights = load_file(folder / "model.safetensors")
    next(weight for weight in weights.values() if weight.is_floating_point()).view(-1)[0] = math.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


MISTAKES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "layers": (
        lambda made: make_folder(made, "bert", num_hidden_layers=2),
        "another architecture: num_hidden_layers is 3 in",
    ),
    "family": (lambda made: make_folder(made, "roberta"), "another architecture"),
    "words": (lambda made: other_words(make_folder(made, "bert")), "has another vocabulary than"),
    "missing": (lambda made: made, "no such folder"),
    "NaN": (lambda made: with_nan(shutil.copytree(made.parent / "start", made)), "is NaN or infinite in one of them"),
    "no weights": (
        lambda made: shutil.copytree(made.parent / "start", made, ignore=lambda *_: ["model.safetensors"]),
        "other: transformers cannot load it",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_line(name, folders, tmp_path, capsys) -> None:
    make, said = MISTAKES[name]
    shutil.copytree(folders[0], tmp_path / "start")
    rejected(capsys, ["merge", tmp_path / "start", make(tmp_path / "other"), "--dest", tmp_path / "d"], said)
    assert not (tmp_path / "d").exists()


def with_pooling(folder: Path, pooling: str, *, normalized: bool) -> Path:
    config = json.loads((folder / "config.json").read_text())
    for part in ("1_Pooling", "2_Normalize"):
        shutil.rmtree(folder / part, ignore_errors=True)
    write_modules(folder, pooling, config["hidden_size"], 32, SentenceSettings(normalized=normalized))
    return folder


@pytest.mark.parametrize(("pooling", "normalized"), [("cls", True), ("mean", False), ("mean", True)])
def test_vectors_that_are_made_in_another_way(pooling, normalized, folders, tmp_path, capsys) -> None:
    start, other = (Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in folders)
    with_pooling(start, "mean", normalized=True)
    words = ["merge", start, with_pooling(other, pooling, normalized=normalized), "--dest", tmp_path / "d"]
    if (pooling, normalized) == ("mean", True):
        assert main([*map(str, words)]) == 0
    else:
        rejected(capsys, words, "its vectors are made in another way than those of")


def test_a_destination_inside_the_start(folders, tmp_path, capsys) -> None:
    shutil.copytree(folders[0], tmp_path / "start")
    rejected(
        capsys,
        ["merge", tmp_path / "start", folders[1], "--dest", tmp_path / "start/sub/d"],
        "is copied; give a folder outside",
    )
    assert not (tmp_path / "start/sub").exists()
    onto = ["merge", folders[1], tmp_path / "start", "--dest", tmp_path / "start", "--overwrite"]
    rejected(capsys, onto, "start: is in --dest")


def test_what_describes_the_start_is_left_out(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """The folder of refine has its checkpoint, with other weights than the result."""
    start, described = shutil.copytree(folders[0], tmp_path / "start"), ("report.json", "report.png", "README.md")
    (start / "checkpoint").mkdir()
    for name in ("fairseq_clear.json", "checkpoint/model.pt", *described):
        (start / name).write_text("{}")
    assert merge(start, folders[1], tmp_path / "d") == 0
    left = {path.name for path in start.iterdir()} - {path.name for path in (tmp_path / "d").iterdir()}
    assert left == {"fairseq_clear.json", "checkpoint", *described}


def test_a_head_for_another_task_is_an_error_and_not_lost(folders, tmp_path, capsys) -> None:
    start = shutil.copytree(folders[0], tmp_path / "start")
    weights = load_file(start / "model.safetensors")
    for name, status in (("cls.seq_relationship.weight", 0), ("classifier.weight", 2)):
        save_file({**weights, name: torch.ones(2, 24)}, start / "model.safetensors", {"format": "pt"})
        assert merge(start, folders[1], tmp_path / name) == status
    assert "start: holds more than an encoder (classifier.weight)" in capsys.readouterr().err


OLDER = {"of_another_version": True, "transformers_version": "4.0.0", "torch_dtype": "float16"}


def test_a_start_that_is_read_only_or_of_another_version(folders: tuple[Path, Path], tmp_path: Path) -> None:
    start = shutil.copytree(folders[0], tmp_path / "start")
    config = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps(config | OLDER))
    for path in start.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    start.chmod(0o555)
    assert merge(start, folders[1], start / "d") == 0  # as root, also within
    assert (start / "d" / "tokenizer.json").stat().st_mode & 0o200 and (start / "d").stat().st_mode & 0o200
    assert not list((start / "d").rglob("*.partial*"))
    made = json.loads((start / "d" / "config.json").read_text())
    own = {"architectures", "dtype", "torch_dtype"}
    rest = [{name: value for name, value in one.items() if name not in own} for one in (made, config | OLDER)]
    assert rest[0] == rest[1] and made["architectures"] == ["BertModel"]
    assert {made.get("dtype", "float32"), made.get("torch_dtype", "float32")} == {"float32"}


def test_a_checkpoint_of_another_run_keeps_its_own_parts(checkpoint: Path, tmp_path: Path) -> None:
    """The start is an import without the row of <del> and without the refined encoder's projection head."""
    state = torch.load(checkpoint, weights_only=True)
    start = {name: tensor + 1 for name, tensor in state["model"].items() if name.startswith("encoder.")}
    for name in VOCABULARY_ROWS:
        start[name] = start[name][:-1]
    torch.save({**state, "model": start}, tmp_path / "start.pt")
    merge_checkpoints(tmp_path / "start.pt", checkpoint, tmp_path / "merged.pt", 0.25)
    merged = torch.load(tmp_path / "merged.pt", weights_only=True)
    assert merged["model"].keys() == state["model"].keys() and merged["cfg"] == state["cfg"]
    for name, before in state["model"].items():
        wanted = before.clone()
        rows = slice(-1) if name in VOCABULARY_ROWS else slice(None)
        if name in start and wanted.dim():
            wanted[rows].add_(0.75)
        if wanted.dim() and wanted.is_floating_point():
            torch.testing.assert_close(merged["model"][name], wanted, atol=1e-6, rtol=1e-6)


def test_integers_are_those_of_the_start() -> None:
    merged = merge_weights({"count": torch.tensor([3])}, {"count": torch.tensor([6])}, 0.5)
    assert merged["count"].dtype == torch.int64 and merged["count"].tolist() == [3]


def test_poolers_are_merged(tmp_path: Path) -> None:
    start_folder = make_folder(tmp_path / "start", "bert", head=False)
    refined = shutil.copytree(start_folder, tmp_path / "refined")
    source = read_source(refined, {})
    with torch.no_grad():
        source.pooler.dense.weight.add_(1.0)  # type: ignore[union-attr, operator]
    source.save(refined)
    merge_folders(start_folder, refined, tmp_path / "merged", 0.5)
    before, merged = (read_source(folder, {}).pooler.dense.weight for folder in (start_folder, tmp_path / "merged"))
    torch.testing.assert_close(merged, before + 0.5)
