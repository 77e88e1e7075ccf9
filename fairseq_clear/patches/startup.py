"""Patches of a run's start: parsing flags, joining torchrun, checking settings, and the summary of the run."""

import argparse
import difflib
import importlib
import itertools
import logging
import logging.config
import math
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NoReturn

import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.logging import metrics
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import ConfigKeyError, InterpolationKeyError
from torch.multiprocessing.spawn import ProcessExitedException

from fairseq_clear import lifecycle
from fairseq_clear.errors import UserError, one_line
from fairseq_clear.lifecycle import CheckedPart, RunTask
from fairseq_clear.patches import original, stopping

logger = logging.getLogger("fairseq_clear")

HELP = {"-h", "--help"}
TORCHRUN = ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT")


def import_user_module(args: Any) -> None:
    """Replaces ``import_user_module``, which imports a package once: also patches later commands, and registers the plugin."""
    stock = original("fairseq.utils:import_user_module")
    import_user_module.memo = getattr(import_user_module, "memo", getattr(stock, "memo", set()))  # type: ignore[attr-defined]
    stock(args)
    lifecycle.register()


def parse_args_and_arch(
    parser: argparse.ArgumentParser,
    input_args: list[str] | None = None,
    parse_known: bool = False,
    suppress_defaults: bool = False,
    modify_parser: Any = None,
) -> Any:
    """Parse fairseq's arguments. An error is one line that names the nearest flag or value, with exit status 2.

    ``--help`` is printed only when the parser has the flags of the chosen task, model, criterion and optimizer; fairseq prints
    it too early.
    """

    def fail(message: str) -> NoReturn:
        sys.stderr.write(f"{os.path.basename(sys.argv[0])}: {_explain(message, parser)}\n")
        raise SystemExit(2)

    parser.error = fail  # type: ignore[method-assign]
    stock = original("fairseq.options:parse_args_and_arch")
    words = list(sys.argv[1:] if input_args is None else input_args)
    if not HELP.isdisjoint(words):
        input_args = [word for word in words if word not in HELP]
        modify_parser = _print_help_at_second_call(modify_parser)
    try:
        return stock(parser, input_args, parse_known, suppress_defaults, modify_parser)
    except UserError as error:  # of --encoder-from
        fail(str(error))
    except RuntimeError as error:
        if error.args:
            raise
        # fairseq raises without a message
        fail("--arch: is required; give an architecture, such as clear_roberta_base")


def _print_help_at_second_call(modify: Any) -> Callable[[argparse.ArgumentParser], None]:
    """Return a ``modify_parser`` that prints the help and exits at its second call, when fairseq's parser is complete."""
    calls = itertools.count(1)

    def print_help(parser: argparse.ArgumentParser) -> None:
        if modify is not None:
            modify(parser)
        if next(calls) == 2:
            parser.print_help()
            raise SystemExit(0)

    return print_help


def flags_of(kind: Any) -> list[argparse.Action]:
    """The flags that a class of a registry adds to the command."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, add_help=False)
    if hasattr(kind, "add_args"):
        kind.add_args(parser)
    elif hasattr(kind, "__dataclass"):
        gen_parser_from_dataclass(parser, getattr(kind, "__dataclass")())
    return parser._actions


def _explain(message: str, parser: argparse.ArgumentParser) -> str:
    """Shorten argparse's message and suggest a flag or value that the user may have meant."""
    if unknown := re.fullmatch(r"unrecognized arguments: (.*)", message, flags=re.S):
        words = unknown[1].split()
        flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        if not flags:
            return f"{' '.join(words)}: not a flag and not the data folder; quote a value that has spaces"
        return f"{flags[0]}: no such flag of this command{nearest(flags[0], parser._option_string_actions)}"
    choice = re.fullmatch(r"argument ([^:]+): invalid choice: '(.*?)' \(choose from (.*)\)", message, flags=re.S)
    if choice:
        flag = max(choice[1].split("/"), key=len)
        given, known = choice[2], [name.strip("'") for name in choice[3].split(", ")]
        return f"{flag} {given}: no such choice{nearest(given, known)}"
    return " ".join(message.replace("argument ", "", 1).split())


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, if there is one."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else "; --help lists them"


