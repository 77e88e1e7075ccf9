"""Every recipe composes, and trains at the smallest size."""

import math
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler.cosine_lr_scheduler import CosineLRSchedule, CosineLRScheduleConfig
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from fairseq_clear.augmentations.base import Symbols
from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.tasks.setting_ranges import check_numbers
from tests.conftest import ROOT, load_file, run, tool
from tests.training import FIRST, write_synonyms

pytestmark = pytest.mark.slow

CONFIGS = sorted(ROOT.glob("examples/*/config/*.yaml"))
# Changes to the first file of their example's folder that they can be laid over: +ablation=sg
CHANGES = sorted(ROOT.glob("examples/*/config/*/*.yaml"))
BASE = {
    "cert": "cert",
    "clear": "base_256gpu",
    "declutr": "small",
    "mirror_bert": "sentence",
    "self_guided": "sg_opt",
    "simcse": "unsupervised",
    "views": "neighbor_slice",
}
SMALL = (
    *("common.fp16=false", "common.cpu=true", "model._name=clear_roberta_tiny", "model.max_positions=32"),
    *("task.tokens_per_sample=32", "dataset.batch_size=4", "dataset.num_workers=0", "dataset.disable_validation=true"),
    *("optimization.max_update=2", "lr_scheduler.warmup_updates=1", "lr_scheduler.total_num_update=10"),
)


@cache
def compose(path: Path, *overrides: str) -> dict[str, Any]:
    """The whole configuration, as hydra makes it of the file; nothing is run."""
    with initialize_config_dir(config_dir=str(path.parent), version_base="1.1"):
        found = hydra_compose(path.stem, overrides=list(overrides))
    return OmegaConf.to_container(found, resolve=False)


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


@pytest.mark.parametrize("path", CHANGES, ids=lambda path: f"{path.parent.parent.parent.name}/{path.stem}")
def test_an_ablation_changes_what_it_says_and_nothing_else(path: Path) -> None:
    group, example = path.parent.name, path.parent.parent.parent.name
    base = path.parent.parent / f"{BASE[example]}.yaml"
    changed = compose(base, f"+{group}={path.stem}")
    before, after = flat(compose(base)), flat(changed)
    check_numbers(OmegaConf.create(changed))
    stated = flat(OmegaConf.to_container(OmegaConf.load(path)))
    assert stated
    assert {name: value for name, value in after.items() if before.get(name) != value} == stated


# CLEAR's Tables 1 to 3 and sections 4.1 and 4.2 in full; None is base_256gpu itself. What is deleted, swapped, substituted is
# section 4.1's: 70 % of the tokens, 5 spans of 5 %, 5 pairs of spans of 5 %, 30 % of the tokens.
CLEAR_VIEWS = {
    None: "del-span:spans=5,ratio=0.05+reorder:pairs=5,ratio=0.05",
    "del_word": "del-word:ratio=0.7",
    "del_span": "del-span:spans=5,ratio=0.05",
    "subs_del_word": "subs:ratio=0.3+del-word:ratio=0.7",
    "subs_del_span": "subs:ratio=0.3+del-span:spans=5,ratio=0.05",
    "del_word_reorder": "del-word:ratio=0.7+reorder:pairs=5,ratio=0.05",
    "subs_del_word_reorder": "subs:ratio=0.3+del-word:ratio=0.7+reorder:pairs=5,ratio=0.05",
    "subs": "subs:ratio=0.3",
    "reorder": "reorder:pairs=5,ratio=0.05",
    "subs_reorder": "subs:ratio=0.3+reorder:pairs=5,ratio=0.05",
    **{f"del_word_{share}": f"del-word:ratio=0.{share // 10}" for share in (30, 40, 50, 60, 80, 90)},
}
CLEAR_BASELINES = {"roberta": {}, "double_batch": {"dataset.batch_size": 64}, "double_mlm": {"task.mlm_copies": 2}}


@pytest.mark.parametrize("setting", [None, "wiki103", "wiki103_sweep"])
def test_every_row_of_clear_differs_from_roberta_in_what_is_studied_alone(setting: str | None) -> None:
    base = ROOT / "examples/clear/config/base_256gpu.yaml"
    shared = [] if setting is None else [f"+setting={setting}"]

    def differences(name: str | None) -> dict[str, Any]:
        row = flat(compose(base, *shared, *([] if name is None else [f"+ablation={name}"])))
        return {key: row.get(key) for key in row.keys() | roberta.keys() if row.get(key) != roberta.get(key)}

    roberta = flat(compose(base, *shared, "+ablation=roberta"))
    assert roberta["criterion.contrastive_weight"] == 0  # which is masked_lm, to the bit
    own = roberta["task.augment"]  # of no consequence there
    for name, views in CLEAR_VIEWS.items():
        build_augmentation(views, Symbols(0, 2, 1, 5, 4))
        studied = {"criterion.contrastive_weight": 1.0, "task.augment": views}
        assert differences(name) == {key: value for key, value in studied.items() if value != own}
    for name, studied in CLEAR_BASELINES.items():
        assert differences(name) == studied
    assert {path.stem for path in base.parent.glob("ablation/*.yaml")} == {*CLEAR_VIEWS, *CLEAR_BASELINES} - {None}


def test_every_row_that_is_measured_is_a_row_of_clear() -> None:
    """A row of measure.py names an ablation, or the augmentation of base_256gpu itself."""
    measured = {row for row, _ in load_file(ROOT / "examples/clear/measure.py", "clear_measure").ROWS.values()}
    own = CLEAR_VIEWS[None]
    assert measured == ({*CLEAR_VIEWS, *CLEAR_BASELINES} - {None}) | {own}


