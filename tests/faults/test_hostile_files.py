"""Nothing that is given as a checkpoint, a model's folder, a tokenizer or a table runs code."""

import json
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import load_model
from fairseq_clear.interop.importing import import_hf
from fairseq_clear.patches.checkpoint_files import read_checkpoint
from fairseq_clear.preparation.back_translation.translating import translate_file
from fairseq_clear.preparation.back_translation.translation_settings import OneDirection
from fairseq_clear.text.synonym_files import load_synonyms
from tests.conftest import WORDS, rejected
from tests.faults import commands
from tests.interop.folders import make_folder
from tests.preparation.back_translation.archives import make_archive
from tests.preparation.corpora import sentencepiece_model

pytestmark = pytest.mark.slow


class Hostile:
    """Unpickled, it makes a file."""

    def __init__(self, trace: Path) -> None:
        self.code = making(trace)

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self.code,)


def making(trace: Path) -> str:
    return f"open({str(trace)!r}, 'w')"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """What must not exist at the end."""
    return tmp_path / "trace"


@pytest.fixture
def hostile(checkpoint: Path, tmp_path: Path, trace: Path) -> Path:
    """A checkpoint that is a real one but for a part that runs code."""
    state = torch.load(checkpoint, weights_only=True)
    torch.save({**state, "note": Hostile(trace)}, tmp_path / "hostile.pt")
    torch.load(tmp_path / "hostile.pt", weights_only=False)
    assert trace.exists(), "the negative control: it does run code"
    trace.unlink()
    return tmp_path / "hostile.pt"


def with_settings(checkpoint: Path, path: Path, **settings: str) -> Path:
    """The checkpoint with these settings of its model; all in it are weights, numbers and strings."""
    state = torch.load(checkpoint, weights_only=True)
    found = state.get("args") or state["cfg"]["model"]
    (found if isinstance(found, dict) else vars(found)).update(settings)
    torch.save(state, path)
    return path


def test_every_command_that_takes_a_checkpoint(hostile, data_bin, tmp_path, trace, capsys) -> None:
    (tmp_path / "text").write_text(f"{WORDS[0]}\n")
    (tmp_path / "pairs").write_text(f"{WORDS[0]}\t{WORDS[1]}\t1\n{WORDS[2]}\t{WORDS[3]}\t2\n")
    archive, made = tmp_path / "archive", tmp_path / "made"
    archive.mkdir()
    shutil.copyfile(hostile, archive / "model.pt")
    shutil.copyfile(data_bin / "dict.txt", archive / "dict.txt")
    sentencepiece_model(archive / "sentencepiece.bpe.model")
    data = ["--data-bin", data_bin, "--tokenizer", "whitespace"]
    for command in (
        ["embed", tmp_path / "text", "--checkpoint", hostile, "--output", tmp_path / "o.npy", *data],
        ["sts", "--encoder", hostile, "--sts-file", tmp_path / "pairs", *data],
        *(["export", hostile, "--dest", made, *data, "--format", form] for form in ("hf", "fairseq")),
        ["import", archive, "--dest", made],
    ):
        rejected(capsys, command, "holds a exec, which is neither weights nor settings and could run code")
        assert not trace.exists() and not made.exists()


@pytest.mark.parametrize("way", ["--finetune-from-model", "--restore-file", "checkpoint_last.pt"])
def test_training_from_it(way: str, hostile: Path, data_bin: Path, tmp_path: Path, trace: Path) -> None:
    folder, flags = tmp_path / "run", (way, str(hostile))
    folder.mkdir()
    if way == "checkpoint_last.pt":
        shutil.copyfile(hostile, folder / way)
        flags = ()
    code, log = commands.train_and_read(data_bin, folder, *flags)
    assert code == 2 and "could run code" in log and "Traceback" not in log
    assert not trace.exists()


