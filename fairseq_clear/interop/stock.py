"""Writes checkpoints in fairseq's format: from imported weights, and as stock ``roberta``, which needs no plugin."""

import argparse
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models.roberta import RobertaModel
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_clear import register
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.checkpoints import LoadedModel
from fairseq_clear.files import hash_file
from fairseq_clear.interop.hf_format import window_of
from fairseq_clear.interop.parity import Parity, compare_states
from fairseq_clear.models.clear_roberta import ClearRobertaModel
from fairseq_clear.models.encoder_stack import FAIRSEQ_EPS
from fairseq_clear.models.encoding import evaluating
from fairseq_clear.models.state_dicts import BACKBONE, VOCABULARY_ROWS
from fairseq_clear.modules.pooling import masked_mean
from fairseq_clear.patches.checkpoint_files import read_checkpoint, save
from fairseq_clear.text.data_folders import CLEAR_JSON, DICTIONARY, recorded_tokenizer

register()

CHECKPOINT = "model.pt"
ROWS, LENGTH = 4, 64
VALUES = (
    *("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads"),
    *("activation_fn", "dropout", "attention_dropout", "activation_dropout"),
)
SWITCHES = ("encoder_normalize_before", "untie_weights_roberta")


def export_fairseq(loaded: LoadedModel, symbols: list[str], data_bin: Path, folder: Path) -> Parity:
    """Write ``model.pt`` (roberta, masked_lm), ``dict.txt`` and the tokenizer's files; compare with stock fairseq.

    ``symbols`` is the vocabulary without ``<del>``.

    Raises:
        UserError: the encoder has parts that stock RoBERTa does not have.
    """
    args = loaded.model.args
    if args.segments > 1:
        raise UserError(
            f"--format fairseq: stock roberta has no segments, the checkpoint {args.segments}; export --format hf"
        )
    if window := window_of(loaded.model):
        raise UserError(
            f"--format fairseq: stock roberta attends to all, the checkpoint to --attention-window {window}; export --format hf"
        )
    flags: dict[str, Any] = {name.replace("_", "-"): getattr(args, name) for name in VALUES}
    flags |= {name.replace("_", "-"): True for name in SWITCHES if getattr(args, name, False)}
    flags["max-positions"] = int(loaded.model.max_positions())
    cfg = settings_of(Path(), "masked_lm", "roberta", flags)
    # Not a Namespace: without the plugin, torch does not load checkpoints that contain one.
    plain = str | int | float | bool | None
    cfg.model = OmegaConf.create({name: value for name, value in vars(cfg.model).items() if isinstance(value, plain)})
    weights = {
        name: value[: len(symbols)] if name in VOCABULARY_ROWS else value
        for name, value in loaded.model.state_dict().items()
        if name.startswith(BACKBONE[:2])
    }
    write_checkpoint(folder / CHECKPOINT, cfg, weights, hash_file(data_bin / DICTIONARY))
    files = [DICTIONARY]
    if (data_bin / CLEAR_JSON).is_file():
        files += [CLEAR_JSON, *recorded_tokenizer(data_bin)[1]]
    for name in files:
        if Path(name).name != name:
            raise UserError(
                f"{data_bin / CLEAR_JSON}: names {name}; put the tokenizer's files next to it, and name them so"
            )
        shutil.copyfile(data_bin / name, folder / name)
    eps, hint = args.layer_norm_eps, ""
    if eps != FAIRSEQ_EPS:
        hint = f": stock roberta has no flag for LayerNorm's epsilon, which is {eps:g} here and {FAIRSEQ_EPS:g} there"
    return compare_stock(loaded, folder / CHECKPOINT, folder, hint)


def compare_stock(loaded: LoadedModel, checkpoint: Path, folder: Path, hint: str = "") -> Parity:
    """Compare a checkpoint with stock fairseq's model of the same weights, on random ids from the vocabulary in ``folder``."""
    state = read_checkpoint(str(checkpoint))
    settings = state["cfg"].model
    settings = dict(settings) if OmegaConf.is_config(settings) else vars(settings)
    dictionary = Dictionary.load(str(folder / DICTIONARY))
    dictionary.add_symbol("<mask>")
    task = argparse.Namespace(source_dictionary=dictionary)
    stock = RobertaModel.build_model(argparse.Namespace(**settings), task).eval()
    stock.load_state_dict(state["model"], strict=True)
    length = min(LENGTH, int(loaded.model.max_positions()))
    tokens = torch.randint(
        dictionary.nspecial, len(dictionary), (ROWS, length), generator=torch.Generator().manual_seed(1)
    )
    tokens[:, 0] = dictionary.bos()
    for row in range(ROWS):  # texts of different lengths
        end = max(2, length // (row + 1))
        tokens[row, end - 1], tokens[row, end:] = dictionary.eos(), dictionary.pad()
    is_token = tokens.ne(dictionary.pad())
    with evaluating(loaded.model), torch.no_grad():
        own = loaded.model.hidden_states(tokens)
        last, extra = stock.encoder.extract_features(tokens, return_all_hiddens=True)
    other = [*(state.transpose(0, 1) for state in extra["inner_states"][:-1]), last]
    embeddings = (masked_mean(own[-1], is_token) - masked_mean(last, is_token)).abs().max().item()
    return Parity(compare_states(own, other, is_token), embeddings, "stock fairseq's roberta, mean pooling", hint)


def settings_of(data: Path, task: str, arch: str, flags: dict[str, Any]) -> Any:
    """Return the configuration of a training run with these model flags and defaults otherwise."""
    positions = str(flags.get("max-positions", 2))
    command = [str(data), "--task", task, "--arch", arch, "--criterion", "masked_lm", "--optimizer", "adam"]
    command += ["--tokens-per-sample", positions, "--sample-break-mode", "eos"]
    for name, value in flags.items():
        command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    args = options.parse_args_and_arch(options.get_training_parser(), command)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # fairseq is written for hydra 1.0
        return convert_namespace_to_omegaconf(args)


def build_model(cfg: Any, dictionary: Dictionary) -> ClearRobertaModel:
    """Build the model of a configuration; its initial weights are always the same, and no global state changes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model: ClearRobertaModel = ClearRobertaModel.build_model(
            cfg.model, SimpleNamespace(source_dictionary=dictionary)
        )
    return model.eval()


def write_checkpoint(path: Path, cfg: Any, weights: dict[str, Tensor], vocabulary_hash: str) -> None:
    """Save a checkpoint as fairseq-train does before its first update, without the optimizer's state."""
    names = {"criterion_name": "MaskedLmLoss", "optimizer_name": "FairseqAdam"}
    iterator = {"epoch": 1, "iterations_in_epoch": 0}
    state = {
        "args": None,
        "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "model": weights,
        "criterion": None,
        "optimizer_history": [{**names, "lr_scheduler_state": {"best": None}, "num_updates": 0}],
        "last_optimizer_state": None,
        "task_state": {"vocabulary_hash": vocabulary_hash},
        "extra_state": {"train_iterator": iterator, "metrics": {}, "previous_training_time": 0.0},
    }
    save(state, path)
