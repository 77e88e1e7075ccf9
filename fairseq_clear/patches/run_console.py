"""Console output of a run: a summary, then metrics, with a progress bar on terminals. ``--log-file`` gets all messages."""

import logging
import logging.config
import math
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from fairseq.logging import progress_bar as fairseq_bars
from omegaconf import OmegaConf, open_dict
from tqdm import tqdm

from fairseq_clear.patches import original

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
# Shown next to the progress bar on a terminal.
SHOWN = {"loss": "loss", "contrastive_accuracy": "accuracy", "wps": "tokens/s"}


class Detail(logging.Filter):
    """Hides details from the console: settings, the model's modules, and the messages of DETAILS."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the console shows the record; it always shows warnings."""
        if record.levelno > logging.INFO:
            return True
        return isinstance(record.msg, str) and not record.msg.startswith(DETAILS.get(record.name, ("\0",)))


def set_up(cfg: Any) -> None:
    """Install the console's filter and the handler of ``--log-file`` (fairseq adds another handler at every epoch)."""
    root = logging.getLogger()
    is_first = distributed_utils.is_master(cfg.distributed_training)
    if "job_logging_cfg" in cfg:  # hydra's, which fairseq would apply later
        if is_first:
            logging.config.dictConfig(OmegaConf.to_container(cfg.job_logging_cfg))
        with open_dict(cfg):
            del cfg.job_logging_cfg
    streams = [
        h for h in root.handlers if isinstance(h, logging.StreamHandler) and not isinstance(h, logging.FileHandler)
    ]
    for handler in streams:
        if not any(isinstance(known, Detail) for known in handler.filters):
            handler.addFilter(Detail())
    if cfg.common.log_file and is_first:
        file = logging.FileHandler(cfg.common.log_file)
        if streams:
            file.setFormatter(streams[0].formatter)
        root.addHandler(file)
    cfg.common.log_file = None


def log_first_update(cfg: Any, trainer: Any) -> None:
    """Log the loss of the first update, without waiting for ``--log-interval``."""
    meters = {label: metrics.get_meter("train", name) for name, label in SHOWN.items() if name != "wps"}
    known = [f"{label} {meter.avg:.3g}" for label, meter in meters.items() if getattr(meter, "avg", None) is not None]
    if known:  # empty if the run is complete and makes no update
        every = f"all metrics every {cfg.common.log_interval} updates"
        logger.info("%-10s %s; %s", f"update {trainer.get_num_updates()}", ", ".join(known), every)


def progress_bar(iterator: Any, log_format: str | None = None, *args: Any, **options: Any) -> Any:
    """Return fairseq's progress bar; on a terminal, TerminalBar replaces ``tqdm``."""
    chosen = log_format or options.get("default_log_format", "tqdm")
    if chosen != "tqdm" or not sys.stderr.isatty():
        return original("fairseq.logging.progress_bar:progress_bar")(iterator, log_format, *args, **options)
    stock = fairseq_bars.TqdmProgressBar
    fairseq_bars.TqdmProgressBar = TerminalBar
    try:
        return original("fairseq.logging.progress_bar:progress_bar")(iterator, "tqdm", *args, **options)
    finally:
        fairseq_bars.TqdmProgressBar = stock


class TerminalBar(fairseq_bars.BaseProgressBar):
    """A progress bar over the updates of an epoch, with loss, accuracy, tokens/s and the remaining time of the run.

    Messages are printed above the bar.
    """

    def __init__(self, iterable: Any, epoch: int | None = None, prefix: str | None = None) -> None:
        super().__init__(iterable, epoch, prefix)
        self.last_update = math.inf
        form = "{desc}: {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} {elapsed}{postfix}"
        width = None if shutil.get_terminal_size((0, 0)).columns else 100  # for a terminal of unknown width
        self.bar = tqdm(
            iterable,
            self.prefix,
            leave=False,
            initial=self.n,
            total=len(iterable),
            bar_format=form,
            ncols=width,
            dynamic_ncols=width is None,
        )
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and getattr(handler.stream, "isatty", bool)():
                handler.stream = _AboveBar(getattr(handler.stream, "stream", handler.stream))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.bar)

    def update_config(self, config: dict[str, Any]) -> None:
        """Set the length of the run."""
        limits = config["optimization"]
        epochs = (limits["max_epoch"] or math.inf) * len(self)
        self.last_update = min(limits["max_update"] or math.inf, epochs)

    def log(self, stats: dict[str, Any], tag: str | None = None, step: int | None = None) -> None:
        """Show the statistics of the last updates next to the bar."""
        values = self._format_stats(stats)
        shown = {label: values[name] for name, label in SHOWN.items() if name in values}
        speed = float(values.get("ups") or 0)
        if speed > 0 and math.isfinite(self.last_update):
            shown["left"] = tqdm.format_interval(max(self.last_update - (step or 0), 0) / speed)
        self.bar.set_postfix(shown, refresh=False)

    def print(self, stats: dict[str, Any], tag: str | None = None, step: int | None = None) -> None:
        """Log the statistics of an epoch or a validation."""
        with fairseq_bars.rename_logger(fairseq_bars.logger, tag):
            fairseq_bars.logger.info("%s | %s", self.prefix, self._str_pipes(self._format_stats(stats)))


class _AboveBar:
    """A stream that clears the progress bar before it writes, and redraws it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        with tqdm.external_write_mode(file=self.stream):
            self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
