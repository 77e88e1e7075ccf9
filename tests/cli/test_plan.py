"""``fairseq-clear plan`` as a user types it."""

import re

import pytest
from omegaconf import OmegaConf

from fairseq_clear.cli.main import main
from tests.conftest import ROOT
from tests.test_recipes import BASE as FIRST
from tests.test_recipes import CONFIGS

pytestmark = pytest.mark.slow

BASE = ["plan", "--config", "clear/base_256gpu"]
THIN = "++model.encoder_layers=1"


def test_the_papers_run_is_planned_as_the_page_shows(capsys):
    """docs/many-gpus.md shows the output of this command."""
    assert main([*BASE, "--gpus", "1", "8", "64", "256", "--global-batch", "8192", "--memory", "32"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and max(map(len, captured.out.splitlines())) < 120
    page = (ROOT / "docs" / "many-gpus.md").read_text()
    of_machine = re.compile(r"loading: ([\d,]+) texts/s")  # which differs by machine
    assert f"```text\n{of_machine.sub('', captured.out)}```" in of_machine.sub("", page)
    one, *_, many = (row.split() for row in captured.out.splitlines()[-4:])
    assert one[9] == many[9] == "1"
    assert float(one[3]) + float(one[4]) < 0.9 * 32 and one[2] != "0" and many[2] == "0"


@pytest.mark.parametrize("example", sorted(FIRST))
def test_every_recipe_is_planned(example, capsys):
    for path in (path for path in CONFIGS if path.parent.parent.name == example):
        laid_over = path.parent.glob("*/*.yaml") if FIRST[example] == path.stem else []
        distinct = {
            re.sub(r"[\d.]+", "", str(OmegaConf.load(file))): file for file in laid_over
        }  # one of several numbers
        for change in ["", *(f"+{file.parent.name}={file.stem}" for file in distinct.values())]:
            thin = [] if change.endswith(("frozen", "senteval")) else [THIN]  # these name layers
            config = [f"{example}/{path.stem}", *filter(None, [change]), "optimization.max_update=1000", *thin]
            assert main(["plan", "--config", *config, "--gpus", "8", "--vocabulary", "1000"]) == 0, change
            assert capsys.readouterr().out.splitlines()[-1].split()[0] == "8"


def test_a_recipe_and_texts_of_ones_own(tmp_path, paired_bin, capsys):
    file = tmp_path / "own.yaml"
    file.write_text(
        "task: {_name: clear_lm, tokens_per_sample: 64, sample_break_mode: eos}\ncriterion: {_name: masked_lm}\n"
        "model: {_name: clear_roberta_mini, max_positions: 64}\ndataset: {batch_size: 4}\noptimization: {max_update: 10}\n"
    )
    assert main(["plan", "--config", str(file), "--gpus", "1", "--data-bin", str(paired_bin)]) == 0
    out = capsys.readouterr().out
    words = len((paired_bin / "dict.txt").read_text().splitlines())
    assert f"vocabulary {words + 6}, fp32" in out and "64 to 64 tokens" not in out
