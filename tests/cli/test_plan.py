"""``fairseq-clear plan`` as a user types it."""

import json

import pytest

from fairseq_clear.cli.main import main

BASE = ["plan", "--config", "clear/base_256gpu"]


def test_the_papers_run(tmp_path, capsys):
    file = tmp_path / "plan.json"
    assert main([*BASE, "--gpus", "256", "--memory", "32", "--json", str(file)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    for line in ("texts of an update", "8,192 of 512 tokens", "16,382", "500,000", "reduce_scatter", "8 d^2 + 4 d f"):
        assert line in captured.out
    assert max(map(len, captured.out.splitlines())) < 160
    content = json.loads(file.read_text())
    assert (content["texts"], content["update_freq"], content["chunk"]) == (32, 1, 0)
    assert content["global_batch"] == 8192 and content["memory"]["total"] < 32 * 2**30
    assert main([*BASE, "--gpus", "256", "--json", str(file)]) == 2
    assert "exists already; add --overwrite" in capsys.readouterr().err
    assert main([*BASE, "--gpus", "8", "--global-batch", "8192", "--json", str(file), "--overwrite"]) == 0
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


def test_the_corpus_of_a_data_folder(tmp_path, capsys):
    (tmp_path / "shard0").mkdir()
    (tmp_path / "shard0" / "dict.txt").write_text("a 1\nb 1\n")
    counts = {"documents": 1, "sentences": 1000, "tokens": 511_000_000, "unknown": 0}
    (tmp_path / "clear.json").write_text(json.dumps({"shards": ["shard0"], "splits": {"train": counts}}))
    assert main([*BASE, "--gpus", "256", "--data-bin", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    # a million texts of 511 tokens and <s> are 123 updates an epoch
    assert "vocabulary 8)" in out and f"{500_000 / 123:,.1f} epochs" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "clear/base", "--gpus", "1"], "--config clear/base: no such recipe"),
        (["--config", "none.yaml", "--gpus", "1"], "--config none.yaml: no such file"),
        (["--config", "clear/base_256gpu", "model.layers=1", "--gpus", "1"], "model.layers"),
        (["--config", "clear/base_256gpu", "=", "--gpus", "1"], "--config clear/base_256gpu ="),
        (["--config", "clear/base_256gpu", "common.fp16=false", "+common.amp=true", "--gpus", "1"], "common.amp"),
        (["--config", "cert/cert", "--gpus", "1"], "criterion clear_moco: only"),
        (["--config", "views/neighbor_slice", "--gpus", "1"], "model.attention_window"),
        (["--config", "declutr/small", "--gpus", "1"], "criterion.anchor_mlm joint"),
        (["--config", "clear/base_256gpu", "task.augment=del-wrd", "--gpus", "1"], "task.augment"),
        (["--config", "clear/base_256gpu", "model._name=roberta", "--gpus", "1"], "model._name roberta"),
        (["--config", "clear/base_256gpu", "--gpus", "0"], "--gpus 0: must be 1 or more"),
        (["--config", "clear/base_256gpu", "--gpus", "1", "--mfu", "45"], "--mfu 45: is a share"),
        (["--config", "clear/base_256gpu", "--gpus", "1", "--memory", "nan"], "--memory nan: must be above 0"),
        (["--config", "clear/base_256gpu", "--gpus", "1", "--memory", "2"], "--memory 2: one text alone needs"),
        (["--config", "clear/base_256gpu", "--gpus", "1", "--data-bin", "nowhere"], "--data-bin nowhere"),
        (["--config", "clear/base_256gpu", "--gpus", "1", "--json", "no/where.json"], "there is no folder no"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err
    assert len(captured.err.splitlines()) == 1
