"""How far a run is: a bar on a terminal, a line now and then in a log."""

import sys
import time
from types import TracebackType

from tqdm import tqdm

__all__ = ["Progress"]


class Progress:
    """Lines done, lines a second, time left; on standard error.

    Args:
        lines: of the whole run.
        done: of them before this call.
        interval: seconds between two lines where standard error is no terminal; 0 tells every change.
    """

    def __init__(self, lines: int, done: int, interval: float) -> None:
        self._lines, self._before, self._interval = lines, done, interval
        self._began = self._told = time.monotonic()
        self._bar = tqdm(total=lines, initial=done, unit="sentence", file=sys.stderr, disable=None, smoothing=0.05)
        self._shown = 0.0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def show(self, now: float) -> None:
        """Tell that ``now`` lines are done in this call, those halfway counting half."""
        if now <= self._shown:
            return
        self._bar.update(round(now) - round(self._shown))
        self._shown = now
        moment = time.monotonic()
        if self._bar.disable and moment - self._told >= self._interval:
            self._told = moment
            rate = now / max(moment - self._began, 1e-9)
            left = max(self._lines - self._before - now, 0) / max(rate, 1e-9)
            done = int(self._before + now)
            message = f"{done:,} of {self._lines:,} lines ({done / self._lines:.1%}), {rate:,.1f} sentences/s, "
            sys.stderr.write(f"back-translate: {message}{_clock(left)} left\n")
            sys.stderr.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
