"""Figures at the width of a paper's column: training curves, reports side by side, layers, embeddings."""
