"""``fairseq-clear refine``: trains a pretrained encoder on one's own text by a row of the package's other commands."""