def test_whatever_torch_takes_for_its_default(hostile: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.6 that is to run it."""
    stock = torch.load

    def old(*args: Any, weights_only: bool = False, **options: Any) -> Any:
        return stock(*args, weights_only=weights_only, **options)

    monkeypatch.setattr(torch, "load", old)
    with pytest.raises(UserError, match="holds a exec"):
        read_checkpoint(str(hostile))
    assert not trace.exists() and torch.load is old


@pytest.mark.parametrize("name", ["encoder_xformers_att_config", "xformers_att_config"])
def test_settings_that_fairseq_evaluates(name, checkpoint, data_bin, tmp_path, trace, monkeypatch) -> None:
    path = with_settings(checkpoint, tmp_path / "settings.pt", **{name: making(trace)})
    with pytest.raises(UserError, match="settings.pt: .*is not a Python literal"):
        load_model(path, data_bin)
    assert not trace.exists()
    monkeypatch.setattr("fairseq.utils.eval", eval)
    with pytest.raises(Exception, match="."):
        load_model(path, data_bin)
    assert trace.exists(), "the negative control: stock fairseq runs them"


def test_settings_of_a_translation_model(tmp_path: Path, trace: Path) -> None:
    file = make_archive(tmp_path / "en-de", "en", "de") / "model.pt"
    convolutional = {"arch": "fconv", "encoder_layers": making(trace), "decoder_layers": "[(16, 3)]"}
    more = {"decoder_attention": "True", "decoder_out_embed_dim": 16, "encoder_embed_path": None}
    with_settings(file, file, **convolutional, **more)  # type: ignore[arg-type]
    (tmp_path / "text").write_text("the cat\n")
    files = {"input": tmp_path / "text", "output": tmp_path / "out"}
    with pytest.raises(UserError, match="is not a Python literal"):
        translate_file(OneDirection(**files, model=str(tmp_path / "en-de"), device="cpu"))
    assert not trace.exists() and not (tmp_path / "out").exists()


def test_a_module_that_a_checkpoint_names(checkpoint: Path, data_bin: Path, tmp_path: Path, trace: Path) -> None:
    """``--user-dir`` of whoever trained it is not imported."""
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "__init__.py").write_text(making(trace))
    state = torch.load(checkpoint, weights_only=True)
    assert state["cfg"]["common"]["user_dir"]
    state["cfg"]["common"]["user_dir"] = str(tmp_path / "evil")
    torch.save(state, tmp_path / "named.pt")
    load_model(tmp_path / "named.pt", data_bin)
    assert not trace.exists()


def test_a_namespace_is_data(tmp_path: Path, trace: Path) -> None:
    """The one class beyond torch's own that is let through cannot be made to call anything."""
    torch.save({"args": Namespace(value=Hostile(trace))}, tmp_path / "inner.pt")
    with pytest.raises(UserError, match="could run code"):
        read_checkpoint(str(tmp_path / "inner.pt"))
    scalar = np.float64(1).__reduce__()[0]
    torch.save({"x": _Scalar(scalar, np.dtype("O"), Hostile(trace))}, tmp_path / "scalar.pt")
    with pytest.raises(UserError, match="scalar.pt: not a complete checkpoint"):
        read_checkpoint(str(tmp_path / "scalar.pt"))
    assert not trace.exists()


class _Scalar:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call[0], self.call[1:]


def test_code_in_a_hugging_face_folder(tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither run nor asked about, also where the folder has none but its own tokenizer's class."""
    pytest.importorskip("transformers")
    source = make_folder(tmp_path / "hf", "roberta")
    for name in ("tokenization_evil.py", "modeling_evil.py", "configuration_evil.py"):
        (source / name).write_text(making(trace))
    config = json.loads((source / "config.json").read_text())
    parts = {"AutoConfig": "configuration_evil.C", "AutoModel": "modeling_evil.M"}
    (source / "config.json").write_text(json.dumps({**config, "auto_map": parts}))
    (source / "tokenizer.json").unlink()  # so that transformers must make it
    own = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]}}
    (source / "tokenizer_config.json").write_text(json.dumps(own))
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # the answer that would let it run
    with pytest.raises(UserError, match="hf: transformers cannot load a tokenizer"):
        import_hf(source, tmp_path / "ours")
    assert not trace.exists() and not (tmp_path / "ours").exists()
    assert not [name for name in sys.modules if "evil" in name]


def test_a_tokenizer_of_garbage(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    whole = make_folder(tmp_path / "hf", "bert")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        stock = (whole / name).read_bytes()
        for content in (b"", b"\0" * 64, b"\x80\x04K\x05.", b"\xff" * 1000, bytes(range(128, 256)) * 5):
            (whole / name).write_bytes(content)
            with pytest.raises(UserError):
                import_hf(whole, tmp_path / "ours")
            assert not (tmp_path / "ours").exists()
        (whole / name).write_bytes(stock)


@pytest.mark.parametrize("content", [b"\0" * 64, b"\x80\x04K\x05.", b"\xff" * 1000, b"\n\x05\n\x03abc", b"\x0a" * 99])
def test_a_sentencepiece_model_of_garbage(content, checkpoint, data_bin, tmp_path, capsys) -> None:
    (tmp_path / "bad.model").write_bytes(content)
    (tmp_path / "text").write_text("x\n")
    command = ["embed", tmp_path / "text", "--checkpoint", checkpoint, "--output", tmp_path / "o.npy"]
    command += ["--data-bin", data_bin, "--tokenizer", tmp_path / "bad.model"]
    rejected(capsys, command, "bad.model: not a sentencepiece model")
    assert not (tmp_path / "o.npy").exists()


def test_a_table_that_asks_for_all_memory(data_bin: Path, tmp_path: Path) -> None:
    """An array's header may state any size; the sums of the archive are right."""
    import zipfile

    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000,), }"
    header = header.ljust(118) + b"\n"
    with zipfile.ZipFile(tmp_path / "synonyms.npz", "w") as archive:
        archive.writestr("format.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(UserError, match="not a complete synonym table"):
        load_synonyms(tmp_path / "synonyms.npz", data_bin / "dict.txt")
