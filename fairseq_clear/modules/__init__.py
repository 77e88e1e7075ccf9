"""Building blocks of models, usable without fairseq: pooling, projection head, chunked encoding."""
