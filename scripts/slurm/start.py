"""Runs ``python -m fairseq_clear.launch.preemption`` with signals blocked while Python loads fairseq.

A signal that ended a worker at that time would look like a lost worker to the others. Slurm sends SIGTERM to every worker of a
job that is preempted.
"""

import os
import runpy
import signal
import sys

signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1, signal.SIGTERM))  # until Preemption.install takes them
sys.path[0] = os.getcwd()  # as -m has it
runpy.run_module("fairseq_clear.launch.preemption", run_name="__main__", alter_sys=True)
