"""Documents: one worker and two, with different and unequal shares of them, make the same update."""

from pathlib import Path

import pytest

from tests.conftest import Ranks
from tests.distributed.test_parity import detached_gather
from tests.training import Case, distance, updates

SPAN = ("--views", "span:anchors=2,positives=2,min=3,max=9", "--augment", "none", "--tokens-per-sample", "32")
RECIPES = {
    "declutr": SPAN,
    "easy negatives alone": (*SPAN, "--same-document-negatives", "exclude"),
    "mlm on anchors": (*SPAN, "--contrastive-weight", "0"),
    "joint": (*SPAN, "--anchor-mlm", "joint"),
    "joint, in chunks": (*SPAN, "--anchor-mlm", "joint", "--encode-chunk-size", "33", "--ddp-backend", "pytorch_ddp"),
    "titles": ("--views", "titles:longest=60", "--augment", "none", "--tokens-per-sample", "32"),
    "neighbor-slice": ("--views", "neighbor", "--augment", "slice", "--tokens-per-sample", "32"),
}
# neighbours: items of several documents, six pairs each
SHARES = {1: [[[0, 1, 7, 8, 13, 15]]], 2: [[[0, 1, 7, 8]], [[13, 15]]]}


@pytest.mark.slow
def test_two_workers_make_the_update_of_one(data_bin: Path, ranks: Ranks) -> None:
    found = {}
    for workers, shares in SHARES.items():
        cases = [Case(flags, shares) for flags in RECIPES.values()]
        cases.append(Case(SPAN, shares, broken=detached_gather))
        found[workers] = ranks(workers, updates, str(data_bin), cases)[0]
    for number, name in enumerate(RECIPES):
        one, two = found[1][number], found[2][number]
        assert distance(one["before"], two["before"]) == 0
        assert distance(one["before"], one["after"]) > 1e-3, name
        assert distance(one["after"], two["after"]) < 1e-5, name
        for logged in ("loss", "mlm_loss", "contrastive_loss", "negatives_per_query"):
            assert one["log"].get(logged) == pytest.approx(two["log"].get(logged), abs=2e-3), (name, logged)
    # the negative control
    assert distance(found[1][0]["after"], found[2][-1]["after"]) > 1e-4
