"""Rules that exclude keys as candidates of queries, used instead of a matrix of all pairs."""

from dataclasses import dataclass, replace
from functools import reduce
from itertools import product

import torch
from torch import Tensor


@dataclass(frozen=True)
class Exclusion:
    """Rules for excluded pairs of a query and a key; a pair is excluded if one of the given rules applies.

    A (Q, K) matrix of 16,384 x 16,384 pairs takes 256 MiB. The rules are vectors: single blocks are computed from them.

    Attributes:
        own: (Q, M) int64, columns of the query's own rows among the keys.
        identities: (Q,) and (K,) int64 hashes, or (Q, H) and (K, H); a query and a key that share a hash are not negatives.
        absent: (K,) bool, keys that are excluded for all queries, such as unused places of a queue.
        matrix: (Q, K) bool, any other pattern.
        nearer: (Q, G) and (K, G) unit vectors of a guide, without gradient, and (Q,) a threshold; a key whose cosine with the
            query is above the query's threshold is excluded.
    """

    own: Tensor | None = None
    identities: tuple[Tensor, Tensor] | None = None
    absent: Tensor | None = None
    matrix: Tensor | None = None
    nearer: tuple[Tensor, Tensor, Tensor] | None = None

    @classmethod
    def of(cls, excluded: "Exclusion | Tensor | None") -> "Exclusion":
        """Convert rules, a matrix or None to rules."""
        if isinstance(excluded, Exclusion):
            return excluded
        return cls(matrix=excluded)

    def with_own(self, columns: Tensor) -> "Exclusion":
        """Add one column (Q,) to ``own``."""
        columns = columns.unsqueeze(1)
        return replace(self, own=columns if self.own is None else torch.cat([self.own, columns], dim=1))

    def tile(self, queries: int, keys: int, total: int) -> "Exclusion":
        """Rules for ``queries`` copies of all queries and ``keys`` copies of all ``total`` keys, each concatenated.

        ``absent`` and ``nearer`` must be None: the objectives of layers have neither a queue nor a guide.
        """
        own, same, matrix = self.own, self.identities, self.matrix
        own = None if own is None else torch.cat([own + copy * total for copy in range(keys)], dim=1).repeat(queries, 1)
        same = None if same is None else (torch.cat([same[0]] * queries), torch.cat([same[1]] * keys))
        matrix = None if matrix is None else matrix.repeat(queries, keys)
        return replace(self, own=own, identities=same, matrix=matrix)

    def spread(self, copies: int) -> "Exclusion":
        """Rules for keys that are each repeated ``copies`` times in a row; ``absent`` and ``nearer`` as for ``tile``."""
        own, same, matrix = self.own, self.identities, self.matrix
        if own is not None:
            own = (own.unsqueeze(2) * copies + torch.arange(copies, device=own.device)).flatten(1)
        same = None if same is None else (same[0], same[1].repeat_interleave(copies, dim=0))
        matrix = None if matrix is None else matrix.repeat_interleave(copies, dim=1)
        return replace(self, own=own, identities=same, matrix=matrix)

    def block(self, rows: slice, columns: slice, device: torch.device) -> Tensor:
        """Compute a block (R, C) of the matrix, True where excluded; both slices must have start and stop."""
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        if self.identities is None:
            excluded = torch.zeros(shape, dtype=torch.bool, device=device)
        else:
            mine, theirs = (
                torch.atleast_2d(one[some].t()) for one, some in zip(self.identities, (rows, columns), strict=True)
            )
            same = (one.unsqueeze(1) == other.unsqueeze(0) for one, other in product(mine, theirs))
            excluded = reduce(torch.Tensor.logical_or_, same)
        if self.matrix is not None:
            excluded |= self.matrix[rows, columns]
        if self.absent is not None:
            excluded |= self.absent[columns]
        if self.nearer is not None:
            queries, keys, threshold = self.nearer
            excluded |= queries[rows] @ keys[columns].T > threshold[rows].unsqueeze(1)
        if self.own is not None and shape[1]:
            # one column per query at a time, since scatter_ needs distinct indices
            for column in (self.own[rows] - columns.start).split(1, dim=1):
                is_inside = (column >= 0) & (column < shape[1])
                column = column.clamp(0, shape[1] - 1)
                excluded.scatter_(1, column, excluded.gather(1, column) | is_inside)
        return excluded
