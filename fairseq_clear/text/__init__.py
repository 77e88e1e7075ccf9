"""Tokenizers, dictionaries and binarized text: what views and data sets read."""