def convert_namespace_to_omegaconf(args: argparse.Namespace) -> Any:
    """Convert the arguments. ``--total-num-update`` defaults to ``--max-update``, and a wrong type is a one-line error."""
    if getattr(args, "total_num_update", 0) is None:  # the default in polynomial_decay's config, which it then rejects
        if not args.max_update:
            _fail(f"--total-num-update: is required by --lr-scheduler {args.lr_scheduler} without --max-update")
        args.total_num_update = args.max_update
    try:
        return original("fairseq_cli.train:convert_namespace_to_omegaconf")(args)
    except InterpolationKeyError as error:
        _fail(_ill_fitting(error, args.task, args.arch, args.criterion))
    except (ConfigCompositionException, ValueError) as error:
        if wrong := re.match(r"Error merging override \w+\.(\w+)=(.*)", str(error)):
            _fail(f"--{wrong[1].replace('_', '-')} {wrong[2]}: not a valid value of this setting; see --help")
        for name, value in vars(args).items():
            if str(value).lower() in {"nan", "inf", "-inf"}:
                _fail(f"--{name.replace('_', '-')} {value}: give a finite number")
        raise


def _ill_fitting(error: InterpolationKeyError, task: str, arch: str, criterion: str) -> str:
    """Describe a setting that one part of a run takes from another part, which lacks it."""
    parts = f"--task {task} --arch {arch} --criterion {criterion}"
    return f"{parts}: do not fit together ({one_line(error)}); give another of them"


def call_main(cfg: Any, main: Any, **kwargs: Any) -> Any:
    """Call fairseq's main with torchrun's workers; pass signals on to workers that fairseq starts."""
    try:
        join_torchrun(cfg)
        _check_devices(cfg.distributed_training)
    except UserError as error:
        _fail(error)
    handlers = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    try:
        workers = cfg.distributed_training
        if workers.distributed_world_size > 1 and not workers.distributed_no_spawn and torch.cuda.device_count() > 1:
            main = _importable(main)
            for number in handlers:
                signal.signal(number, _forward_signal)
        return original("fairseq.distributed.utils:call_main")(cfg, main, **kwargs)
    except ProcessExitedException as error:  # the workers have logged the reason
        raise SystemExit(error.exit_code) from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _importable(main: Any) -> Any:
    """Return the function as its module has it: workers import what ``python -m`` runs once more, and only patch the module."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if main.__module__ != "__main__" or spec is None:
        return main
    return getattr(importlib.import_module(spec.name), main.__name__)


def _forward_signal(number: int, frame: FrameType | None) -> None:
    for worker in multiprocessing.active_children():
        if worker.pid is not None:
            os.kill(worker.pid, number)


def join_torchrun(cfg: Any) -> None:
    """Take rank, size and address from torchrun's environment, gloo on CPUs; UserError if the flags name another size."""
    workers = cfg.distributed_training
    size = os.environ.get("WORLD_SIZE", "1")
    if torch.distributed.is_initialized() or size == "1":
        return
    given, is_by_flags = workers.distributed_world_size, workers.distributed_init_method is not None
    if str(given) != size and (is_by_flags or given != max(1, torch.cuda.device_count())):
        raise UserError(f"--distributed-world-size {given}: WORLD_SIZE is {size}; unset it, or leave the flag out")
    if is_by_flags:
        return
    if missing := [name for name in TORCHRUN if name not in os.environ]:
        raise UserError(f"WORLD_SIZE={size}: {' and '.join(missing)} not set; start with torchrun, or unset WORLD_SIZE")
    with open_dict(cfg):
        workers.distributed_init_method = "env://"
        workers.distributed_world_size, workers.distributed_rank = int(size), int(os.environ["RANK"])
        # a launcher may show each worker one GPU alone
        workers.device_id = int(os.environ.get("LOCAL_RANK", 0)) % max(1, torch.cuda.device_count())
        workers.distributed_no_spawn = True
        if cfg.common.cpu or not torch.cuda.is_available():
            workers.distributed_backend, workers.device_id = "gloo", 0


def _check_devices(workers: Any) -> None:
    """UserError if fairseq would start more workers than there are GPUs, which ends in an AssertionError."""
    devices, wanted = torch.cuda.device_count(), workers.distributed_world_size
    is_elsewhere = workers.distributed_init_method is not None or workers.distributed_port > 0
    if wanted > max(1, devices) and not is_elsewhere and not all(name in os.environ for name in TORCHRUN):
        start = f"torchrun --nproc-per-node {wanted}"
        raise UserError(f"--distributed-world-size {wanted}: this machine has {devices} GPUs; start with {start}")


