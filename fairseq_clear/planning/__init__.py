"""What a run will cost before it is started: operations, memory, bytes between workers, hours; functions of its settings."""