@pytest.mark.parametrize(
    ("base", "other", "settings"),
    [
        ("self_guided/sg_opt", "bt", "task.views criterion._name criterion.objective criterion.guide_pooling "
         "criterion.guide_layers"),
        ("cert/cert", "batch_negatives", "criterion._name criterion.queue_size model.key_momentum"),
    ],
)  # fmt: skip
def test_baselines_differ_in_what_is_studied_alone(base: str, other: str, settings: str) -> None:
    path = ROOT / "examples" / base.replace("/", "/config/")
    one, two = (flat(compose(path.with_name(f"{name}.yaml"))) for name in (path.name, other))
    assert {name for name in one.keys() | two.keys() if one.get(name) != two.get(name)} == set(settings.split())


def test_the_learning_rate_of_cert_falls_over_half_a_cosine() -> None:
    config = compose(ROOT / "examples/cert/config/cert.yaml")
    assert config["optimizer"]["lr"] == config["optimization"]["lr"] == [4e-5]
    assert config["optimization"]["max_update"] == config["optimization"]["max_epoch"] * -(-8550 // 16)
    settings = CosineLRScheduleConfig(lr=[4e-5], max_update=config["optimization"]["max_update"])
    for name, value in config["lr_scheduler"].items():
        assert name in ("_name", *vars(settings))
        setattr(settings, name, value)
    optimizer = FairseqOptimizer(None)
    optimizer._optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = CosineLRSchedule(settings, optimizer)
    rates = [schedule.step_update(update) for update in (0, 53500 // 4, 53500 // 2, 53500 - 1)]
    expected = [4e-5 * (1 + math.cos(math.pi * part)) / 2 for part in (0, 0.25, 0.5, 1)]
    assert rates == pytest.approx(expected, abs=1e-10)


@pytest.fixture(scope="module")
def pairs(paired_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data with every aligned text that a recipe names, and synonyms: each word's is the next."""
    folder = tmp_path_factory.mktemp("pairs") / "bin"
    shutil.copytree(paired_bin, folder)
    for name in ("positive", "negative", "de", "zh"):
        shutil.copytree(folder / "paraphrase" / "bt", folder / "paraphrase" / name)
    symbols = len(Dictionary.load(str(folder / "dict.txt")))
    write_synonyms(folder, {(word,): [(word + 1,)] for word in range(FIRST, symbols - 1)}, symbols)
    return folder


# Changes that another one, or the base, makes too: of a number, of the parts of a chain, of one of two settings that both have.
ALIKE = (
    *("tau_", "lambda_", "opt", "roberta", "anchors_", "positives_", "share_", "easy", "del_", "subs_", "double_batch"),
    *("wiki103_sweep", "bt_sg_opt", "sg", "base", "adjacent", "neighbor", "slice"),
)


def runs() -> list[tuple[Path, str | None]]:
    """Every recipe, and the changes that differ, laid over their base."""
    return [(path, None) for path in CONFIGS] + [
        (path.parent.parent / f"{BASE[path.parent.parent.parent.name]}.yaml", f"+{path.parent.name}={path.stem}")
        for path in CHANGES
        if not path.stem.startswith(ALIKE)
    ]


@pytest.mark.parametrize(
    ("path", "change"), runs(), ids=lambda value: value.stem if isinstance(value, Path) else str(value)
)
def test_recipe_trains(path: Path, change: str | None, pairs: Path, start: Path, tmp_path: Path) -> None:
    needed, config = [f"task.data={pairs}"], compose(path, *([change] if change else []))
    check_numbers(OmegaConf.create(config))  # below, some are others
    views = flat(config).get("task.views")
    if str(views).startswith("neighbor"):  # the documents here have seven sentences
        needed.append("task.views=neighbor")
    if str(views).startswith("span"):  # of 512 tokens, which the model here has no positions for
        needed.append("task.views='" + views.replace("min=32", "min=3").replace("max=512", "max=8") + "'")
    if "finetune_from_model" in path.read_text():
        needed += [f"checkpoint.finetune_from_model={start}", "checkpoint.patience=-1"]
        needed += ["++model.layer_norm_eps=1e-5", "++model.encoder_layers=2", "checkpoint.best_checkpoint_metric=loss"]
        needed.append("++checkpoint.maximize_best_checkpoint_metric=false")
    if "eval_sts" in path.read_text():
        needed.append("task.eval_sts=null")
    if change in ("+ablation=senteval", "+ablation=bt_frozen"):  # the recipe's encoder has twelve layers
        needed.append(f"criterion.guide_layers='{'1-2' if change.endswith('senteval') else 2}'")
    run(
        *(sys.executable, "-c", "from fairseq_cli.hydra_train import cli_main; cli_main()"),
        *("--config-dir", path.parent, "--config-name", path.stem, *([change] if change else []), *needed),
        *(f"++{setting}" for setting in SMALL if "cosine" not in path.read_text() or "total_num" not in setting),
        *(f"checkpoint.save_dir={tmp_path / 'run'}", f"hydra.run.dir={tmp_path / 'outputs'}"),
    )
    assert (tmp_path / "run" / "checkpoint_last.pt").exists()


@pytest.fixture(scope="module")
def start(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the size that recipes are cut down to, for those that begin with one."""
    folder = tmp_path_factory.mktemp("start")
    run(
        *(*tool("train"), pairs, "--user-dir", ROOT / "fairseq_clear", "--save-dir", folder, "--cpu"),
        *("--task", "clear_lm", "--criterion", "masked_lm", "--max-update", "1", "--sample-break-mode", "eos"),
        *("--tokens-per-sample", "32", "--max-positions", "32", "--batch-size", "4", "--disable-validation"),
        *("--arch", "clear_roberta_tiny", "--optimizer", "adam", "--lr", "0.001"),
    )
    return folder / "checkpoint_last.pt"
