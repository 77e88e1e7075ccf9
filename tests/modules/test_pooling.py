"""Poolings against loops over the tokens of each text."""

import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.modules.chunking import map_chunks, row_chunks, trim_padding
from fairseq_clear.modules.pooling import POOLINGS, needs_all_layers, parse_pooling, pool

LENGTHS = [4, 1, 3]
LAYERS = [torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(n)) for n in range(4)]
IS_TOKEN = torch.tensor([[position < length for position in range(5)] for length in LENGTHS])


def by_hand(name: str, row: int) -> list[float]:
    kept = [[layer[row, position].tolist() for position in range(LENGTHS[row])] for layer in LAYERS]
    if name == "cls":
        return kept[-1][0]
    if name == "max":
        return [max(vector[d] for vector in kept[-1]) for d in range(2)]
    chosen = {"mean": [-1], "first-last": [1, -1], "last2": [-2, -1], "layer:0": [0], "layer:2": [2]}[name]
    vectors = [vector for layer in chosen for vector in kept[layer]]
    return [sum(vector[d] for vector in vectors) / len(vectors) for d in range(2)]


@pytest.mark.parametrize("name", [*(name for name in POOLINGS if name != "wk"), "layer:0", "layer:2"])
def test_pooling_is_what_its_name_says(name: str) -> None:
    found = pool(name, LAYERS, IS_TOKEN)
    torch.testing.assert_close(found, torch.tensor([by_hand(name, row) for row in range(3)]))
    changed = [layer.clone() for layer in LAYERS]
    for layer in changed:
        layer[~IS_TOKEN] = 1e4
    torch.testing.assert_close(pool(name, changed, IS_TOKEN), found)
    if not needs_all_layers(name):
        torch.testing.assert_close(pool(name, LAYERS[-1:], IS_TOKEN), found)


@pytest.mark.parametrize("name", ["avg", "layer", "layer:x", "layer:-1", "layer:5"])
def test_unknown_poolings(name: str) -> None:
    with pytest.raises(UserError, match=name):
        parse_pooling(name, 4)
    assert callable(parse_pooling("layer:4", 4))


def test_trimming_keeps_every_token_and_one_column() -> None:
    tokens = torch.tensor([[5, 6, 1, 1], [7, 1, 1, 1]])
    assert trim_padding(tokens, 1).tolist() == [[5, 6], [7, 1]]
    assert trim_padding(torch.ones(2, 3, dtype=torch.long), 1).shape == (2, 1)
    assert trim_padding(torch.ones(0, 3, dtype=torch.long), 1).shape == (0, 1)


@pytest.mark.parametrize(("rows", "size"), [(7, 3), (6, 3), (2, 5), (0, 2)])
def test_chunks_cover_all_rows_once(rows: int, size: int) -> None:
    covered = [index for chunk in row_chunks(rows, size) for index in range(chunk.start, chunk.stop)]
    assert covered == list(range(rows))
    values = torch.arange(rows, dtype=torch.float32, requires_grad=True)
    parts = map_chunks(lambda part: part * 2, rows, size, values)
    assert all(len(part) <= size for part in parts)
    if rows:
        torch.cat(parts).sum().backward()
        torch.testing.assert_close(values.grad, torch.full((rows,), 2.0))
