"""Runs under Slurm: stopping at a signal, losing a worker."""
