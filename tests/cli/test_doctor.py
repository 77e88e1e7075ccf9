"""doctor: finds no problems here, and names the problems that it finds."""

import json
import sys
from pathlib import Path

import pytest
from fairseq.trainer import Trainer

from fairseq_clear import patches
from fairseq_clear.cli import doctor
from fairseq_clear.cli.main import main
from fairseq_clear.patches import PATCHES, Patch, failures, original
from tests.conftest import ROOT, run

TRAIN_STEP = next(patch for patch in PATCHES if patch.target.endswith("Trainer.train_step"))


def report(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict]:
    capsys.readouterr()
    status = main(["doctor", "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = report(capsys)
    assert (status, found["problems"]) == (0, [])
    assert len(found["patches"]) == len(PATCHES) and all(shown[:4] == "on; " for shown in found["patches"].values())
    assert {"python", "fairseq_clear", "fairseq", "torch"} <= set(found["versions"])
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("\nproblems:\n  none\n")


def other_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PATCHES", (TRAIN_STEP,))
    monkeypatch.setattr(failures, "train_step", lambda self, samples: None)
    monkeypatch.setattr(Trainer, "train_step", failures.train_step)


def patch_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "train_step", original(TRAIN_STEP.target))


def no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Patch("fairseq.trainer:Trainer.gone", "failures:train_step", "a reason", "tests/cli/test_doctor.py")
    monkeypatch.setattr(doctor, "PATCHES", (gone,))


def no_compiled_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fairseq.data.token_block_utils_fast", None)


def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    once = doctor.loading_error
    monkeypatch.setattr(doctor, "loading_error", lambda name: "gone" if name == "fairseq" else once(name))


@pytest.mark.parametrize(
    ("breaks", "problem"),
    [
        (other_signature, "fairseq.trainer:Trainer.train_step takes (self, samples, raise_oom) in this version"),
        (patch_off, "the patch of fairseq.trainer:Trainer.train_step is off"),
        (no_target, "fairseq.trainer:Trainer.gone cannot be patched: AttributeError"),
        (no_compiled_part, "fairseq.data.token_block_utils_fast does not load: ModuleNotFoundError"),
        (no_library, "fairseq does not load: gone"),
    ],
)
def test_the_only_problem_is_named(breaks, problem, capsys, monkeypatch) -> None:
    patches.apply()
    breaks(monkeypatch)
    status, found = report(capsys)
    (said,) = found["problems"]
    assert status == 1 and said.startswith(problem)


def test_the_folder_of_the_package_is_printed_in_any_folder(tmp_path: Path) -> None:
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from fairseq_clear.cli.main import main; main(['user-dir'])"
    assert run(sys.executable, "-c", code, cwd=tmp_path, fresh=True).stdout == f"{ROOT / 'fairseq_clear'}\n"
