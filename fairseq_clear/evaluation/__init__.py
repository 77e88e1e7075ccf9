"""Using and evaluating a trained encoder: embeddings, STS, transfer and probing tasks, GLUE, reports and plots."""
