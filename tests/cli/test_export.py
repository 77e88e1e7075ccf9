"""``fairseq-clear export`` as a user runs it; what it computes is tested in tests/interop."""

import json
import shutil

import pytest

from fairseq_clear.cli.conversion import FORMATS
from fairseq_clear.cli.main import main
from tests.conftest import rejected

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("form", FORMATS)
def test_only_stock_fairseq_needs_no_tokenizer(form, checkpoint, data_bin, tmp_path, capsys) -> None:
    command = ["export", str(checkpoint), "--data-bin", str(data_bin), "--format", form, "--dest", str(tmp_path / "x")]
    assert main(command) == (0 if form == "fairseq" else 2)
    assert ("so its tokenizer is not known; add --tokenizer" in capsys.readouterr().err) == (form != "fairseq")


def test_tokenizer_files_of_another_folder(checkpoint, data_bin, tmp_path, capsys) -> None:
    """clear.json may be written by hand, and its files must go with the export."""
    data = shutil.copytree(data_bin, tmp_path / "data")
    (data / "spm").mkdir()
    (data / "spm" / "x.model").write_text("")
    tokenizer = {"kind": "sentencepiece", "files": ["spm/x.model"]}
    (data / "clear.json").write_text(json.dumps({"format": 1, "tokenizer": tokenizer}))
    command = ["export", str(checkpoint), "--data-bin", str(data), "--format", "fairseq", "--dest", str(tmp_path / "x")]
    rejected(
        capsys,
        [*command, "--tokenizer", "whitespace"],
        "names spm/x.model; put the tokenizer's files",
    )
    assert not (tmp_path / "x").exists()
