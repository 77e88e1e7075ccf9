"""What BERT's encoder has and fairseq's has no flag for: the epsilon of LayerNorm, and embeddings of two segments."""

from typing import Any

from fairseq.modules.learned_positional_embedding import LearnedPositionalEmbedding
from torch import Tensor, nn

__all__ = ["FAIRSEQ_EPS", "SegmentedPositions", "adapt_encoder", "segment_ids"]

FAIRSEQ_EPS = 1e-5


def segment_ids(tokens: Tensor, eos: int, segments: int = 2) -> Tensor:
    """(B, T) int64: 0 up to the first ``</s>`` of a row, which it includes, 1 after it, as BERT's token types are."""
    is_end = tokens.eq(eos).long()
    return (is_end.cumsum(dim=1) - is_end).clamp(max=segments - 1)


class SegmentedPositions(LearnedPositionalEmbedding):
    """The embedding of positions, plus that of the segment that each token is in.

    It stands in for fairseq's ``embed_positions`` and keeps the name of its weight.

    Args:
        positions: fairseq's; its weight is taken over.
        segments: how many there are.
        eos: id of ``</s>``, which ends a segment.
    """

    def __init__(self, positions: LearnedPositionalEmbedding, segments: int, eos: int) -> None:
        super().__init__(*positions.weight.shape, padding_idx=positions.padding_idx)
        self.weight = positions.weight
        self.eos = eos
        self.segments = nn.Embedding(segments, positions.weight.shape[1])
        nn.init.zeros_(self.segments.weight)  # segments that nobody trained change nothing

    def forward(self, tokens: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """(B, T) tokens to (B, T, D)."""
        embedded: Tensor = super().forward(tokens, *args, **kwargs)
        return embedded + self.segments(segment_ids(tokens, self.eos, self.segments.num_embeddings))


def adapt_encoder(encoder: Any, eps: float, segments: int) -> None:
    """Give fairseq's RobertaEncoder another epsilon in every LayerNorm, the MLM head's too, and embeddings of segments."""
    for module in encoder.modules():
        if isinstance(module, nn.LayerNorm) or type(module).__name__ == "FusedLayerNorm":
            module.eps = eps
    if segments > 1:
        stack = encoder.sentence_encoder
        stack.embed_positions = SegmentedPositions(stack.embed_positions, segments, encoder.dictionary.eos())
