"""GLUE by fine-tuning with fairseq's ``sentence_prediction``: prepare data, run restarts, predict test sets."""
