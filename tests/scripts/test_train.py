"""examples/train.sh: what it hands to fairseq-hydra-train, and the mistakes it names."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from tests.conftest import ROOT

SCRIPT = ROOT / "examples/train.sh"


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """A PATH on which fairseq-hydra-train prints its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    stub = folder / "fairseq-hydra-train"
    stub.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    (folder / "python").symlink_to(sys.executable)
    return folder


def call(bin_folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, env=environment, cwd=bin_folder.parent)


def test_settings_and_overrides(bin_folder):
    done = call(bin_folder, "declutr/small", "data", "start.pt", "7", "+ablation=mlm_only", "common.cpu=true")
    assert done.returncode == 0, done.stderr
    flags, settings = done.stdout.splitlines()[:4], done.stdout.splitlines()[4:]
    assert flags == ["--config-dir", str(ROOT / "examples/declutr/config"), "--config-name", "small"]
    assert settings == [
        *(f"common.user_dir='{ROOT}/fairseq_clear'", "common.seed=7"),
        *("checkpoint.save_dir=checkpoints/declutr_small_mlm_only_7", "task.data='data'"),
        *("checkpoint.finetune_from_model='start.pt'", "+ablation=mlm_only", "common.cpu=true"),
    ]


@pytest.mark.parametrize("name", ["lr=3,4", "it's", "[x] {a}", "a:b (1)"])
def test_hydra_reads_the_paths_that_were_given(name, bin_folder):
    done = call(bin_folder, "declutr/small", f"{name}/data", f"{name}/start.pt", "7")
    overrides = [line for line in done.stdout.splitlines() if line.startswith(("task.data=", "checkpoint.finetune"))]
    parsed = OverridesParser.create().parse_overrides(overrides)
    assert [override.value() for override in parsed] == [f"{name}/data", f"{name}/start.pt"]


def test_what_the_config_says(bin_folder):
    done = call(bin_folder, "clear/tiny", "-", "-", "1")
    assert done.returncode == 0 and "task.data" not in done.stdout and "finetune" not in done.stdout
    assert call(bin_folder, "declutr/small", "-", "-", "1", "+ablation=share_10").returncode == 0


def folder_of(done: subprocess.CompletedProcess[str]) -> str:
    """The folder of the checkpoints that the script hands on."""
    (folder,) = re.findall(r"^checkpoint\.save_dir=checkpoints/(.*)$", done.stdout, flags=re.M)
    return folder


def test_every_set_of_overrides_has_its_own_folder(bin_folder):
    def folder(*overrides: str, seed: str = "1") -> str:
        return folder_of(call(bin_folder, "clear/tiny", "-", "-", seed, *overrides))

    recipes = [
        (),
        ("task.augment=none",),
        ('task.augment="del-span:spans=5,ratio=0.05+reorder"',),
        ('task.augment="del-span:spans=4,ratio=0.05+reorder"',),
        ("++model.encode_chunk_size=64",),
        ("optimization.lr=[0.1]",),
        ("task.augment=none", "optimization.lr=[0.1]"),
    ]
    folders = [folder(*overrides) for overrides in recipes] + [folder(seed="2")]
    assert len(set(folders)) == len(folders) and folders[0] == "clear_tiny_1"
    assert folders[2] == "clear_tiny_augment-del-span-spans-5-ratio-0.05-reorder_1"
    free = "optimization.max_update=9 checkpoint.keep_interval_updates=1 common.log_interval=5 common.cpu=true".split()
    assert folder(*free, "task.eval_sts=data", "++model.compile=true", "++common.cpu=true") == folders[0]
    assert folder(*free, "dataset.num_workers=0", "distributed_training.distributed_world_size=2") == folders[0]
    # a name that hydra and every file system take, however long the overrides are
    long = [folder(f"task.augment={'del-word/' * 40}reorder", f"criterion.temperature=0.{number}") for number in (1, 2)]
    assert long[0] != long[1] and all(re.fullmatch(r"[\w.-]{1,130}", name) for name in (*folders, *long))


@pytest.mark.parametrize(("texts", "updates"), [(8550, 53_500), (16, 100), (17, 200)])
def test_cert_counts_the_texts(bin_folder, texts, updates):
    data = bin_folder.parent / "data"
    data.mkdir()
    (data / "clear.json").write_text(json.dumps({"splits": {"train": {"sentences": texts}}}))
    command = (bin_folder, "cert/cert", "data", "s.pt", "1")
    assert f"optimization.max_update={updates}" in call(*command).stdout.splitlines()
    assert "max_update=9" in call(*command, "optimization.max_update=9").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["clear/tiny", "data", "-"], "usage: "),
        (["tiny", "data", "-", "1"], "usage: "),
        (["clear/huge", "data", "-", "1"], "examples/clear/config/huge.yaml does not exist"),
        (["cert/cert", "nowhere", "-", "1"], "nowhere/clear.json: no such file"),
        (["declutr/small", "data", "-", "1", "+ablation=share_10"], "share_10.yaml names its data folders; give - as"),
    ],
)
def test_mistakes(bin_folder, arguments, said):
    done = call(bin_folder, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1
