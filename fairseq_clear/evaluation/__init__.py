"""Using a trained encoder: embeddings now; semantic similarity, transfer tasks and reports build on them."""
