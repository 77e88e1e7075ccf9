"""synonyms.npz: a saved table loads unchanged, and every other file is rejected with a remedy."""

import os

import numpy as np
import pytest

from fairseq_clear.augmentations import SynonymTable
from fairseq_clear.errors import UserError
from fairseq_clear.files import hash_file
from fairseq_clear.text.synonym_files import load_synonyms, save_synonyms

IS_WORD_START = np.arange(12) % 2 == 0
TABLE = SynonymTable.build({(4,): [(6,), (8, 9)], (4, 5): [(6, 7, 7)]}, IS_WORD_START)
ARRAYS = ("is_word_start", "word_pieces", "word_offsets", "row_offsets", "alternative_pieces", "alternative_offsets")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\nb 1\n")
    save(tmp_path)
    return tmp_path


def save(folder):
    known = {"vocabulary_hash": hash_file(folder / "dict.txt"), "source": "list.json", "source_hash": "ab" * 32}
    save_synonyms(folder / "synonyms.npz", TABLE, **known)


def load(folder):
    return load_synonyms(folder / "synonyms.npz", folder / "dict.txt")


def rejected(folder, said):
    with pytest.raises(UserError, match=said) as error:
        load(folder)
    assert str(error.value).startswith(str(folder))
    return str(error.value)


def test_a_saved_table_loads_unchanged(folder):
    table = load(folder)
    for name in ARRAYS:
        loaded, written = getattr(table, name), getattr(TABLE, name)
        assert loaded.dtype == written.dtype and (loaded == written).all()
    assert table.find(np.array([4, 5, 4]), np.array([0, 2])).tolist() == [1, 0]
    first = (folder / "synonyms.npz").read_bytes()
    save(folder)
    assert (folder / "synonyms.npz").read_bytes() == first


def test_another_vocabulary_is_rejected_with_both_hashes_and_the_command(folder):
    made_for = hash_file(folder / "dict.txt")
    (folder / "dict.txt").write_text("a 1\nb 1\nc 1\n")
    now = hash_file(folder / "dict.txt")
    said = rejected(folder, f"another vocabulary .{made_for[:12]}. than .*{now[:12]}")
    assert f"fairseq-clear synonyms --data-bin {folder} --source FILE.json --output {folder}/synonyms.npz" in said
    assert said.endswith("--overwrite`")
    (folder / "synonyms.npz").unlink()
    assert "--overwrite" not in rejected(folder, "no synonym table here; make it with `fairseq-clear synonyms")


def test_altered_files_load_the_same_or_are_rejected(folder):
    whole = (folder / "synonyms.npz").read_bytes()
    outcomes = set()
    for place in range(0, len(whole), 23):
        (folder / "synonyms.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        try:
            table = load(folder)
        except UserError:
            outcomes.add("rejected")
        else:
            assert all((getattr(table, name) == getattr(TABLE, name)).all() for name in ARRAYS)
            outcomes.add("same")
    assert "rejected" in outcomes


def test_other_and_truncated_files_are_rejected(folder):
    whole = (folder / "synonyms.npz").read_bytes()
    for content in (b"no archive", b"\x80\x04K\x05.", *(whole[:length] for length in range(0, len(whole) - 1, 97))):
        (folder / "synonyms.npz").write_bytes(content)
        assert "remake it with `fairseq-clear synonyms" in rejected(folder, "not a complete synonym table")


def rewrite(folder, **changed):
    with np.load(folder / "synonyms.npz", allow_pickle=False) as npz:
        arrays = {name: npz[name] for name in npz.files}
    arrays.update(changed)
    np.savez(folder / "synonyms.npz", **{name: array for name, array in arrays.items() if array is not None})


def test_pickles_are_never_loaded(folder):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(folder / "exploded"),)

    rewrite(folder, word_pieces=np.array([Bomb()], object))
    rejected(folder, "not a complete synonym table .*allow_pickle")
    assert not (folder / "exploded").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        *(({name: None}, "not a complete") for name in ("word_offsets", "vocabulary_hash", "format", "is_word_start")),
        ({"row_offsets": np.array([0, 1, 2])}, "not a complete synonym table .*offsets"),
        ({"format": np.array(2)}, "format 2, but this version reads 1; remake it"),
    ],
)
def test_other_arrays_are_rejected(folder, changed, said):
    rewrite(folder, **changed)
    assert "synonyms.npz" in rejected(folder, said)


def test_a_failed_write_leaves_the_old_table_and_nothing_else(folder, monkeypatch):
    before = (folder / "synonyms.npz").read_bytes()

    def fail(file, **arrays):
        file.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(UserError, match="No space left"):
        save(folder)
    assert (folder / "synonyms.npz").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["dict.txt", "synonyms.npz"]
