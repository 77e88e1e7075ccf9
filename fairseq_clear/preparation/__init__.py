"""Converts raw text to data folders for fairseq: corpora, tokenizers, binarized text."""
