"""``python -m fairseq_clear.preemption``, for which signals wait while Python loads fairseq: a worker that they ended would be
taken for lost. Slurm sends SIGTERM to all of them where one has made a mistake.
"""

import os
import runpy
import signal
import sys

signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1, signal.SIGTERM))  # until Preemption.install takes them
sys.path[0] = os.getcwd()  # as -m has it
runpy.run_module("fairseq_clear.preemption", run_name="__main__", alter_sys=True)
