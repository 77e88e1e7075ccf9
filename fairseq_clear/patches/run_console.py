"""Console output of a run: a summary, then metrics. ``--log-file`` gets all messages."""

import logging
import logging.config
from typing import Any

from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from omegaconf import OmegaConf, open_dict

logger = logging.getLogger("fairseq_clear")

# Beginnings of messages of fairseq that only --log-file gets; an empty string stands for all messages of a logger.
DETAILS: dict[str, tuple[str, ...]] = {
    "fairseq_cli.train": (
        *("task: ", "model: ", "criterion: ", "num. ", "training on ", "max tokens per device", "begin dry-run"),
        *("Start iterating", "end of epoch ", "begin validation"),
    ),
    "fairseq.trainer": (
        *("detected shared", "Preparing to load", "No existing checkpoint", "loading train data"),
        *("Saving checkpoint", "Finished saving"),
    ),
    "fairseq.checkpoint_utils": ("Preparing to save",),
    "fairseq.tasks.fairseq_task": ("",),
    "fairseq.tasks.masked_lm": ("",),
    "fairseq.data.data_utils": ("",),
    "fairseq.data.iterators": ("",),
    "fairseq.utils": ("",),
    "fairseq.distributed.utils": ("",),
    "fairseq.logging.progress_bar": ("",),
}
FIRST = {"loss": "loss", "contrastive_accuracy": "accuracy"}  # metrics of the first update that are logged -> labels


def is_shown(record: logging.LogRecord) -> bool:
    """Whether the console shows a record: warnings, and messages except settings, the model's modules and DETAILS."""
    if record.levelno > logging.INFO:
        return True
    return isinstance(record.msg, str) and not record.msg.startswith(DETAILS.get(record.name, ("\0",)))


def set_up(cfg: Any) -> None:
    """Install the console's filter and the handler of ``--log-file`` (fairseq adds another handler at every epoch)."""
    root = logging.getLogger()
    is_first = distributed_utils.is_master(cfg.distributed_training)
    if "job_logging_cfg" in cfg:  # hydra's, which fairseq would apply later
        if is_first:
            config: Any = OmegaConf.to_container(cfg.job_logging_cfg)
            logging.config.dictConfig(config)
        with open_dict(cfg):
            del cfg.job_logging_cfg
    streams = [handler for handler in root.handlers if type(handler) is logging.StreamHandler]
    for handler in streams:
        handler.addFilter(is_shown)
    if cfg.common.log_file and is_first:
        file = logging.FileHandler(cfg.common.log_file)
        if streams:
            file.setFormatter(streams[0].formatter)
        root.addHandler(file)
    cfg.common.log_file = None


def log_first_update(cfg: Any, trainer: Any) -> None:
    """Log the loss of the first update, without waiting for ``--log-interval``."""
    meters = {label: metrics.get_meter("train", name) for name, label in FIRST.items()}
    known = [f"{label} {meter.avg:.3g}" for label, meter in meters.items() if getattr(meter, "avg", None) is not None]
    if known:  # empty if the run is complete and makes no update
        every = f"all metrics every {cfg.common.log_interval} updates"
        logger.info("%-10s %s; %s", f"update {trainer.get_num_updates()}", ", ".join(known), every)
