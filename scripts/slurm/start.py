"""Runs ``python -m fairseq_clear.launch.preemption`` and blocks signals while Python loads fairseq.

Slurm sends SIGTERM to every worker of a job that is preempted. If the signal ended a worker while it loads, the other workers
would treat it as lost.
"""

import os
import runpy
import signal
import sys

signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1, signal.SIGTERM))  # until Preemption.install handles them
sys.path[0] = os.getcwd()  # as with python -m
runpy.run_module("fairseq_clear.launch.preemption", run_name="__main__", alter_sys=True)
