"""From raw text to what fairseq trains on: corpora, tokenizers, binarized folders."""
