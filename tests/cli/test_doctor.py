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

COMPILED = "fairseq.data.token_block_utils_fast"
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


def test_the_only_problem_is_named(capsys, monkeypatch) -> None:
    patches.apply()
    gone = Patch("fairseq.trainer:Trainer.gone", "failures:train_step", "a reason", "tests/cli/test_doctor.py")
    loading_error = doctor.loading_error

    def no_fairseq(name: str) -> str | None:
        return "gone" if name == "fairseq" else loading_error(name)

    def other(self: object, samples: object) -> None:
        """Has another signature than fairseq's train_step."""

    replaced = ((doctor, "PATCHES", (TRAIN_STEP,)), (failures, "train_step", other), (Trainer, "train_step", other))
    for problem, *changes in (
        ("fairseq.trainer:Trainer.train_step takes (self, samples, raise_oom) in this version", *replaced),
        (f"the patch of {TRAIN_STEP.target} is off", (Trainer, "train_step", original(TRAIN_STEP.target))),
        ("fairseq.trainer:Trainer.gone cannot be patched: AttributeError", (doctor, "PATCHES", (gone,))),
        ("fairseq does not load: gone", (doctor, "loading_error", no_fairseq)),
        (f"{COMPILED} does not load: ModuleNotFoundError", (sys.modules, COMPILED, None)),
    ):
        with monkeypatch.context() as patch:
            for target, name, value in changes:
                (patch.setitem if target is sys.modules else patch.setattr)(target, name, value)
            status, found = report(capsys)
        (said,) = found["problems"]
        assert status == 1 and said.startswith(problem)


def test_the_folder_of_the_package_is_printed_in_any_folder(tmp_path: Path) -> None:
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from fairseq_clear.cli.main import main; main(['user-dir'])"
    assert run(sys.executable, "-c", code, cwd=tmp_path, fresh=True).stdout == f"{ROOT / 'fairseq_clear'}\n"
