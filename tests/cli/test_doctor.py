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
    assert len(found["patches"]) == len(PATCHES) and all(row["on"] for row in found["patches"])
    assert {"python", "fairseq_clear", "fairseq", "torch", "numpy", "hydra-core", "omegaconf"} <= set(found["versions"])
    assert found["devices"]["cores"] >= 1 and isinstance(found["devices"]["CUDA"], bool)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("\nno problems found\n")
    assert all(f"on  {row['target']}: {row['reason']}\n" in shown for row in found["patches"])


def test_a_target_with_another_signature_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    patches.apply()
    monkeypatch.setattr(doctor, "PATCHES", (TRAIN_STEP,))
    monkeypatch.setattr(failures, "train_step", lambda self, samples: None)
    monkeypatch.setattr(Trainer, "train_step", failures.train_step)
    status, found = report(capsys)
    (problem,) = found["problems"]
    assert status == 1 and found["patches"][0]["on"]
    assert problem.startswith("fairseq.trainer:Trainer.train_step takes (self, samples, raise_oom) in this version")
    assert "but (self, samples) in 0.12.3" in problem


def test_a_patch_that_is_off_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    patches.apply()
    monkeypatch.setattr(Trainer, "train_step", original(TRAIN_STEP.target))
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "OFF fairseq.trainer:Trainer.train_step: " in shown
    assert shown.endswith("\nproblem: the patch of fairseq.trainer:Trainer.train_step is off\n")


def test_a_target_that_fairseq_lacks_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Patch("fairseq.trainer:Trainer.gone", "failures:train_step", "a reason", "tests/cli/test_doctor.py")
    monkeypatch.setattr(doctor, "PATCHES", (gone,))
    status, found = report(capsys)
    (problem,) = found["problems"]
    assert status == 1 and problem.startswith("fairseq.trainer:Trainer.gone cannot be patched: AttributeError")


def test_a_compiled_part_that_does_not_load_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fairseq.data.token_block_utils_fast", None)
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "\nproblem: fairseq.data.token_block_utils_fast does not load: ModuleNotFoundError" in shown
    assert "  fairseq.libbleu: loads\n" in shown


def test_a_library_that_does_not_load_is_the_only_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    once = doctor.loading_error
    monkeypatch.setattr(doctor, "loading_error", lambda name: "gone" if name == "fairseq" else once(name))
    status, found = report(capsys)
    assert (status, found["problems"]) == (1, ["fairseq does not load: gone"])


def test_the_folder_of_the_package_is_printed_in_any_folder(tmp_path: Path) -> None:
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from fairseq_clear.cli.main import main; main(['user-dir'])"
    assert run(sys.executable, "-c", code, cwd=tmp_path, fresh=True).stdout == f"{ROOT / 'fairseq_clear'}\n"
