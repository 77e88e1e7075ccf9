"""``fairseq-clear plan`` as a user types it."""

import json
import re

import pytest

from fairseq_clear.cli.main import main
from tests.test_recipes import BASE as FIRST
from tests.test_recipes import CONFIGS

pytestmark = pytest.mark.slow

BASE = ["plan", "--config", "clear/base_256gpu"]
THIN = "++model.encoder_layers=1"


def test_the_papers_run(tmp_path, capsys):
    file = tmp_path / "plan.json"
    assert main([*BASE, "--gpus", "256", "--memory", "32", "--json", str(file)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    for line in ("texts of an update", "8,192 of 512 tokens", "16,382", "500,000", "reduce_scatter", "counted"):
        assert line in captured.out
    assert max(map(len, captured.out.splitlines())) < 160
    content = json.loads(file.read_text())
    assert (content["texts"], content["update_freq"], content["chunk"]) == (32, 1, 0)
    assert content["global_batch"] == 8192 and content["memory"]["total"] < 32 * 2**30
    assert main([*BASE, "--gpus", "256", "--json", str(file)]) == 2
    assert "exists already; add --overwrite" in capsys.readouterr().err
    assert main([*BASE, THIN, "--gpus", "8", "--global-batch", "8192", "--json", str(file), "--overwrite"]) == 0
    assert "encode_chunk_size" in capsys.readouterr().out
    assert json.loads(file.read_text())["negatives"] == 16_382
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_overrides_and_a_file_of_ones_own(tmp_path, capsys):
    assert main([*BASE, "+ablation=double_mlm", "dataset.batch_size=16", "--gpus", "2", "--mfu", "0.3"]) == 0
    out = capsys.readouterr().out
    assert "32 masked rows" in out and "no views" in out and "30% of 125" in out
    file = tmp_path / "own.yaml"
    file.write_text(
        "task: {_name: clear_lm, tokens_per_sample: 64}\ncriterion: {_name: masked_lm}\n"
        "model: {_name: clear_roberta_mini, max_positions: 64}\ndataset: {batch_size: 4}\noptimization: {max_update: 10}\n"
    )
    assert main(["plan", "--config", str(file), "--gpus", "1", "--vocabulary", "1000"]) == 0
    out = capsys.readouterr().out
    assert "4 x 256" in out and "nothing: one GPU" in out and "fp32" in out


@pytest.mark.parametrize(
    ("settings", "peak", "assumed"),
    [
        (["common.fp16=true"], 125.0, "a V100 in half precision"),
        (["common.fp16=false", "++common.amp=true"], 125.0, "a V100 in half precision"),
        (["common.fp16=false"], 15.7, "a V100 in float32"),
        # a CPU computes in float32 whatever the recipe asks for; 2 x 8 x 2 x 3 GHz
        (["common.fp16=false", "++common.cpu=true"], 0.096, "one CPU core, AVX2 at 3 GHz in float32"),
    ],
)
def test_the_peak_that_is_assumed_is_printed(settings, peak, assumed, tmp_path, capsys):
    file = tmp_path / "plan.json"
    command = [*BASE, THIN, *settings, "--gpus", "256", "--memory", "1000", "--json", str(file), "--overwrite"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert (
        f"{peak:g} TFLOP/s, assumed: {assumed}" in out and "--peak-tflops" in out and f"45% of {peak:g} TFLOP/s" in out
    )
    content = json.loads(file.read_text())
    work = content["operations"]["total"] * content["update_freq"]
    assert content["compute_seconds"] == pytest.approx(work / (peak * 1e12 * 0.45))
    assert main([*command, "--peak-tflops", "2"]) == 0
    out = capsys.readouterr().out
    assert "2 TFLOP/s, of --peak-tflops" in out and "assumed" not in out


RECIPES = [
    (path.parent.parent.name, path.stem, change)
    for path in CONFIGS
    for change in ["", *(f"+{file.parent.name}={file.stem}" for file in sorted(path.parent.glob("*/*.yaml")))]
    if not change or FIRST[path.parent.parent.name] == path.stem
]


@pytest.mark.parametrize("example", sorted({example for example, _, _ in RECIPES}))
def test_every_recipe_is_planned(example, capsys):
    for _, config, change in (recipe for recipe in RECIPES if recipe[0] == example):
        thin = [] if change.endswith(("frozen", "senteval")) else [THIN]  # those name layers
        # settings that replace each other's lines leave none out
        limit = [] if "max_update" in change else ["optimization.max_update=1000"]
        assert (
            main(["plan", "--config", f"{example}/{config}", *filter(None, [change]), *limit, *thin, "--gpus", "8"])
            == 0
        ), change
        captured = capsys.readouterr()
        assert captured.err == "" and "memory of a GPU" in captured.out


def test_keys_of_another_encoder_are_shown(capsys):
    assert main(["plan", "--config", "cert/cert", "--gpus", "1"]) == 0
    out = capsys.readouterr().out
    assert "16 texts of 128 tokens by the momentum encoder" in out and "96,606, the queue once it is full" in out
    assert main(["plan", "--config", "self_guided/sg_opt", "--gpus", "1"]) == 0
    out = capsys.readouterr().out
    assert "by the frozen encoder" in out and "copies" in out and f"{15 * 13:,}" in out
    assert main(["plan", "--config", "declutr/small", "--gpus", "1"]) == 0
    assert re.search(r"96 views of 3\d to 512 tokens \(32 of them masked\)", capsys.readouterr().out)


def test_the_corpus_of_a_data_folder(tmp_path, capsys):
    (tmp_path / "shard0").mkdir()
    (tmp_path / "shard0" / "dict.txt").write_text("a 1\nb 1\n")
    counts = {"documents": 1, "sentences": 1000, "tokens": 511_000_000, "unknown": 0}
    (tmp_path / "clear.json").write_text(json.dumps({"shards": ["shard0"], "splits": {"train": counts}}))
    assert main([*BASE, THIN, "--gpus", "256", "--data-bin", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    # a million texts of 511 tokens and <s> are 123 updates an epoch
    assert "vocabulary 8)" in out and f"{500_000 / 123:,.1f} epochs" in out


def test_masked_spans_are_of_mixed_length(capsys):
    assert main(["plan", "--config", "declutr/small", "+ablation=separate_mlm", "--gpus", "4"]) == 0
    assert re.search(
        r"\d+ masked rows of \d+ to 512 tokens and \d+ views of \d+ to 512 tokens", capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "clear/base", "--gpus", "1"], "--config clear/base: no such recipe"),
        (["--config", "none.yaml", "--gpus", "1"], "--config none.yaml: no such file"),
        (["--config", "clear/base_256gpu", "model.layers=1", "--gpus", "1"], "model.layers"),
        (["--config", "clear/base_256gpu", "=", "--gpus", "1"], "--config clear/base_256gpu ="),
        (
            ["--config", "clear/base_256gpu", "criterion._name=sentence_prediction", "--gpus", "1"],
            "criterion sentence_pre",
        ),
        (
            ["--config", "clear/base_256gpu", "+model.checkpoint_activations=true", "--gpus", "1"],
            "model.checkpoint_act",
        ),
        (["--config", "clear/base_256gpu", "+criterion.guide=g.pt", "--gpus", "1"], "criterion.guide g.pt: is not"),
        (["--config", "clear/base_256gpu", "+model.attention_window=3", "--gpus", "1"], "--attention-window 3"),
        (["--config", "clear/base_256gpu", "optimizer._name=adafactor", "--gpus", "1"], "optimizer adafactor"),
        (["--config", "clear/base_256gpu", "+criterion.anchor_mlm=joint", "--gpus", "1"], "--anchor-mlm joint"),
        (["--config", "self_guided/sg_opt", "criterion.frozen_layers=14", "--gpus", "1"], "--frozen-layers 14"),
        (["--config", "self_guided/sg_opt", "criterion.guide_layers=13", "--gpus", "1"], "--guide-layers 13"),
        (["--config", "declutr/small", "task.views='span:min=9,max=8'", "--gpus", "1"], "span:min=9,max=8: min"),
        (
            ["--config", "clear/base_256gpu", "+model.encode_chunk_size=-1", "--gpus", "1"],
            "--encode-chunk-size -1: give",
        ),
        (
            ["--config", "clear/base_256gpu", "+model.encode_chunk_size=64*512", "--gpus", "1"],
            "--encode-chunk-size 64*512",
        ),
        (
            [
                "--config",
                "clear/base_256gpu",
                "criterion.contrastive_weight=0",
                "criterion.mlm_weight=0",
                "--gpus",
                "1",
            ],
            "nothing to learn",
        ),
        (["--config", "clear/base_256gpu", "task.augment=del-wrd", "--gpus", "1"], "del-wrd"),
        (["--config", "clear/base_256gpu", "model._name=roberta", "--gpus", "1"], "model._name roberta"),
        (
            ["--config", "clear/tiny", "++dataset.max_tokens=1024", "--gpus", "1"],
            "dataset.max_tokens 1024: is not estimated; give dataset.batch_size instead",
        ),
        (["--config", "clear/base_256gpu", "--gpus", "0"], "--gpus 0: must be 1 or more"),
        (["--config", "clear/base_256gpu", "--gpus", "1", "--mfu", "45"], "--mfu 45.0: must be 1 or less"),
        (["--config", "clear/base_256gpu", "--gpus", "1", "--memory", "nan"], "--memory nan: must be above 0"),
        (
            ["--config", "clear/base_256gpu", THIN, "--gpus", "1", "--memory", "0.5"],
            "--memory 0.5: a single text needs",
        ),
        (["--config", "clear/base_256gpu", "--gpus", "1", "--data-bin", "nowhere"], "--data-bin nowhere"),
        (["--config", "clear/base_256gpu", "--gpus", "1", "--json", "no/where.json"], "there is no folder no"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err
    assert len(captured.err.splitlines()) == 1


def test_a_curve_over_numbers_of_gpus(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    picture, file = tmp_path / "scaling.png", tmp_path / "plan.json"
    assert main([*BASE, THIN, "--gpus", "256", "--curve", str(picture), "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "4,096" in out and "assumed: the same MFU for every share, a ring at full bandwidth without latency" in out
    assert "efficiency = computing without recomputation / (computing + sending)" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "scaling.png", "scaling.svg"]
    curve = json.loads(file.read_text())["curve"]
    assert [point["gpus"] for point in curve] == [2**power for power in range(13)]
    assert {point["texts"] * point["gpus"] * point["update_freq"] for point in curve} == {8192}
    assert main([*BASE, "--gpus", "256", "--curve", str(picture)]) == 2
    assert "--curve" in capsys.readouterr().err
    flags = ["--gpus", "256", "--curve", str(picture), "--per-gpu", "--overwrite", "--json", str(file)]
    assert main(["plan", "--config", "simcse/unsupervised", THIN, *flags]) == 0
    assert {point["texts"] for point in json.loads(file.read_text())["curve"]} == {64}
    assert main([*BASE, "--gpus", "256", "--per-gpu"]) == 2
    assert "--per-gpu: has an effect only with --curve" in capsys.readouterr().err
