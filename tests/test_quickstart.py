"""README's first training run, and what the guides add to it (recipes, two workers), run verbatim."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import zygote
from tests.conftest import ROOT
from tests.faults.commands import updates

pytestmark = pytest.mark.slow


def bash_blocks(page: str, heading: str) -> list[list[str]]:
    """The commands of each bash block below a heading."""
    section = re.search(rf"^## {heading}\n(.*?)(?:^## |\Z)", (ROOT / page).read_text(), flags=re.M | re.S)
    assert section is not None, heading
    blocks = re.findall(r"```bash\n(.*?)```", section[1], flags=re.S)
    return [[line for line in re.sub(r"\\\n\s*", "", block).splitlines() if line.strip()] for block in blocks]


GUIDE = "docs/getting-started.md"
(BY_FLAGS,) = bash_blocks("README.md", "A first training run")
(BY_RECIPE,) = bash_blocks(GUIDE, "Train with a recipe")
BY_TORCHRUN, _ = bash_blocks("docs/many-gpus.md", "One machine")
PYTHON = re.search(r"```python\n(.*?)```", (ROOT / GUIDE).read_text(), flags=re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout, as far as the commands see, with the text of ``make install``."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("fairseq_clear", "examples"):
        (folder / name).symlink_to(ROOT / name)
    subprocess.run([sys.executable, ROOT / "scripts/sample.py", folder / "sample"], check=True)
    (folder / "bin").mkdir()
    zygote.write_scripts(folder / "bin", "fairseq-clear", "fairseq-train", "torchrun", "fairseq-hydra-train")
    return folder


def shell(folder: Path, *commands: str, **variables: str) -> str:
    """The commands as a user types them, with the environment activated."""
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONWARNINGS", None)
    environment.update(variables)
    text = ""
    for command in commands:
        done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, env=environment)
        text += done.stdout + done.stderr
        assert done.returncode == 0, f"{command}\n{text[-4000:]}"
        assert "Traceback" not in text and "UserWarning" not in text, text[-4000:]
    return text


def shortened(command: str, updates: int) -> str:
    """The command with fewer updates."""
    short, times = re.subn(r"(--max-update |max_update=)\d+", rf"\g<1>{updates}", command)
    assert times == 1, command
    return short


@pytest.fixture(scope="module")
def by_flags(folder: Path) -> str:
    """The output of README's commands, which train for 60 updates of the 200."""
    return shell(folder, *(shortened(command, 60) if "train" in command else command for command in BY_FLAGS))


def test_by_flags(by_flags: str, folder: Path) -> None:
    assert len(BY_FLAGS) == 5 and bash_blocks(GUIDE, "A first training run") == [BY_FLAGS]
    assert updates(folder / "checkpoints/first") == 60
    accuracy, loss = (
        [float(value) for value in re.findall(rf"train_inner .*?\b{name}=([\d.]+)", by_flags)]
        for name in ("contrastive_accuracy", "loss")
    )
    assert len(accuracy) == 3 and accuracy[-1] > accuracy[0] and loss[-1] < loss[0] - 1, (accuracy, loss)
    assert np.load(folder / "vectors.npy").shape == (2, 128)
    assert (folder / "encoder" / "modules.json").is_file()


def test_from_python(by_flags: str, folder: Path) -> None:
    assert PYTHON is not None
    check = "assert vectors.shape == (2, 128), vectors.shape"
    (folder / "script.py").write_text(f"{PYTHON[1]}\n{check}\n")
    shell(folder, 'python -c "$(cat script.py)"')


def test_by_recipes(by_flags: str, folder: Path) -> None:
    """Two recipes one after the other, each into a folder of its own."""
    first, second = (shortened(command, 4) for command in BY_RECIPE)
    # The first process is not forked: hydra warns when it is imported, and train.sh hides that.
    text = shell(folder, f"PATH={Path(sys.executable).parent}:$PATH {first}", f"PYTHONWARNINGS=ignore {second}")
    trained = sorted(folder.glob("checkpoints/clear_tiny*/checkpoint_last.pt"))
    assert [updates(path.parent) for path in trained] == [4, 4] and text.count("done training") == 2
    again = shell(folder, f"PYTHONWARNINGS=ignore {first}")
    assert "from update 4 of" in again and "the run is complete" in again


def test_on_two_workers(by_flags: str, folder: Path) -> None:
    (command,) = BY_TORCHRUN
    text = shell(folder, shortened(command, 4))
    assert "workers    2 on CPUs" in text and text.count("done training") == 1
    assert updates(folder / "checkpoints/two") == 4
