"""Longformer's attention (Beltagy et al. 2020, arXiv:2004.05150, section 3): a sliding window, global attention for ``<s>``.

The result equals full attention under the mask of ``window_mask``. Queries are processed in blocks of ``C`` tokens. Each block
attends to the ``C + W`` keys in its reach and to ``<s>``, so time and memory are linear in the length. The blocks call
PyTorch's ``scaled_dot_product_attention``, which uses a fused kernel if there is one. ``<s>`` attends to the whole text.

The paper has separate projections for tokens with global attention, initialised as copies (section 3.1). Here both use the same
projections, so the weights are the same as for full attention; an export writes them twice.
"""

import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Smaller blocks are slower, because their matrix products are small.
SMALLEST_BLOCK = 32


def is_covered(length: int, window: int) -> bool:
    """Whether the window covers all pairs of tokens of a text of ``length`` tokens, so that attention is full."""
    return window >= 2 * (length - 2)


def block_size(window: int) -> int:
    """C, the number of queries of a block: W / 2, at least ``SMALLEST_BLOCK``. A block of C queries reads 3 C keys."""
    return max(window // 2, SMALLEST_BLOCK)


def window_mask(length: int, window: int, device: torch.device | str | None = None) -> Tensor:
    """Mask (T, T) bool, True where query i sees key j: ``|i - j| <= W / 2``, or one of the two is ``<s>``, at position 0.

    W counts the tokens on both sides, W / 2 each, as in Hugging Face; a token also sees itself.
    """
    at = torch.arange(length, device=device)
    return ((at[:, None] - at).abs() <= window // 2) | (at == 0) | (at[:, None] == 0)


def window_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: int,
    is_padding: Tensor | None = None,
    *,
    dropout: float = 0.0,
    masks: "MaskCache | None" = None,
) -> Tensor:
    """Scaled dot-product attention (B, T, H, d): of each token over its window and ``<s>``, of ``<s>`` over the whole text.

    Args:
        query, key, value: (B, T, H, d) in the same precision; rows begin with ``<s>``.
        window: W, even.
        is_padding: (B, T) bool, True on padding, which is on the right and is not attended to; outputs on padding are finite
            but meaningless. ``<s>`` never counts as padding. None for a batch without padding.
        dropout: dropout probability of the attention weights; drawn block by block, so the draws differ from full attention.
        masks: cache that shares masks between layers; None to build them.
    """
    masks = masks or MaskCache()
    length = query.shape[1]
    if length <= block_size(window) + window or is_covered(length, window):
        mask = masks.get(_dense_mask, query, window, is_padding)
        return _attend(query, key, value, mask, dropout)
    mask = masks.get(_block_mask, query, window, is_padding)  # (B n, 1, C, 1 + C + W)
    size = block_size(window)
    queries = _blocks(query, size)[:, 1:-1]  # (B, n, C, H, d)
    blocks = _attend(
        queries.flatten(0, 1), _neighbourhoods(key, window), _neighbourhoods(value, window), mask, dropout
    )  # (B n, C, H, d)
    local = blocks.unflatten(0, queries.shape[:2]).flatten(1, 2)  # (B, n C, H, d)
    start = _attend(query[:, :1], key, value, masks.get(_start_mask, query, window, is_padding), dropout)
    return torch.cat([start, local[:, 1:length]], dim=1)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Attention of queries (B, Q, H, d) over keys and values (B, K, H, d); the mask is added and broadcast to (B, H, Q, K)."""
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout).transpose(1, 2)


def _blocks(rows: Tensor, size: int) -> Tensor:
    """(B, T, ...) to (B, n + 2, C, ...): blocks of C rows, the last one filled with zeros, between two blocks of zeros."""
    length = rows.shape[1]
    before, after = (rows.new_zeros(rows.shape[0], width, *rows.shape[2:]) for width in (size, size + -length % size))
    return torch.cat([before, rows, after], dim=1).unflatten(1, (-1, size))


def _neighbourhoods(rows: Tensor, window: int) -> Tensor:
    """(B, T, H, d) to (B n, 1 + C + W, H, d): for each block of queries, ``<s>`` and then the rows in reach."""
    seen = _around(rows, window)  # (B, n, C + W, H, d)
    start = rows[:, :1].unsqueeze(1).expand(-1, seen.shape[1], -1, -1, -1)  # (B, n, 1, H, d)
    return torch.cat([start, seen], dim=2).flatten(0, 1)


def _around(rows: Tensor, window: int) -> Tensor:
    """(B, T, ...) to (B, n, C + W, ...): each block, with W / 2 rows of the block before it and of the block after it."""
    size, half = block_size(window), window // 2
    blocks = _blocks(rows, size)
    return torch.cat([blocks[:, :-2, size - half :], blocks[:, 1:-1], blocks[:, 2:, :half]], dim=2)


def _additive(is_seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Mask to add to the logits: 0 where True, -inf elsewhere.

    Its rows begin at multiples of 8 numbers: kernels for GPUs copy other masks, in every layer, and keep the copy.
    """
    width = is_seen.shape[-1]
    room = torch.zeros((*is_seen.shape[:-1], -(-width // 8) * 8), dtype=dtype, device=is_seen.device)
    return room[..., :width].masked_fill_(~is_seen, -torch.inf)


def _keys(query: Tensor, is_padding: Tensor | None) -> Tensor:
    """Mask (B, T) bool of the tokens that are attended to: those that are not padding, and always ``<s>``."""
    at = torch.arange(query.shape[1], device=query.device)
    return (at == 0).expand(query.shape[0], -1) | (at >= 0 if is_padding is None else ~is_padding)


def _start_mask(query: Tensor, window: int, is_padding: Tensor | None) -> Tensor | None:
    """Additive mask (B, 1, 1, T) for the query ``<s>``."""
    return None if is_padding is None else _additive(_keys(query, is_padding), query.dtype)[:, None, None]


def _dense_mask(query: Tensor, window: int, is_padding: Tensor | None) -> Tensor | None:
    """Additive mask (B or 1, 1, T or 1, T), for texts that are too short for blocks to save time."""
    length = query.shape[1]
    if is_covered(length, window):
        return _start_mask(query, window, is_padding)
    is_seen = window_mask(length, window, query.device)[None, None]  # (1, 1, T, T)
    if is_padding is not None:
        is_seen = is_seen & _keys(query, is_padding)[:, None, None]  # (B, 1, T, T)
    return _additive(is_seen, query.dtype)


def _block_mask(query: Tensor, window: int, is_padding: Tensor | None) -> Tensor:
    """Additive mask (B n, 1, C, 1 + C + W). Key j of a block is W / 2 before query j; ``<s>`` has its own, first column."""
    size = block_size(window)
    offset = torch.arange(size + window, device=query.device) - torch.arange(size, device=query.device)[:, None]
    is_near = (offset >= 0) & (offset <= window)  # (C, C + W)
    is_key = _keys(query, is_padding) & (torch.arange(query.shape[1], device=query.device) > 0)  # (B, T)
    is_seen = is_near & _around(is_key, window)[:, :, None]  # (B, n, C, C + W)
    return _additive(F.pad(is_seen, (1, 0), value=True), query.dtype).flatten(0, 1).unsqueeze(1)


class MaskCache:
    """The masks of the last batch, for all layers of an encoder; they belong to its padding mask (the tensor object)."""

    def __init__(self) -> None:
        self._made: dict[Any, Tensor | None] = {}
        self._padding: weakref.ref[Tensor] | None = None
        self._key: Any = None

    def __reduce__(self) -> Any:  # copies and pickles are empty
        return type(self), ()

    def get(self, build: Any, query: Tensor, window: int, is_padding: Tensor | None) -> Tensor | None:
        """Return ``build(query, window, is_padding)``, which may depend only on shape, precision and device of the query."""
        version = None if is_padding is None or is_padding.is_inference() else is_padding._version
        # Tensors made in inference mode cannot be used in training.
        mode = torch.is_inference_mode_enabled()
        key = (query.shape[:2], query.dtype, query.device, window, version, mode)
        of = self._padding() if self._padding is not None else None
        if of is not is_padding or key != self._key:
            self._made.clear()
            self._padding = None if is_padding is None else weakref.ref(is_padding, self._forget)
            self._key = key
        if build not in self._made:
            self._made[build] = build(query, window, is_padding)
        return self._made[build]

    def _forget(self, reference: "weakref.ref[Tensor]") -> None:
        if reference is self._padding:
            self._made.clear()
