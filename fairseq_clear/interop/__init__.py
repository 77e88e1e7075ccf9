"""Pretrained weights in and out: Hugging Face, sentence-transformers, stock fairseq."""
