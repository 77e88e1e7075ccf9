"""MoCo's queue of keys (He et al. 2019, arXiv:1911.05722, section 3.2)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fairseq_clear.modules.momentum_encoder import keeping_float32
from fairseq_clear.objectives.unit_vectors import unit_vectors


class KeyQueue(nn.Module):
    """The last ``size`` keys of all workers; new keys overwrite the oldest. The size need not be a multiple of the batch.

    It is saved in the model's checkpoint, in float32. Pointer and fill count are tensors, so no method synchronises with the
    GPU.

    Args:
        size: K.
        width: D of a key.
        hashes: number of hashes in the identity of a key.
        guide_width: G, the dimension of a separate guide's vectors, which are then kept with the keys; 0 for none.
        undoable: keep what ``enqueue`` overwrites until ``confirm`` or ``undo``, for updates that may be repeated.
    """

    keys: Tensor
    identities: Tensor
    guides: Tensor
    pointer: Tensor
    fill: Tensor

    def __init__(self, size: int, width: int, *, hashes: int = 1, guide_width: int = 0, undoable: bool = False) -> None:
        super().__init__()
        self.size, self.undoable = size, undoable
        self._overwritten: list[tuple[Tensor, ...]] = []
        self.register_buffer("keys", torch.zeros(size, width))
        self.register_buffer("identities", torch.zeros((size, hashes)[: 1 + (hashes > 1)], dtype=torch.int64))
        if guide_width:
            self.register_buffer("guides", torch.zeros(size, guide_width))
        self._columns = ("keys", "identities", "guides")[: 2 + (guide_width > 0)]
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self.register_buffer("fill", torch.zeros((), dtype=torch.int64))

    @property
    def is_written(self) -> Tensor:
        """(K,) bool, False where no key has been written yet."""
        return torch.arange(self.size, device=self.keys.device) < self.fill

    @torch.no_grad()
    def enqueue(self, keys: Tensor, identities: Tensor, guides: Tensor | None = None) -> None:
        """Write keys over the oldest ones.

        Args:
            keys: (n, D), of any length and floating dtype; normalised here, in float32. Of more than K keys, the last K stay.
            identities: (n,) int64, the hash of each key's source text, or (n, ``hashes``).
            guides: (n, G), a separate guide's vectors of the keys' texts, of any length; normalised like the keys.
        """
        count = keys.shape[0]
        position = (self.pointer + torch.arange(count, device=keys.device)) % self.size
        # index_copy_ does not define which of two writes to one position wins, so only the last are written.
        last = slice(max(count - self.size, 0), None)
        position = position[last]
        if self.undoable:
            old = [getattr(self, name)[position] for name in self._columns]
            self._overwritten.append((position, self.pointer.clone(), self.fill.clone(), *old))
        self.keys.index_copy_(0, position, unit_vectors(keys[last]))
        self.identities.index_copy_(0, position, identities[last])
        if guides is not None:
            self.guides.index_copy_(0, position, unit_vectors(guides[last]))
        self.pointer.add_(count).remainder_(self.size)
        self.fill.add_(count).clamp_(max=self.size)

    def confirm(self) -> None:
        """Keep the keys that were enqueued; called when the update succeeded."""
        self._overwritten.clear()

    @torch.no_grad()
    def undo(self) -> None:
        """Restore the queue to the last ``confirm``; called when the update overflowed."""
        while self._overwritten:
            position, pointer, fill, *old = self._overwritten.pop()
            for name, rows in zip(self._columns, old, strict=True):
                getattr(self, name).index_copy_(0, position, rows)
            self.pointer.copy_(pointer)
            self.fill.copy_(fill)

    @torch.no_grad()
    def clear(self) -> None:
        """Remove all keys; called when training starts."""
        for buffer in self.buffers():
            buffer.zero_()

    def checksum(self) -> Tensor:
        """A (4,) float64 checksum, (5,) with guides, by which workers check that their queues are equal."""
        weights = torch.arange(1, self.size + 1, device=self.keys.device, dtype=torch.float64)
        rows = [self.keys.sum(dim=1), self.identities.view(self.size, -1).remainder(1 << 20).sum(dim=1)]
        rows += [self.guides.sum(dim=1)] if "guides" in self._columns else []
        sums = [(values.double() * weights).sum() for values in rows]
        return torch.stack([*sums, self.pointer.double(), self.fill.double()])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "KeyQueue":
        return super()._apply(keeping_float32(fn), recurse)