def add_defaults(cfg: Any) -> None:
    """Replaces ``add_defaults``, which completes the settings: also checks a run of the plugin, before anything is written.

    ``fairseq-train`` and ``fairseq-hydra-train`` both call it first, after they have imported the plugin.
    """
    merge_defaults(cfg)
    try:
        join_torchrun(cfg)
        if cfg.distributed_training.distributed_init_method == "env://" and not torch.distributed.is_initialized():
            distributed_utils.distributed_init(cfg)  # fairseq-hydra-train imports the plugin too late for this
        parts = _parts_of_plugin(cfg)
        if parts:
            _check(cfg, parts)
    except UserError as error:
        _fail(error, is_first=cfg.distributed_training.distributed_rank in (0, None))
    if parts:
        _open_log_file(cfg)
    stopping.listen()


def _open_log_file(cfg: Any) -> None:
    """Let ``--log-file`` get all messages, each once: fairseq adds another handler of its metrics at every epoch."""
    if "job_logging_cfg" in cfg:  # hydra's, which fairseq would apply later
        if distributed_utils.is_master(cfg.distributed_training):
            config: Any = OmegaConf.to_container(cfg.job_logging_cfg)
            logging.config.dictConfig(config)
        with open_dict(cfg):
            del cfg.job_logging_cfg
    if cfg.common.log_file and distributed_utils.is_master(cfg.distributed_training):
        try:
            file = logging.FileHandler(cfg.common.log_file)
        except OSError as error:
            what = f"cannot be written ({error.strerror}); make its folder, or name another file"
            _fail(f"--log-file {cfg.common.log_file}: {what}")
        if logging.root.handlers:
            file.setFormatter(logging.root.handlers[0].formatter)
        logging.root.addHandler(file)
    cfg.common.log_file = None


def _parts_of_plugin(cfg: Any) -> list[type[CheckedPart]]:
    """The model, the task and the criterion of a run, as far as they are the plugin's; a run of stock fairseq has none."""
    registries = ((cfg.model, ARCH_MODEL_REGISTRY), (cfg.task, TASK_REGISTRY), (cfg.criterion, CRITERION_REGISTRY))
    kinds = [registry.get(getattr(settings, "_name", None)) for settings, registry in registries]
    return [kind for kind in kinds if kind is not None and issubclass(kind, CheckedPart)]


def merge_defaults(cfg: Any) -> None:
    """Complete hydra's settings. An unknown setting of the task, criterion or optimizer is a one-line error."""
    try:
        original("fairseq.dataclass.initialize:add_defaults")(cfg)
        OmegaConf.to_container(cfg, resolve=True)
    except InterpolationKeyError as error:
        _fail(_ill_fitting(error, cfg.task._name, cfg.model._name, cfg.criterion._name))
    except ConfigKeyError as error:
        _fail(_unknown_setting(cfg, error))


def _fail(error: UserError | str, *, is_first: bool = True) -> NoReturn:
    """Log an error, on the first worker only because all workers find the same one, and exit with status 2."""
    is_alone = os.environ.get("WORLD_SIZE", "1") == "1"  # RANK may be of another job then
    if is_first and (is_alone or os.environ.get("RANK", "0") == "0"):
        logger.error("%s", error)
    raise SystemExit(2)


def _unknown_setting(cfg: Any, error: ConfigKeyError) -> str:
    key, kind = str(error.key), error.object_type
    section = next((name for name in cfg if key in (cfg[name] if hasattr(cfg[name], "keys") else ())), "?")
    known = getattr(kind, "__dataclass_fields__", {})
    return f"{section}.{key}: no such setting{nearest(key, known)}"


