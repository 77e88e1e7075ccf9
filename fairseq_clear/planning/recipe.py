"""Builds a recipe's task, model, criterion and optimizer on synthetic text, on the meta device."""

import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import tasks
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.data import indexed_dataset
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.initialize import add_defaults
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn

from fairseq_clear import register
from fairseq_clear.augmentations.base import Symbols
from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.criterions.contrastive import ContrastiveCriterion
from fairseq_clear.errors import UserError
from fairseq_clear.files import hash_file
from fairseq_clear.models.pretrained_encoder import start_from_encoder
from fairseq_clear.planning.metering import Meter
from fairseq_clear.text.synonym_files import save_synonyms
from fairseq_clear.views.view_table import find_view_source

register()

RECIPES = Path(__file__).resolve().parent.parent.parent / "examples"
SYMBOLS = 6  # not in dict.txt: <s>, <pad>, </s>, <unk>, <mask> and <del>
EXAMPLES = 128  # items whose views are drawn; batches have their lengths
LINES = 16  # lines of a synthetic document
OPTIMIZERS = ("adam", "clear_adamw", "sgd")
# settings of a task that name files, or do not change the cost
UNREAD = {
    "data": "",
    "eval_sts": None,
    "eval_retrieval": None,
    "synonyms": None,
    "mask_whole_words": False,
    "mix": "",
    "mix_batches": "any",
}
DDP = ("pytorch_ddp", "c10d", "legacy_ddp", "no_c10d")


