"""``fairseq-clear export`` as a user runs it; what it computes is tested in tests/interop."""

import json
import shutil
from pathlib import Path

import pytest

from fairseq_clear.cli.conversion import FORMATS
from fairseq_clear.cli.main import main

pytestmark = pytest.mark.slow


def test_a_folder_of_something_else_is_not_replaced(checkpoint: Path, data_bin: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    command = ["export", str(checkpoint), "--data-bin", str(data_bin), "--overwrite"]
    assert main([*command, "--format", "fairseq", "--dest", str(tmp_path / "mine")]) == 2
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    for _ in range(2):
        assert main([*command, "--format", "fairseq", "--dest", str(tmp_path / "out")]) == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["README.md", "dict.txt", "fairseq_clear.json", "model.pt"]


@pytest.mark.parametrize("form", FORMATS)
def test_only_stock_fairseq_needs_no_tokenizer(
    form: str, checkpoint: Path, data_bin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(checkpoint), "--data-bin", str(data_bin), "--format", form, "--dest", str(tmp_path / "x")]
    assert main(command) == (0 if form == "fairseq" else 2)
    assert ("so its tokenizer is not known; add --tokenizer" in capsys.readouterr().err) == (form != "fairseq")


def test_tokenizer_files_of_another_folder(
    checkpoint: Path, data_bin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """clear.json may be written by hand, and its files must go with the export."""
    data = shutil.copytree(data_bin, tmp_path / "data")
    (data / "spm").mkdir()
    (data / "spm" / "x.model").write_text("")
    tokenizer = {"kind": "sentencepiece", "files": ["spm/x.model"]}
    (data / "clear.json").write_text(json.dumps({"format": 1, "tokenizer": tokenizer}))
    command = ["export", str(checkpoint), "--data-bin", str(data), "--format", "fairseq", "--dest", str(tmp_path / "x")]
    assert main([*command, "--tokenizer", "whitespace"]) == 2
    assert "clear.json: names spm/x.model; put the tokenizer's files next to it" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