def _check(cfg: Any, parts: list[type[CheckedPart]]) -> None:
    """Check the settings of a run of the plugin; ``parts`` check their own, and whether they fit the others."""
    _check_given(cfg)
    common, checkpoint = cfg.common, cfg.checkpoint
    for kind in ("fp16", "bf16"):  # as fairseq-train does, and fairseq-hydra-train does not
        common[kind] = common[kind] or common[f"memory_efficient_{kind}"]
    on_cpu = common.cpu or not (common.tpu or torch.cuda.is_available())
    if on_cpu and not common.cpu:
        for flag in ("fp16", "bf16", "amp"):
            if common[flag]:
                raise UserError(f"--{flag}: torch finds no GPU; train on the CPU with --cpu and without --{flag}")
        logger.warning("torch finds no GPU on this machine: training on the CPU (--cpu)")
    if on_cpu and common.fp16 and not (common.fp16_no_flatten_grads or common.memory_efficient_fp16):
        raise UserError("--fp16: on a CPU it needs --fp16-no-flatten-grads; or leave it out, which is faster there")
    start = checkpoint.finetune_from_model
    if start and not PathManager.isfile(start):
        raise UserError(f"--finetune-from-model {start}: no such file; give a checkpoint (.pt)")
    if start and (flags := stopping.start_flags(checkpoint)):
        raise UserError(f"--finetune-from-model {start}: starts a new run; leave out {' and '.join(flags)}")
    workers, frequencies = cfg.distributed_training, cfg.optimization.update_freq
    if (backend := workers.ddp_backend) in ("fully_sharded", "slowmo"):
        raise UserError(f"--ddp-backend {backend}: was never tried with this plugin; give pytorch_ddp, or leave it out")
    for flag, given, why in (
        ("--use-bmuf", cfg.optimization.use_bmuf, "trains nothing with --bf16, and was never tried with this plugin"),
        ("--zero-sharding", workers.zero_sharding != "none", "was never tried with this plugin"),
        ("--heartbeat-timeout", workers.heartbeat_timeout > 0, "would stop the run as Ctrl-C does"),
        ("--store-ema", cfg.ema.store_ema, "averages the embeddings, which the output shares, twice per update"),
    ):
        if given:
            raise UserError(f"{flag}: {why}; leave it out")
    if checkpoint.continue_once and not PathManager.isfile(checkpoint.continue_once):
        raise UserError(f"--continue-once {checkpoint.continue_once}: no such file; leave it out to start from scratch")
    if (common.fp16 or common.bf16) and len(frequencies) > 1 and common.fp16_scale_window is None:
        raise UserError(f"--update-freq {frequencies}: of several epochs, needs --fp16-scale-window in half precision")
    if checkpoint.write_checkpoints_asynchronously:
        raise UserError("--write-checkpoints-asynchronously: a killed run would leave half a checkpoint; leave it out")
    model = ARCH_MODEL_REGISTRY.get(getattr(cfg.model, "_name", None))
    if model in parts and OmegaConf.is_config(cfg.model):  # of hydra, for which fairseq ignores unknown names
        known = {action.dest for action in flags_of(model)} | {"_name", "arch"}
        for key in set(cfg.model) - known:
            raise UserError(f"model.{key}: no such setting{nearest(key, known)}")
        for action in flags_of(model):
            value = cfg.model.get(action.dest)
            if action.choices and value is not None and value not in action.choices:
                raise UserError(f"model.{action.dest} {value}: no such choice{nearest(str(value), action.choices)}")
    for part in parts:
        part.check_run(cfg)


def _check_given(cfg: Any) -> None:
    """Raise UserError for a setting that a recipe leaves open (``???``) and that the command does not give."""
    if getattr(cfg.model, "encoder_from", None) and OmegaConf.is_missing(cfg.checkpoint, "finetune_from_model"):
        cfg.checkpoint.finetune_from_model = None  # encoder_from takes its place
    for section in ("task", "checkpoint"):
        for name in cfg[section] if OmegaConf.is_config(cfg[section]) else ():
            if OmegaConf.is_missing(cfg[section], name):
                raise UserError(f"{section}.{name}: is required; give {section}.{name}=VALUE")


def train(cfg: Any, trainer: Any, task: Any, epoch_itr: Any) -> tuple[list[float | None], bool]:
    """Replaces ``train``: logs a summary before the first epoch. A run that is complete only validates and saves.

    A run that ``--patience`` has stopped does nothing. A run that is out of ``--stop-time-hours`` is complete.
    """
    if isinstance(task, RunTask) and not getattr(trainer, "_clear_has_begun", False):
        trainer._clear_has_begun = True
        task.begin(trainer)
    if stopping.has_stopped_early(cfg):
        return [None], True
    if cfg.dataset.curriculum:
        # a loader keeps the order of the epoch that it was made for, shuffled or not
        epoch_itr.reuse_dataloader = False
    limits = cfg.optimization
    is_out_of_time = 0 < limits.stop_time_hours < trainer.cumulative_training_time() / 3600
    if trainer.get_num_updates() < (limits.max_update or math.inf) and not is_out_of_time:
        return original("fairseq_cli.train:train")(cfg, trainer, task, epoch_itr)
    epoch_itr.next_epoch_itr(fix_batches_to_gpus=cfg.distributed_training.fix_batches_to_gpus)
    subsets = cfg.dataset.valid_subset.split(",")
    with metrics.aggregate("train"):
        return stopping.validate_and_save(cfg, trainer, task, epoch_itr, subsets, False)
