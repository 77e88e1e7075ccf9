"""Estimates the cost of a run from its settings, before it starts: operations, memory, bytes between workers, hours."""
