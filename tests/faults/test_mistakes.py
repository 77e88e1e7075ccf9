"""Mistakes on the command line of a training run: exit status 2, one line with the flag and the remedy, nothing written.

Each is made by flags of ``fairseq-train``, and those of BY_HYDRA by the same settings of ``fairseq-hydra-train``.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT, tool
from tests.conftest import run as call
from tests.faults import commands
from tests.faults.commands import NT_XENT, fairseq_hydra_train, fairseq_train, run, same, state_of, train_and_read

pytestmark = pytest.mark.slow

CONFIG = """# @package _group_
common: {{user_dir: PLUGIN, cpu: true, log_format: none, seed: 1}}
task: {{_name: clear_lm, data: {data}, sample_break_mode: eos, tokens_per_sample: 32, augment: del-word}}
model:
  {{_name: clear_roberta_tiny, pooling: mean, encoder_embed_dim: 32, encoder_ffn_embed_dim: 64, encoder_attention_heads: 2}}
criterion: {{_name: clear_nt_xent}}
dataset: {{batch_size: 8, num_workers: 0}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
optimization: {{lr: [0.003], max_update: 2}}
checkpoint: {{save_dir: {save_dir}}}
""".replace("PLUGIN", str(ROOT / "fairseq_clear"))


SECTIONS = {
    "common": "fp16 bf16 log_file",
    "task": "augment mix mix_batches allow_change",
    "model": "pooling poling projection_activation quant_noise_pq quant_noise_scalar",
    "dataset": "batch_size valid_subset",
    "checkpoint": "finetune_from_model restore_file",
    "ema": "store_ema",
    "criterion": "_name",
}

# Flags -> what the error line must contain. Those of BY_FLAGS have no counterpart in hydra, or one that hydra itself reports;
# those of LATER are found after the data are read, when --save-dir exists and is empty.
BY_FLAGS = {
    "--agument none": ("agument: no such", "did you mean", "augment"),
    "--augment del-word reorder": ("reorder: not a flag", "quote a value"),
    "--criterion clear_ntxent": ("--criterion clear_ntxent", "did you mean clear_nt_xent?"),
    "--lr fast": ("--lr: invalid", "fast"),
    "--augment": ("--augment: expected one argument",),
    "--lr-scheduler polynomial_decay --total-num-update nan": ("--total-num-update nan: ", "finite"),
    "--distributed-world-size 2": ("--distributed-world-size 2: this machine has 0 GPUs; start with torchrun --nproc",),
    "--lr-scheduler polynomial_decay --max-update 0 --max-epoch 1": ("--total-num-update: is required", "--max-update"),
}
BY_BOTH = {
    "--poling cls": ("poling: no such", "did you mean", "pooling"),
    "--augment del-wrod": ("--augment", "del-wrod", "del-word"),
    "--views smae": ("--views", "smae", "same"),
    "--projection-activation swish": ("swish: no such choice",),
    "--pooling meen": ("--pooling meen", "valid are cls, mean"),
    "--encoder-layerdrop 0.5 --pooling first-last": ("--pooling first-last: --encoder-layerdrop",),
    "--quant-noise-pq 0.1": ("--quant-noise-pq: makes wrong gradients", "leave it out"),
    "--quant-noise-scalar 0.1": ("--quant-noise-scalar: makes wrong gradients", "leave it out"),
    "--fp16": ("--fp16: on a CPU", "--fp16-no-flatten-grads"),
    "GPU --bf16": ("--bf16", "no GPU", "--cpu"),
    "GPU --memory-efficient-fp16": ("--fp16", "no GPU", "--cpu"),
    "--log-file no/such/log": ("--log-file no/such/log: cannot be written", "its folder"),
    "--ddp-backend fully_sharded": ("--ddp-backend fully_sharded: ", "pytorch_ddp"),
    "--finetune-from-model gone.pt": ("--finetune-from-model gone.pt: no such file",),
    "--write-checkpoints-asynchronously": ("--write-checkpoints-asynchronously: ", "leave it out"),
    "--store-ema": ("--store-ema: averages the embeddings", "leave it out"),
    "--use-bmuf": ("--use-bmuf: ", "leave it out"),
    "--zero-sharding os": ("--zero-sharding: ", "leave it out"),
    "--heartbeat-timeout 60": ("--heartbeat-timeout: ", "leave it out"),
    "--continue-once gone.pt": ("--continue-once gone.pt: no such file",),
    "--bf16 --update-freq 4,2": ("--update-freq [4, 2]: ", "--fp16-scale-window"),
    f"--finetune-from-model {__file__} --reset-optimizer --restore-file a.pt": (
        ("test_mistakes.py: starts a new run; leave out --reset-optimizer and --restore-file",)
    ),
    "--batch-size 0": ("--batch-size 0: ", "1 or more"),  # others: tests/tasks/test_setting_ranges.py
    "--best-checkpoint-metric contrastive_accuracy": ("contrastive_accuracy: ", "--maximize-best-checkpoint-metric"),
    "--eval-sts gone.tsv": ("gone.tsv: cannot read it",),
    "--augment subs": ("synonyms.npz", "fairseq-clear synonyms"),
    "--valid-subset vaild": ("Dataset not found: vaild",),
    "--views paraphrase:de": ("--views paraphrase", "de"),
    "--restore-file gone.pt": ("--restore-file gone.pt: no such",),
    "--mix gone:1,lost:2": ("--mix gone:1,lost:2: does not name", ":1,gone:1,lost:2"),
    "--mix-batches one": ("--mix-batches one: has no effect without --mix",),
    "--key-encoder frozen": ("--key-encoder frozen", "clear_self_guided"),
    "--allow-change speed": ("--allow-change speed: there is", "did you mean seed?"),
}
LATER = (
    *("--augment del-wrod", "--augment subs", "--views smae", "--views paraphrase:de", "--pooling meen"),
    *("--eval-sts gone.tsv", "--valid-subset vaild", "--restore-file gone.pt", "--key-encoder frozen"),
)


# One of each place where a mistake is found; others are found there too.
BY_HYDRA = (
    *(
        "--poling cls",
        "--projection-activation swish",
        "--augment del-wrod",
        "--pooling meen",
        "--fp16",
        "GPU --bf16",
        "--batch-size 0",
    ),
    *("--augment subs", "--log-file no/such/log", "--finetune-from-model gone.pt", "--mix-batches one"),
    *("--restore-file gone.pt", "--store-ema", "--valid-subset vaild"),
    *("--mix gone:1,lost:2", "--allow-change speed"),
)


def overrides(flags: str) -> list[str]:
    """The same settings as hydra's overrides."""
    section = {name: section for section, names in SECTIONS.items() for name in names.split()}
    found = []
    for flag in flags.removeprefix("GPU ").removeprefix("--").split(" --"):
        name, _, value = flag.replace("criterion", "_name").replace("-", "_", flag.split()[0].count("-")).partition(" ")
        found.append(f'++{section[name]}.{name}="{value}"' if value else f"++{section[name]}.{name}=true")
    return found


def made(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")} - {"log", "run.yaml", "outputs"}


def check(flags: str, code: int, folder: Path, parts: Sequence[str] = ()) -> None:
    """Check that the command ended with status 2 and one error line, which has all ``parts``, and wrote nothing."""
    text = (folder / "log").read_text()
    said = [line for line in text.splitlines() if re.search(r"ERROR|^fairseq-train: ", line)]
    assert code == 2 and "Traceback" not in text and "usage:" not in text, text[-3000:]
    assert len(said) == 1 and all(part in said[0] for part in parts or (BY_FLAGS | BY_BOTH)[flags]), said
    left = {name for name in made(folder) if not name.startswith("outputs")}
    assert left <= ({"run"} if flags in LATER else set()), left


@pytest.mark.parametrize("flags", BY_FLAGS | BY_BOTH)
def test_by_flags(flags: str, data_bin: Path, tmp_path: Path) -> None:
    def work() -> int:
        if "GPU" in flags:
            commands.TRAINING = tuple(flag for flag in commands.TRAINING if flag != "--cpu")
        words = flags.removeprefix("GPU ").split()
        return fairseq_train(data_bin, tmp_path / "run", "--max-update", "2", *words, recipe=NT_XENT)

    check(flags, run(work, tmp_path / "log"), tmp_path)


def by_hydra(content: str, folder: Path, *words: str) -> int:
    (folder / "run.yaml").write_text(content)
    return run(lambda: fairseq_hydra_train(folder / "run.yaml", *words), folder / "log")


@pytest.mark.parametrize("flags", BY_HYDRA)
def test_by_hydra(flags: str, data_bin: Path, tmp_path: Path) -> None:
    words = [*overrides(flags), *(["common.cpu=false"] if "GPU" in flags else [])]
    check(flags, by_hydra(CONFIG.format(data=data_bin, save_dir=tmp_path / "run"), tmp_path, *words), tmp_path)


@pytest.mark.parametrize("setting", ["task.data", "checkpoint.finetune_from_model"])
def test_a_setting_that_a_recipe_leaves_open(setting: str, data_bin: Path, tmp_path: Path) -> None:
    code = by_hydra(CONFIG.format(data=data_bin, save_dir=tmp_path / "run"), tmp_path, f'++{setting}="???"')
    check(setting, code, tmp_path, (f"{setting}: is required; give {setting}=VALUE",))


# Task, architecture, criterion and settings, of which one does not fit the others -> what the error line must contain.
ILL_FITTING = {
    "clear_lm roberta_base clear_nt_xent": ("--arch roberta_base", "give --arch clear_"),
    "clear_lm bart_base masked_lm": ("--arch bart_base", "give --arch clear_"),
    "clear_lm transformer_lm clear_nt_xent": ("--arch transformer_lm", "give another"),
    "clear_lm clear_roberta_tiny sentence_prediction": ("--criterion sentence_prediction", "give"),
    "clear_lm roberta_base sentence_ranking": ("--criterion sentence_ranking", "give"),
    "masked_lm clear_roberta_tiny clear_self_guided": ("--task masked_lm", "give --task clear_lm"),
    "language_modeling clear_roberta_tiny masked_lm": ("--task language_modeling", "give --task masked_lm"),
    "sentence_prediction clear_roberta_tiny clear_nt_xent": ("--criterion clear_nt_xent", "give another"),
    "clear_lm roberta_base masked_lm task.eval_sts=sts": ("--arch roberta_base", "--eval-sts needs"),
    "clear_lm roberta_base clear_nt_xent criterion.contrastive_weight=0 criterion.frozen_layers=2": (
        ("--frozen-layers 2: needs --task clear_lm and an --arch clear_*",)
    ),
    "masked_lm clear_roberta_tiny clear_nt_xent criterion.contrastive_weight=0 criterion.regularizer_weight=0.1": (
        ("--regularizer-weight 0.1: needs --task clear_lm and an --arch clear_*",)
    ),
}
ALSO_BY_HYDRA = ("clear_lm transformer_lm", "masked_lm")  # found by fairseq, and by a part of the run


@pytest.mark.parametrize("names", ILL_FITTING)
def test_parts_that_do_not_fit(names: str, data_bin: Path, tmp_path: Path) -> None:
    task, arch, criterion, *settings = names.split()
    words = ["--user-dir", ROOT / "fairseq_clear", "--task", task, "--arch", arch, "--criterion", criterion, "--cpu"]
    for setting in settings:
        name, value = setting.partition(".")[2].split("=")
        words += [f"--{name.replace('_', '-')}", value]
    rest = [*"--optimizer adam --lr 0.1 --batch-size 8 --max-update 1 --save-dir".split(), tmp_path / "run"]

    def work() -> int:
        from fairseq_cli.train import cli_main

        sys.argv = ["fairseq-train", str(data_bin), *map(str, words + rest)]
        return commands.exit_code(cli_main)

    check(names, run(work, tmp_path / "log"), tmp_path, ILL_FITTING[names])
    if not names.startswith(ALSO_BY_HYDRA):
        return
    (tmp_path / "log").unlink()
    content = (
        f"# @package _group_\ncommon: {{user_dir: {ROOT / 'fairseq_clear'}, cpu: true}}\n"
        f"task: {{_name: {task}, data: {data_bin}}}\nmodel: {{_name: {arch}}}\ncriterion: {{_name: {criterion}}}\n"
        "dataset: {batch_size: 8}\noptimizer: {_name: adam}\nlr_scheduler: {_name: fixed}\n"
        f"optimization: {{lr: [0.1], max_update: 1}}\ncheckpoint: {{save_dir: {tmp_path / 'run'}}}\n"
    )
    code = by_hydra(content, tmp_path, *(f"++{one}" for one in settings))
    check(names, code, tmp_path, ILL_FITTING[names])


def test_both_commands_train_the_same_without_a_mistake(data_bin: Path, tmp_path: Path) -> None:
    """The negative control of all mistakes."""
    code = by_hydra(CONFIG.format(data=data_bin, save_dir=tmp_path / "hydra"), tmp_path)
    assert code == 0, (tmp_path / "log").read_text()[-3000:]
    code, log = train_and_read(data_bin, tmp_path / "run", "--max-update", "2", recipe=NT_XENT)
    assert code == 0, log[-3000:]
    assert same(*(state_of(tmp_path / name / "checkpoint_last.pt") for name in ("hydra", "run")))


def test_a_schedule_ends_with_the_run(data_bin: Path, tmp_path: Path) -> None:
    """--total-num-update defaults to --max-update, as it does in a configuration file."""
    flags = ("--lr-scheduler", "polynomial_decay", "--max-update", "4", "--log-interval", "1", "--log-format", "json")
    _, log = train_and_read(data_bin, tmp_path / "run", *flags, recipe=NT_XENT)
    rates = [float(rate) for rate in re.findall(r'train_inner .*"lr": "([\d.e-]+)"', log)]
    assert rates == pytest.approx([0.003 * (4 - update) / 4 for update in (1, 2, 3, 4)], abs=1e-6)


def test_a_folder_that_cannot_be_written(data_bin: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code = run(lambda: fairseq_train(data_bin, tmp_path / "file" / "run", recipe=NT_XENT), tmp_path / "log")
    text = (tmp_path / "log").read_text()
    assert (code, text.count(f"--save-dir {tmp_path}/file/run: cannot write there"), "Traceback" in text) == (
        2,
        1,
        False,
    )


def test_help_lists_the_flags_of_the_chosen_classes() -> None:
    chosen = "--task clear_lm --arch clear_roberta_tiny --criterion clear_nt_xent --optimizer adam".split()
    plugin = ("--user-dir", ROOT / "fairseq_clear")
    shown = call(*tool("train"), *plugin, *chosen, "--help").stdout
    for flag in "--augment --views --pooling --encoder-layers --temperature --adam-betas --lr".split():
        assert shown.count(f"  {flag} ") == 1, flag
    done = call(*tool("train"), "data", *plugin, "--task", "clear_lm", check=False)  # the control: without --help
    assert done.returncode == 2 and "--arch: is required; give an architecture" in done.stderr
