"""Training under Slurm: stopping at a signal, and ending the run if a worker is lost."""
