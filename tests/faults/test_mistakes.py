"""Mistakes on the command line of a training run: exit status 2, one line with the flag and the remedy, nothing written.

Each is made by flags of ``fairseq-train`` and, where it is a setting, by the same setting of ``fairseq-hydra-train``.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT, tool
from tests.conftest import run as call
from tests.faults.commands import NT_XENT, fairseq_hydra_train, fairseq_train, run

pytestmark = pytest.mark.slow

CONFIG = """# @package _group_
common: {{user_dir: {plugin}, cpu: true, log_format: none, seed: 1}}
task: {{_name: clear_lm, data: {data}, sample_break_mode: eos, tokens_per_sample: 32, augment: del-word}}
model:
  {{_name: clear_roberta_tiny, pooling: mean, encoder_embed_dim: 32, encoder_ffn_embed_dim: 64, encoder_attention_heads: 2}}
criterion: {{_name: clear_nt_xent}}
dataset: {{batch_size: 8, num_workers: 0}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
optimization: {{lr: [0.003], max_update: 2}}
checkpoint: {{save_dir: {save_dir}}}
"""


@dataclass(frozen=True)
class Mistake:
    """Wrong flags, the same as hydra overrides (empty if hydra itself reports it), and what the error line must contain.

    ``later`` marks mistakes that are found after the data are read, when ``--save-dir`` exists and is empty.
    """

    flags: str
    overrides: str
    said: tuple[str, ...]
    later: bool = False


MISTAKES = {
    "unknown flag": Mistake("--agument none", "++task.agument=none", ("agument: no such", "did you mean", "augment")),
    "unknown model setting": Mistake(
        "--poling cls", "++model.poling=cls", ("poling: no such", "did you mean", "pooling")
    ),
    "stray word": Mistake("--augment del-word reorder", "", ("reorder: not a flag", "quote a value")),
    "unknown criterion": Mistake(
        "--criterion clear_ntxent", "", ("--criterion clear_ntxent", "did you mean clear_nt_xent?")
    ),
    "unknown arch": Mistake(
        "--arch clear_roberta_tine", "", ("--arch clear_roberta_tine", "did you mean clear_roberta_tiny?")
    ),
    "unknown task": Mistake("--task clear_ml", "", ("--task clear_ml", "did you mean clear_lm?")),
    "not a number": Mistake("--lr fast", "", ("--lr: invalid", "fast")),
    "value missing": Mistake("--augment", "", ("--augment: expected one argument",)),
    "augmentation": Mistake(
        "--augment del-wrod", "task.augment=del-wrod", ("--augment", "del-wrod", "del-word"), later=True
    ),
    "views": Mistake("--views smae", "++task.views=smae", ("--views", "smae", "same"), later=True),
    "pooling": Mistake("--pooling meen", "model.pooling=meen", ("--pooling meen", "valid are cls, mean"), later=True),
    "fp16 without a GPU": Mistake("--fp16", "++common.fp16=true", ("--fp16", "no GPU", "--cpu"), later=False),
    "bf16 without a GPU": Mistake("--bf16", "++common.bf16=true", ("--bf16", "no GPU", "--cpu")),
    "fp16 on a CPU": Mistake("--fp16", "++common.fp16=true", ("--fp16: on a CPU", "--fp16-no-flatten-grads")),
    "log file": Mistake("--log-file no/such/log", "++common.log_file=no/such/log", ("--log-file no/such/log: there",)),
    "start missing": Mistake(
        "--finetune-from-model gone.pt", "checkpoint.finetune_from_model=gone.pt", ("--finetune-from-model gone.pt",)
    ),
    "start is a folder": Mistake(
        "--finetune-from-model /", "checkpoint.finetune_from_model=/", ("--finetune-from-model /: is a folder", ".pt")
    ),
    "no batch size": Mistake("--batch-size -", "dataset.batch_size=null", ("--batch-size and --max-tokens: neither",)),
    "rate": Mistake("--lr -0.001", "optimization.lr=[-0.001]", ("--lr -0.001: out of range; give",)),
    "not finite": Mistake(
        "--lr-scheduler polynomial_decay --total-num-update nan", "", ("--total-num-update nan: ", "finite")
    ),
    "no end of the schedule": Mistake(
        "--lr-scheduler polynomial_decay --max-update 0 --max-epoch 1",
        "",
        ("--total-num-update: is required", "--max-update"),
    ),
    "layers": Mistake("--projection-layers -1", "++model.projection_layers=-1", ("--projection-layers -1: ", "give")),
    "batch": Mistake("--batch-size 0", "dataset.batch_size=0", ("--batch-size 0: ", "1 or more")),
    "temperature": Mistake(
        "--temperature 0", "++criterion.temperature=0", ("--temperature 0: out of range", "above 0")
    ),
    "seed": Mistake("--seed -1", "common.seed=-1", ("--seed -1: ", "0 to 4294967295")),
    "length": Mistake("--tokens-per-sample 0", "task.tokens_per_sample=0", ("--tokens-per-sample 0: ", "3 or more")),
    "positions": Mistake(
        "--max-positions 16", "++model.max_positions=16", ("--max-positions 16: ", "--tokens-per-sample 32")
    ),
    "metric without data": Mistake(
        "--best-checkpoint-metric sts_spearman --maximize-best-checkpoint-metric",
        "checkpoint.best_checkpoint_metric=sts_spearman checkpoint.maximize_best_checkpoint_metric=true",
        ("--best-checkpoint-metric sts_spearman: nothing measures it", "--eval-sts"),
    ),
    "retrieval without data": Mistake(
        "--best-checkpoint-metric retrieval_mrr --maximize-best-checkpoint-metric",
        "checkpoint.best_checkpoint_metric=retrieval_mrr checkpoint.maximize_best_checkpoint_metric=true",
        ("--best-checkpoint-metric retrieval_mrr: nothing measures it", "--eval-retrieval"),
    ),
    "metric in the wrong direction": Mistake(
        "--best-checkpoint-metric contrastive_accuracy",
        "checkpoint.best_checkpoint_metric=contrastive_accuracy",
        ("--best-checkpoint-metric contrastive_accuracy: higher is better", "--maximize-best-checkpoint-metric"),
    ),
    "cosine in the wrong direction": Mistake(
        "--best-checkpoint-metric positive_cosine",
        "checkpoint.best_checkpoint_metric=positive_cosine",
        ("--best-checkpoint-metric positive_cosine: higher is better", "--maximize-best-checkpoint-metric"),
    ),
    "metric that is not logged": Mistake(
        "--best-checkpoint-metric contrastive_los",
        "checkpoint.best_checkpoint_metric=contrastive_los",
        ("--best-checkpoint-metric contrastive_los: this run does not log it", "did you mean contrastive_loss?"),
    ),
    "metric of a term left out": Mistake(
        "--best-checkpoint-metric ppl --mlm-weight 0",
        "checkpoint.best_checkpoint_metric=ppl ++criterion.mlm_weight=0",
        ("--best-checkpoint-metric ppl: this run does not log it",),
    ),
    "negatives without a contrastive term": Mistake(
        "--hard-negatives gone --contrastive-weight 0",
        "++task.hard_negatives=gone ++criterion.contrastive_weight=0",
        ("--hard-negatives: there is no contrastive term",),
    ),
    "positives that nothing changes": Mistake(
        "--augment-texts positives --augment none",
        "++task.augment_texts=positives ++task.augment=none",
        ("--augment-texts positives: --augment none changes no text",),
    ),
    "spans of a document without spans": Mistake(
        "--same-document-negatives exclude",
        "++task.same_document_negatives=exclude",
        ("--same-document-negatives exclude",),
    ),
    "copies of anchors that are masked once": Mistake(
        "--mlm-copies 2 --anchor-mlm joint --views span:min=2,max=8",
        "++task.mlm_copies=2 ++criterion.anchor_mlm=joint ++task.views=span",
        ("--mlm-copies: --anchor-mlm joint masks the anchors once",),
    ),
    "pairs missing": Mistake("--eval-sts gone.tsv", "++task.eval_sts=gone.tsv", ("gone.tsv",), later=True),
    "no synonyms": Mistake(
        "--augment subs", "task.augment=subs", ("synonyms.npz", "fairseq-clear synonyms"), later=True
    ),
    "other split": Mistake("--valid-subset vaild", "++dataset.valid_subset=vaild", ("vaild",), later=True),
    "no paraphrases": Mistake(
        "--views paraphrase:de", "++task.views=paraphrase:de", ("--views paraphrase", "de"), later=True
    ),
    "restore file": Mistake(
        "--restore-file gone.pt", "checkpoint.restore_file=gone.pt", ("--restore-file gone.pt: no such",), later=True
    ),
    "mix without the data folder": Mistake(
        "--mix gone:1,lost:2", '++task.mix="gone:1,lost:2"', ("--mix gone:1,lost:2: does not name", ":1,gone:1,lost:2")
    ),
    "batches of a mix without a mix": Mistake(
        "--mix-batches one", "++task.mix_batches=one", ("--mix-batches one: has an effect only with --mix",)
    ),
    "key encoder": Mistake(
        "--key-encoder frozen", "++model.key_encoder=frozen", ("--key-encoder frozen", "clear_self_guided"), True
    ),
    "unknown change": Mistake("--allow-change speed", "++task.allow_change=speed", ("--allow-change speed",)),
}


def made(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")} - {"log", "run.yaml", "outputs"}


def check(mistake: Mistake, code: int, folder: Path) -> None:
    """Check that the command ended with status 2 and one error line, and wrote nothing."""
    text = (folder / "log").read_text()
    said = [line for line in text.splitlines() if re.search(r"ERROR|^fairseq-train: ", line)]
    assert code == 2, text[-3000:]
    assert "Traceback" not in text and "usage:" not in text
    assert len(said) == 1, said
    assert all(part in said[0] for part in mistake.said), said[0]
    left = made(folder)
    assert {name for name in left if not name.startswith("outputs")} <= ({"run"} if mistake.later else set()), left


@pytest.mark.parametrize("name", MISTAKES)
def test_by_flags(name: str, data_bin: Path, tmp_path: Path) -> None:
    mistake = MISTAKES[name]
    flags = ["--max-update", "2", *mistake.flags.split()]
    if name == "no batch size":
        flags = ["--max-update", "2"]

    def work() -> int:
        import tests.faults.commands as commands

        if "GPU" in name:
            commands.TRAINING = tuple(flag for flag in commands.TRAINING if flag != "--cpu")
        if name == "no batch size":
            at = commands.TRAINING.index("--batch-size")
            commands.TRAINING = commands.TRAINING[:at] + commands.TRAINING[at + 2 :]
        return fairseq_train(data_bin, tmp_path / "run", *flags, recipe=NT_XENT)

    check(mistake, run(work, tmp_path / "log"), tmp_path)


@pytest.mark.parametrize("name", [name for name, mistake in MISTAKES.items() if mistake.overrides])
def test_by_hydra(name: str, data_bin: Path, tmp_path: Path) -> None:
    mistake, config = MISTAKES[name], tmp_path / "run.yaml"
    config.write_text(CONFIG.format(plugin=ROOT / "fairseq_clear", data=data_bin, save_dir=tmp_path / "run"))
    overrides = [*mistake.overrides.split(), *(["common.cpu=false"] if "GPU" in name else [])]
    check(mistake, run(lambda: fairseq_hydra_train(config, *overrides), tmp_path / "log"), tmp_path)


def test_both_commands_train_without_a_mistake(data_bin: Path, tmp_path: Path) -> None:
    """The negative control of all mistakes."""
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG.format(plugin=ROOT / "fairseq_clear", data=data_bin, save_dir=tmp_path / "hydra"))
    assert run(lambda: fairseq_hydra_train(config), tmp_path / "log") == 0, (tmp_path / "log").read_text()[-3000:]
    code = run(lambda: fairseq_train(data_bin, tmp_path / "run", "--max-update", "2", recipe=NT_XENT), tmp_path / "log")
    assert code == 0, (tmp_path / "log").read_text()[-3000:]
    assert (tmp_path / "hydra" / "checkpoint_last.pt").is_file() and (tmp_path / "run" / "checkpoint_last.pt").is_file()


def test_a_schedule_ends_with_the_run(data_bin: Path, tmp_path: Path) -> None:
    """--total-num-update defaults to --max-update, as it does in a configuration file."""
    flags = ("--lr-scheduler", "polynomial_decay", "--max-update", "4", "--log-interval", "1", "--log-format", "json")
    assert run(lambda: fairseq_train(data_bin, tmp_path / "run", *flags, recipe=NT_XENT), tmp_path / "log") == 0
    rates = [float(rate) for rate in re.findall(r'train_inner .*"lr": "([\d.e-]+)"', (tmp_path / "log").read_text())]
    assert rates == pytest.approx([0.003 * (4 - update) / 4 for update in (1, 2, 3, 4)], abs=1e-6)


def test_a_folder_that_cannot_be_written(data_bin: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code = run(lambda: fairseq_train(data_bin, tmp_path / "file" / "run", recipe=NT_XENT), tmp_path / "log")
    text = (tmp_path / "log").read_text()
    assert (
        code == 2
        and "Traceback" not in text
        and text.count(f"--save-dir {tmp_path / 'file' / 'run'}: cannot write there") == 1
    )


def test_no_architecture(tmp_path: Path) -> None:
    done = call(*tool("train"), tmp_path, "--user-dir", ROOT / "fairseq_clear", "--task", "clear_lm", check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "--arch: is required; give an architecture, such as clear_roberta_base" in done.stderr
