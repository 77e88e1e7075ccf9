"""Everything in fairseq that the plugin replaces, wraps or works around, in one table."""

from fairseq_clear.patches.replacing import Patch, install

__all__ = ["PATCHES", "Patch", "apply"]

PATCHES = (
    Patch(
        "",
        "compatibility:silence_known_warnings",
        "warnings that a user cannot act on",
        "tests/patches/test_replacing.py",
    ),
    Patch(
        "",
        "compatibility:allow_checkpoint_classes",
        "torch >= 2.6 does not load fairseq's checkpoints with weights_only",
        "tests/patches/test_replacing.py",
    ),
    Patch("", "compatibility:restore_numpy_compat", "numpy 2 lacks np.compat.long", "tests/patches/test_replacing.py"),
    Patch(
        "",
        "compatibility:stop_loading_at_exit",
        "a finished run may exit with code 134",
        "tests/patches/test_replacing.py",
    ),
    Patch(
        "",
        "compatibility:evaluate_settings_as_literals",
        "fairseq passes settings of a checkpoint to eval",
        "tests/faults/test_literals.py",
    ),
    Patch(
        "",
        "precision:skip_overflows_on_cpu",
        "--fp16 on a CPU fails at the first overflow",
        "tests/patches/test_precision.py",
    ),
    Patch(
        "fairseq.optim.fp16_optimizer:_FP16OptimizerMixin.state_dict",
        "precision:state_dict",
        "a run that resumes in half precision drifts from an uninterrupted one",
        "tests/integration/test_command_lines.py",
        "self",
    ),
    Patch(
        "fairseq.optim.fp16_optimizer:_FP16OptimizerMixin.load_state_dict",
        "precision:load_state_dict",
        "a run that resumes in half precision drifts from an uninterrupted one",
        "tests/integration/test_command_lines.py",
        "self, state_dict, optimizer_overrides",
    ),
    Patch(
        "fairseq.optim.amp_optimizer:AMPOptimizer.clip_grad_norm",
        "precision:clip_grad_norm",
        "--amp makes a step although the norm of the gradients is not finite",
        "tests/patches/test_precision.py",
        "self, max_norm, aggregate_norm_fn",
    ),
    Patch(
        "fairseq.optim.amp_optimizer:AMPOptimizer.step",
        "precision:step",
        "--amp divides gradients by the loss scale twice",
        "tests/patches/test_precision.py",
        "self",
    ),
    Patch(
        "fairseq.models.distributed_fairseq_model:DistributedDataParallel",
        "compatibility:any_device_ddp",
        "pytorch_ddp fails on several CPU workers",
        "tests/integration/test_command_lines.py",
    ),
    Patch(
        "fairseq.distributed.utils:_broadcast_object_slow",
        "compatibility:broadcast_object",
        "on torch >= 2.6 only the first worker can resume",
        "tests/patches/test_replacing.py",
        "obj, src_rank, group, dist_device",
    ),
    Patch(
        "fairseq.checkpoint_utils:load_checkpoint_to_cpu",
        "checkpoint_files:read_checkpoint",
        "damaged files load; weights_only is off on older torch",
        "tests/faults/test_checkpoint_files.py",
        "path, arg_overrides, load_on_all_ranks",
    ),
    Patch(
        "fairseq.checkpoint_utils:torch_persistent_save",
        "checkpoint_files:write_whole",
        "a killed run leaves half a checkpoint; NaN weights are saved",
        "tests/faults/test_checkpoint_files.py",
        "obj, filename, async_write",
    ),
    Patch(
        "fairseq.file_io:PathManager.copy",
        "checkpoint_files:copy_whole",
        "a killed run leaves half a checkpoint_last.pt",
        "tests/faults/test_checkpoint_files.py",
        "src_path, dst_path, overwrite",
    ),
    Patch(
        "fairseq.checkpoint_utils:verify_checkpoint_directory",
        "checkpoint_files:verify_folder",
        "an unwritable --save-dir ends in a traceback",
        "tests/faults/test_mistakes.py",
        "save_dir",
    ),
    Patch(
        "fairseq.checkpoint_utils:save_checkpoint",
        "failures:save_checkpoint",
        "after a NaN score, fairseq treats any later score as the best",
        "tests/faults/test_training.py",
        "cfg, trainer, epoch_itr, val_loss",
    ),
    Patch(
        "fairseq.trainer:Trainer.train_step",
        "failures:train_step",
        "if one worker runs out of memory, the others wait forever",
        "tests/faults/test_training.py",
        "self, samples, raise_oom",
    ),
    Patch(
        "fairseq.trainer:Trainer.valid_step",
        "failures:valid_step",
        "if one worker runs out of memory, the others wait forever",
        "tests/faults/test_training.py",
        "self, sample, raise_oom",
    ),
    Patch(
        "fairseq.trainer:Trainer._log_oom",
        "failures:log_oom",
        "a run that skips every batch never ends",
        "tests/faults/test_training.py",
        "self, exc",
    ),
    Patch(
        "fairseq.trainer:Trainer.load_checkpoint",
        "failures:load_checkpoint",
        "a missing --restore-file starts a new run; a run with other settings resumes without notice",
        "tests/faults/test_training.py",
        "self, filename, reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters",
    ),
    Patch(
        "fairseq.trainer:NanDetector",
        "failures:ForwardNanDetector",
        "a NaN on one of two workers ends in StopIteration",
        "tests/faults/test_training.py",
    ),
    Patch(
        "fairseq.utils:import_user_module",
        "startup:import_user_module",
        "patches of fairseq_cli.train come too late if the plugin was imported first",
        "tests/patches/test_replacing.py",
        "args",
    ),
    Patch(
        "fairseq.options:parse_args_and_arch",
        "startup:parse_args_and_arch",
        "an unknown flag prints 173 lines of usage",
        "tests/faults/test_mistakes.py",
        "parser, input_args, parse_known, suppress_defaults, modify_parser",
    ),
    Patch(
        "fairseq_cli.train:convert_namespace_to_omegaconf",
        "startup:convert_namespace_to_omegaconf",
        "polynomial_decay without --total-num-update, and NaN as a value, end in tracebacks",
        "tests/faults/test_mistakes.py",
        "args",
    ),
    Patch(
        "fairseq.distributed.utils:call_main",
        "startup:call_main",
        "torchrun on CPUs trains the same run once per worker",
        "tests/integration/test_command_lines.py",
        "cfg, main, kwargs",
    ),
    Patch(
        "fairseq_cli.train:add_defaults",
        "startup:add_defaults",
        "invalid settings are found late, in a traceback, or never",
        "tests/faults/test_mistakes.py",
        "cfg",
    ),
    Patch(
        "fairseq_cli.hydra_train:add_defaults",
        "startup:merge_defaults",
        "a misspelt setting ends in a traceback",
        "tests/faults/test_mistakes.py",
        "cfg",
    ),
    Patch(
        "fairseq_cli.train:train",
        "startup:train",
        "a finished run that is started again makes one more update",
        "tests/faults/test_training.py",
        "cfg, trainer, task, epoch_itr",
    ),
    Patch(
        "fairseq_cli.train:validate_and_save",
        "stopping:validate_and_save",
        "a signal loses all updates since the last checkpoint",
        "tests/launch/test_preemption.py",
        "cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch",
    ),
    Patch(
        "fairseq.logging.progress_bar:progress_bar",
        "run_console:progress_bar",
        "the line of statistics is wider than the terminal; every epoch adds another handler for --log-file",
        "tests/patches/test_run_console.py",
    ),
)


def apply() -> None:
    """Install every patch; safe to call again. Patches of a fairseq command are installed once the command is imported."""
    for patch in PATCHES:
        install(patch)
