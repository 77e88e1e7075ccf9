"""The installer stops where it cannot work, and does nothing the second time."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, run

READ = ("requirements.txt", "setup.py", "scripts/install.sh", "scripts/sample.py")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the installer reads, and a python that says which version it is and fails at anything else."""
    (tmp_path / "scripts").mkdir()
    for name in READ:
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def install(checkout: Path, version: str) -> subprocess.CompletedProcess[str]:
    fake = checkout / "fakepython"
    fake.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo {version} && exit 0\necho would install >&2\nexit 7\n')
    fake.chmod(0o755)
    script = checkout / "scripts" / "install.sh"
    return run("bash", script, check=False, env={**os.environ, "PYTHON": str(fake)})


@pytest.mark.parametrize("version", ["3.10", "3.13"])
def test_other_pythons_are_an_error(version: str, checkout: Path) -> None:
    result = install(checkout, version)
    assert result.returncode == 2
    assert f"Python {version}; fairseq_clear needs 3.11 or 3.12" in result.stderr
    assert not (checkout / ".venv").exists()


def test_a_second_call_does_nothing_until_the_pins_change(checkout: Path) -> None:
    parts = [(checkout / name).read_bytes() for name in READ]
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / ".installed").write_text(hashlib.sha256(b"".join([*parts, b"3.11\n"])).hexdigest() + "\n")
    assert install(checkout, "3.11").returncode == 0
    assert install(checkout, "3.12").returncode == 7
    assert not (checkout / ".venv" / ".installed").exists()


def test_shell_scripts_parse() -> None:
    scripts = [*ROOT.glob("scripts/**/*.sh"), *ROOT.glob("examples/**/*.sh"), ROOT / ".ci" / "run"]
    assert len(scripts) >= 3
    for script in scripts:
        run("bash", "-n", script)
        assert os.access(script, os.X_OK), script
