"""fairseq's own tasks, models and criterions train with the plugin as they do without it: equal to the bit."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT, binarize, run, sentences, tool
from tests.faults.commands import same

pytestmark = pytest.mark.slow

COMMON = (
    *"--cpu --optimizer adam --lr 1e-3 --batch-size 8 --log-format json --log-interval 1 --seed 3".split(),
    *"--no-epoch-checkpoints --num-workers 0 --required-batch-size-multiple 1".split(),
)
TINY = "--encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-attention-heads 2 --encoder-layers 1"
DECODER = "--decoder-embed-dim 16 --decoder-ffn-embed-dim 16 --decoder-attention-heads 2 --decoder-layers 1"
BLOCKS, SMOOTHED = "--tokens-per-sample 32", "--criterion label_smoothed_cross_entropy --label-smoothing 0.1"
ADAPTIVE = "--criterion adaptive_loss --adaptive-softmax-cutoff 20,40 --ddp-backend legacy_ddp"
LM = f"--task language_modeling {BLOCKS}"
MASKED = f"--arch roberta_base --criterion masked_lm {BLOCKS} {TINY}"
ROBERTA = f"mono --task masked_lm {MASKED}"
BART = f"--arch bart_base {TINY} {DECODER}"
LSTM = "--decoder-embed-dim 16 --decoder-hidden-size 16 --decoder-out-embed-dim 16 --decoder-layers 1"
FCONV = "--decoder-embed-dim 16 --decoder-layers [(16,3)]*2"
TRANSLATION = f"pairs --task translation {SMOOTHED}"
TRANSFORMER = f"{TRANSLATION} --arch transformer {TINY} {DECODER}"
CLASSES = f"--arch roberta_base --num-classes 2 {TINY}"
CASES = {
    "transformer_lm, two valid subsets": f"two {LM} --arch transformer_lm {DECODER} --valid-subset valid,valid1",
    "transformer_lm, combined subsets": f"two {LM} --arch transformer_lm {DECODER} --combine-valid-subsets",
    "fconv_lm": f"mono {LM} --arch fconv_lm {FCONV} {ADAPTIVE}",
    "roberta, update-freq 2": f"{ROBERTA} --update-freq 2",
    "roberta, without validation": f"{ROBERTA} --disable-validation",
    "roberta, fp16": f"{ROBERTA} --fp16 --fp16-no-flatten-grads",
    "roberta, memory-efficient fp16": f"{ROBERTA} --memory-efficient-fp16",
    "roberta, early stopping": f"{ROBERTA} --validate-interval-updates 1 --patience 1 --lr 10",
    "roberta, several languages": f"languages --task multilingual_masked_lm {MASKED}",
    "bart, denoising": f"mono --task denoising {BART} {BLOCKS} --criterion cross_entropy --mask 0.3 --mask-length span-poisson "
    "--replace-length 1 --permute-sentences 0 --data-buffer-size 0",
    "transformer": TRANSFORMER,
    "transformer, checkpointed activations": f"{TRANSFORMER} --checkpoint-activations",
    "transformer, resumed": f"{TRANSFORMER} --resumed",
    "lstm": f"{TRANSLATION} --arch lstm {LSTM} --encoder-embed-dim 16 --encoder-hidden-size 16",
    "sentence prediction": f"classes --task sentence_prediction {CLASSES} --criterion sentence_prediction",
    "sentence ranking": f"ranks --task sentence_ranking {CLASSES} --criterion sentence_ranking --max-positions 64",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, data_bin: Path) -> dict[str, Path]:
    """Data of fairseq-preprocess for every kind of task."""
    folder = tmp_path_factory.mktemp("stock")
    made = {name: folder / name for name in ("mono", "two", "pairs", "languages", "classes", "ranks")}
    for name in ("mono", "two"):
        shutil.copytree(data_bin, made[name])
    for suffix in ("bin", "idx"):
        shutil.copy(data_bin / f"valid.{suffix}", made["two"] / f"valid1.{suffix}")
    made["languages"].mkdir()
    shutil.copy(data_bin / "dict.txt", made["languages"])
    for language in ("de", "en"):
        shutil.copytree(data_bin, made["languages"] / language)
    lines = {
        split: [line for line in sentences(count, seed) if line]
        for split, count, seed in (("train", 60, 1), ("valid", 20, 2))
    }
    for split, texts in lines.items():
        (folder / f"{split}.en").write_text("\n".join(texts) + "\n")
        (folder / f"{split}.de").write_text("\n".join(" ".join(reversed(text.split())) for text in texts) + "\n")
        (folder / f"{split}.label").write_text("\n".join(str(number % 2) for number in range(len(texts))) + "\n")
    prefixes = ("--trainpref", folder / "train", "--validpref", folder / "valid", "--srcdict", data_bin / "dict.txt")
    languages = "--source-lang en --target-lang de --joined-dictionary".split()
    run(*tool("preprocess"), *languages, *prefixes, "--destdir", made["pairs"])
    for name, parts in (("classes", {"input0": "en"}), ("ranks", {"input0": "en", "input1": "en", "input2": "de"})):
        for part, suffix in parts.items():
            texts = {split: (folder / f"{split}.{suffix}").read_text().splitlines() for split in lines}
            binarize(made[name] / part, data_bin / "dict.txt", **texts)
        for split in lines:
            (made[name] / f"{split}.label").write_text((folder / f"{split}.label").read_text())
    labels = {split: (folder / f"{split}.label").read_text().splitlines() for split in lines}
    binarize(made["classes"] / "label", None, **labels)
    return made


# Figures of the time that a run takes.
TIMES = {"wps", "ups", "wall", "train_wall", "train_wps", "train_ups", "valid_wps"}


def outcome(data: Path, folder: Path, flags: list[str]) -> dict[str, Any]:
    """What a run leaves: its exit status, the figures that it logs, and the content of its checkpoint."""
    updates = (2, 4) if "--resumed" in flags else (3,)
    flags = [flag for flag in flags if flag != "--resumed"]
    output, status = "", 0
    # else stock fairseq cannot read its own checkpoints on torch >= 2.6, which the plugin repairs
    env = {**os.environ, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    for update in updates:
        command = (*tool("train"), data, *COMMON, *flags, "--max-update", str(update), "--save-dir", folder)
        result = run(*command, check=False, env=env)
        output, status = output + result.stdout + result.stderr, status or result.returncode
    figures = [
        (name, {key: value for key, value in json.loads(values).items() if key not in TIMES})
        for name, values in re.findall(r"\| ((?:train|valid)\w*) \| (\{.*\})", output)
    ]
    saved = sorted(path.name for path in folder.glob("*.pt"))
    assert saved, output[-2000:]
    state = torch.load(folder / "checkpoint_last.pt", weights_only=False)
    return {"status": status, "figures": figures, "files": saved, "state": state, "output": output}


@pytest.mark.parametrize("case", CASES)
def test_a_stock_run_is_the_same_with_the_plugin(case: str, folders: dict[str, Path], tmp_path: Path) -> None:
    kind, *flags = CASES[case].split()
    stock = outcome(folders[kind], tmp_path / "stock", flags)
    ours = outcome(folders[kind], tmp_path / "ours", [*flags, "--user-dir", str(ROOT / "fairseq_clear")])
    assert stock["status"] == 0 and stock["figures"], stock["output"][-2000:]
    for what in ("status", "files", "figures"):
        assert ours[what] == stock[what], ours["output"][-2000:]
    assert ours["state"].keys() == stock["state"].keys() and same(ours["state"]["model"], stock["state"]["model"])
