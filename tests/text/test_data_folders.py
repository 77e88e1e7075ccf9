"""Data folders under the names that users give them."""

import json
import os

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.text.data_folders import data_folders


@pytest.fixture
def root(tmp_path):
    for name in ("a", "b", "both/shard0", "both/shard1", "empty"):
        (tmp_path / name).mkdir(parents=True)
        if name != "empty":
            (tmp_path / name / "dict.txt").write_text("word 1\n")
    (tmp_path / "both" / "clear.json").write_text(json.dumps({"format": 1, "shards": ["shard0", "shard1"]}))
    return tmp_path


def test_one_several_and_shards(root):
    shards = [root / "both" / "shard0", root / "both" / "shard1"]
    assert data_folders(root / "a") == data_folders(str(root / "a")) == [root / "a"]
    assert data_folders(f"{root}/b{os.pathsep}{root}/a") == [root / "b", root / "a"]
    assert data_folders(root / "both") == shards
    assert data_folders(f"{root}/both{os.pathsep}{root}/a") == [*shards, root / "a"]


@pytest.mark.parametrize(("name", "message"), [("absent", "there is no folder"), ("empty", "has no dict.txt")])
def test_folders_that_are_none(root, name, message):
    for data in (root / name, f"{root}/a{os.pathsep}{root}/{name}"):
        with pytest.raises(UserError, match=f"--data-bin .*{message}.*fairseq-clear prepare") as caught:
            data_folders(data)
        assert "\n" not in str(caught.value)
