"""Import and export of weights: Hugging Face, sentence-transformers, stock fairseq."""
