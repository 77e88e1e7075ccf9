"""GLUE by fine-tuning with fairseq's own ``sentence_prediction``: prepare, run, predict."""
