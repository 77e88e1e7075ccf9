"""From binarized tokens to collated batches: tokenizers, documents, view sources, synonyms, seeding."""
