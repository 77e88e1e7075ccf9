"""GLUE by fine-tuning with fairseq's ``sentence_prediction``: prepare data, fine-tune with several seeds, report dev scores."""
