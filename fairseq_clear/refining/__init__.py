"""``fairseq-clear refine``: trains a pretrained encoder on your text, compares it with the untouched one, and exports it."""