def compose_recipe(name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the sections of a recipe, as hydra composes them.

    Args:
        name: a .yaml file, or EXAMPLE/CONFIG for examples/EXAMPLE/config/CONFIG.yaml.
        overrides: such as ``+ablation=del_word`` or ``dataset.batch_size=16``; ``++`` for a setting that is not in the file.

    Raises:
        UserError: the file does not exist, or hydra rejects it or an override.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from yaml import YAMLError

    path = _find(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # fairseq is written for hydra 1.0
            with initialize_config_dir(config_dir=str(path.parent), version_base="1.1"):
                found = compose(path.stem, overrides=list(overrides))
        config = OmegaConf.to_container(found, resolve=True)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        cause = error.__cause__ or error
        raise UserError(f"--config {name} {' '.join(overrides)}: {' '.join(str(cause).split())}") from error
    sections = config if isinstance(config, dict) else {}
    missing = [section for section in ("task", "criterion", "model") if not isinstance(sections.get(section), dict)]
    if missing:
        raise UserError(f"--config {name}: has no section {missing[0]}; give a recipe such as clear/base_256gpu")
    return {str(section): settings for section, settings in sections.items()}


def _find(name: str) -> Path:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UserError(f"--config {name}: no such file")
        return path.resolve()
    example, _, config = name.partition("/")
    path = RECIPES / example / "config" / f"{config}.yaml"
    if not config or not path.is_file():
        known = sorted(f"{file.parent.parent.name}/{file.stem}" for file in RECIPES.glob("*/config/*.yaml"))
        raise UserError(f"--config {name}: no such recipe; give a .yaml file or one of {', '.join(known) or 'none'}")
    return path


def build_trainer(
    config: Mapping[str, Any], vocabulary: int, text_length: int | None = None
) -> tuple[Trainer, list[Any]]:
    """Build fairseq's trainer for a recipe on the meta device, and items of its training set.

    Args:
        config: sections of the configuration, as ``compose_recipe`` returns them.
        vocabulary: rows of the embedding, special symbols included.
        text_length: tokens of a text, or of a sentence if a text has several (default: ``task.tokens_per_sample``).

    Returns:
        The trainer, which has not built its optimizer yet, and the items, sorted by number of tokens.

    Raises:
        UserError: training rejects a setting, or its cost cannot be estimated.
    """
    cfg = _fairseq_config(config)
    with tempfile.TemporaryDirectory() as folder, _quiet():
        _make_data(Path(folder), cfg.task, int(cfg.model.get("max_positions") or 512), vocabulary, text_length)
        task = tasks.setup_task(cfg.task)
        with torch.device("meta"), Meter():
            model = task.build_model(cfg.model)
            criterion = task.build_criterion(cfg.criterion)
        for module in (model, criterion):  # the trainer would move them to its device
            module.to = partial(_in_place, module)
        task.load_dataset("train")
        trainer = Trainer(cfg, task, model, criterion)
        dataset = task.dataset("train")
        items = [dataset[index] for index in range(min(len(dataset), EXAMPLES))]
    return trainer, sorted(items, key=lambda item: dataset.collater([item])["ntokens"])


def _in_place(module: nn.Module, device: Any = None, dtype: torch.dtype | None = None) -> nn.Module:
    return module if dtype is None else type(module).to(module, dtype=dtype)


def _fairseq_config(config: Mapping[str, Any]) -> Any:
    """Complete the sections with fairseq's defaults, as fairseq-hydra-train does."""
    cfg = OmegaConf.structured(FairseqConfig)
    OmegaConf.set_struct(cfg, False)
    try:
        for name, section in config.items():
            if name in FairseqConfig.__dataclass_fields__:
                cfg[name] = section if cfg.get(name) is None else OmegaConf.merge(cfg[name], section)
        _check(cfg)
        start_from_encoder(cfg.model, cfg.checkpoint, cfg.task.get("allow_change") or "")
        # sgd reads its learning rate from its own section; schedules have no cost
        cfg.optimizer = {"lr": cfg.optimization.lr, **(cfg.optimizer or {"_name": OPTIMIZERS[0]})}
        cfg.lr_scheduler = {"_name": "fixed"}
        cfg.distributed_training.distributed_world_size = 1
        cfg.model.compile = False
        cfg.task = OmegaConf.merge({"_name": "clear_lm"}, cfg.task, UNREAD)
        add_defaults(cfg)
    except (OmegaConfBaseException, ValueError) as error:
        raise UserError(" ".join(str(error).split())) from None
    return cfg


def _check(cfg: Any) -> None:
    """Raise UserError for settings whose cost cannot be estimated."""

    def check(is_estimated: bool, what: str, remedy: str) -> None:
        if not is_estimated:
            raise UserError(f"{what}: is not estimated; {remedy}")

    criterion = REGISTRIES["criterion"]["registry"].get(cfg.criterion.get("_name"))
    known = criterion is not None and issubclass(criterion, ContrastiveCriterion | MaskedLmLoss)
    check(known, f"criterion {cfg.criterion.get('_name')}", "give masked_lm or one of this package")
    model, backend = str(cfg.model.get("_name")), cfg.distributed_training.ddp_backend
    is_ours = ARCH_MODEL_NAME_REGISTRY.get(model) == "clear_roberta"
    check(is_ours, f"model._name {model}", "give one of this package, such as clear_roberta_base")
    for setting in ("checkpoint_activations", "encoder_layerdrop", "quant_noise_pq"):
        check(not cfg.model.get(setting), f"model.{setting} {cfg.model.get(setting)}", "leave it out")
    check(not cfg.criterion.get("guide"), f"criterion.guide {cfg.criterion.get('guide')}", "leave it out")
    check(backend in DDP, f"distributed_training.ddp_backend {backend}", f"give one of {', '.join(DDP)}")
    check(not cfg.dataset.max_tokens, f"dataset.max_tokens {cfg.dataset.max_tokens}", "give dataset.batch_size instead")
    optimizer = cfg.optimizer.get("_name") if cfg.optimizer else OPTIMIZERS[0]
    check(optimizer in OPTIMIZERS, f"optimizer {optimizer}", f"give one of {', '.join(OPTIMIZERS)}")


def _make_data(folder: Path, cfg: Any, positions: int, vocabulary: int, text_length: int | None) -> None:
    """Write a data folder of random words, in lines of one length that are their own paraphrases, with a synonym table."""
    kind, step = find_view_source(cfg.views)
    cfg.data, cfg.tokens_per_sample = str(folder), min(cfg.tokens_per_sample, positions)
    length = max(min(text_length or cfg.tokens_per_sample, cfg.tokens_per_sample) - 1, 1)  # <s> is added later
    words = max(vocabulary - SYMBOLS, 1)
    (folder / "dict.txt").write_text("".join(f"w{word} 1\n" for word in range(words)))
    ids = np.random.default_rng(0).integers(4, 4 + words, (EXAMPLES, LINES, length), dtype=np.int32)
    ids[:, :, -1] = 2  # </s>
    _write_lines(folder, ids if kind.needs_documents else ids[:, :1], kind.needs_documents, vocabulary)
    names = [f"text{number}" for number in range(len(step.values))]
    if kind.values:
        cfg.views = f"{step.name}:{','.join(names)}"
    (folder / "paraphrase").mkdir()
    for name in names:
        (folder / "paraphrase" / name).symlink_to(folder)
    if cfg.get("hard_negatives"):
        names = [f"negatives{number}" for number in range(len(cfg.hard_negatives.split(",")))]
        cfg.hard_negatives = ",".join(names)
        for name in names:
            (folder / "paraphrase" / name).mkdir()
            _write_lines(folder / "paraphrase" / name, ids[::-1, :1].copy(), False, vocabulary)
    if build_augmentation(cfg.augment, Symbols(0, 2, 1, 5, 3, 4), allow_missing_synonyms=True).needs_words:
        table = SynonymTable.build({(word,): [(word,)] for word in range(4, 4 + words)}, np.ones(5 + words, np.bool_))
        known = hash_file(folder / "dict.txt")
        save_synonyms(folder / "synonyms.npz", table, vocabulary_hash=known, source="", source_hash="")


def _write_lines(folder: Path, documents: Any, parted: bool, vocabulary: int) -> None:
    """Write documents (D, L, tokens) as a training set, with a blank line after each if ``parted``."""
    builder = indexed_dataset.make_builder(str(folder / "train.bin"), "mmap", vocab_size=vocabulary)
    for document in documents:
        for line in (*document, *([np.array([2])] if parted else [])):
            builder.add_item(torch.from_numpy(line))
    builder.finalize(str(folder / "train.idx"))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence fairseq's log inside the block, and raise the UserError that a task logs before it exits."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    except SystemExit as error:
        raise error.__cause__ or error from None
    finally:
        logging.disable(before)
