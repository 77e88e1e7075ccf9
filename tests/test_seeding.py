"""Random generators for each seed, epoch, item and view; and hashed random numbers for whole batches."""

import hashlib
import itertools
import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from fairseq_clear import seeding
from fairseq_clear.seeding import Draws, mix_bits, rng_for

MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645  # of PCG64 (O'Neill 2014)


@pytest.mark.parametrize("names", [(1, 1, 0, 0), (7, 40, 10**9, 6), (-1, 2, 3, 4), (2**70, 1, 2**40, 1)])
def test_states_are_hashes_of_the_names(names):
    """PCG64's seeding, written out: a change of it would change the views of every resumed run."""
    words = np.frombuffer(hashlib.shake_128(repr(names).encode()).digest(32), "<u8").tolist()
    increment = (words[2] << 64 | words[3]) << 1 | 1
    state = ((increment + (words[0] << 64 | words[1])) * MULTIPLIER + increment) % 2**128
    found = rng_for(*names).bit_generator.state["state"]
    assert found == {"state": state, "inc": increment % 2**128}


def test_numpy_integers_and_other_processes_draw_the_same():
    here = rng_for(*np.array([3, 2, 1, 0], np.int32)).random()
    code = "from fairseq_clear.seeding import rng_for; print(repr(rng_for(3, 2, 1, 0).random()))"
    there = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert float(there.stdout) == here == pickle.loads(pickle.dumps(rng_for(3, 2, 1, 0))).random()


def test_the_known_numbers_of_splitmix64():
    """The first outputs for the seed 0 (Vigna's reference code)."""
    gamma = np.uint64(0x9E3779B97F4A7C15)
    found = mix_bits(np.arange(1, 4, dtype=np.uint64) * gamma)
    assert [hex(number) for number in found.tolist()] == [
        "0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"
    ]  # fmt: skip


NAMES = ("seed", "epoch", "index", "view", "step", "purpose", "position")
COUNT = 1 << 14


def running(name):
    """64 random bits each, with one coordinate running from 1 and the others fixed."""
    run, fixed = np.arange(1, 1 + COUNT), np.full(COUNT, 3)
    at = {other: run if other == name else fixed for other in NAMES}
    if name == "seed":
        draws = Draws(np.concatenate([Draws.of(int(seed), 3, np.array([3]), 3).key for seed in run]))
    else:
        draws = Draws.of(3, at["epoch"], at["index"], at["view"])
    draws = draws.fold(at["step"])
    if name == "purpose":
        return np.concatenate([draws.select(np.array([0])).bits(int(p), np.array([0]), np.array([3])) for p in run])
    return draws.bits(3, np.arange(COUNT), at["position"])


@pytest.mark.parametrize("name", NAMES)
def test_numbers_with_one_running_coordinate(name):
    bits = running(name)
    assert len(set(bits.tolist())) == COUNT
    for shift in (0, 26, 52):  # three chunks of 12 bits, and pairs of neighbours
        chunk = (bits >> np.uint64(shift) & np.uint64(0xFFF)).astype(int)
        assert stats.chisquare(np.bincount(chunk, minlength=4096)).pvalue > 1e-4
        pairs = (chunk[:-1] >> 6) << 6 | chunk[1:] >> 6
        assert stats.chisquare(np.bincount(pairs, minlength=4096)).pvalue > 1e-4
    # avalanche: the next value of the coordinate changes each bit with probability one half
    changed = (bits[:-1] ^ bits[1:])[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
    assert abs(changed.mean(axis=0) - 0.5).max() < 5 * 0.5 / COUNT**0.5
    assert stats.kstest((bits >> np.uint64(11)) * 2.0**-53, "uniform").pvalue > 1e-4


def test_no_number_occurs_twice_over_items_and_positions():
    draws = Draws.of(1, 1, np.arange(512), 1)
    rows, positions = np.repeat(np.arange(512), 512), np.tile(np.arange(512), 512)
    assert len(set(draws.bits(0, rows, positions).tolist())) == 1 << 18
    # the control: a sum that is linear in index and position repeats itself
    linear = mix_bits((rows + positions).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    assert len(set(linear.tolist())) == 1023


def test_draws_are_of_the_row_and_not_of_its_place():
    draws = Draws.of(7, 2, np.array([5, 9, 5, 1]), np.array([1, 1, 1, 2]))
    some = draws.select(np.array([3, 1]))
    assert draws.per_row(4)[[3, 1]].tolist() == some.per_row(4).tolist()
    assert draws.per_row(4)[0] == draws.per_row(4)[2] != draws.per_row(5)[0]
    rows, positions = np.array([3, 1, 1]), np.array([0, 7, 8])
    assert draws.bits(1, rows, positions).tolist() == some.bits(1, np.array([0, 1, 1]), positions).tolist()
    assert draws.fold(1).key.tolist() != draws.fold(2).key.tolist() != draws.key.tolist()
    one, two = Draws.of(-1, 2**40, np.array([2**60]), 0), Draws.of(2**64 - 1, 2**40, np.array([2**60]), 0)
    assert one.key.tolist() == two.key.tolist()


def choose_few(draws, purpose, counts, sizes):
    return draws.choose_few(purpose, counts, sizes, max(counts))


@pytest.mark.parametrize("choose", [Draws.choose, choose_few])
def test_chosen_slots_are_uniform_in_random_order(choose):
    size = 6_000
    draws = Draws.of(1, 1, np.arange(size), 1)
    rows, slots, ranks = choose(draws, 0, np.full(size, 2), np.full(size, 4))
    assert rows.tolist() == np.repeat(np.arange(size), 2).tolist() and ranks.tolist() == [0, 1] * size
    both = slots.reshape(size, 2)
    counts = np.bincount(both[:, 0] * 4 + both[:, 1], minlength=16).reshape(4, 4)
    assert not counts.diagonal().any()
    assert stats.chisquare(counts[~np.eye(4, dtype=bool)]).pvalue > 1e-3
    # and so is every order of a whole row
    _, slots, _ = choose(Draws.of(2, 1, np.arange(size), 1), 0, np.full(size, 3), np.full(size, 3))
    counts = Counter(map(tuple, slots.reshape(size, 3).tolist()))
    assert set(counts) == set(itertools.permutations(range(3))) and stats.chisquare([*counts.values()]).pvalue > 1e-3


def test_a_few_of_many_slots_are_those_of_the_row_alone():
    sizes, counts = np.array([0, 5, 1, 70, 0, 3]), np.array([0, 5, 0, 4, 0, 1])
    draws = Draws.of(1, 1, np.arange(6), 1)
    rows, slots, ranks = draws.choose_few(2, counts, sizes, 5)
    assert np.bincount(rows, minlength=6).tolist() == counts.tolist()
    assert ranks.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 0] and sorted(slots[:5]) == [0, 1, 2, 3, 4]
    assert len(set(slots[rows == 3])) == 4 and slots[rows == 3].max() < 70
    alone = draws.select(np.array([3])).choose_few(2, counts[3:4], sizes[3:4], 5)
    assert alone[1].tolist() == slots[rows == 3].tolist()


def test_choosing_is_of_the_row_also_where_rows_and_slots_are_many(monkeypatch):
    sizes, counts = np.array([0, 5, 1, 70, 0, 3]), np.array([0, 5, 0, 31, 0, 1])
    draws = Draws.of(1, 1, np.arange(6), 1)
    found = [part.tolist() for part in draws.choose(2, counts, sizes)]
    assert [sum(row == number for row in found[0]) for number in range(6)] == counts.tolist()
    alone = draws.select(np.array([3])).choose(2, counts[3:4], sizes[3:4])
    assert alone[1].tolist() == [slot for row, slot in zip(*found[:2], strict=True) if row == 3]
    for narrow in (4, 64):  # fewer than rows, than slots
        monkeypatch.setattr(seeding, "_NARROW", narrow)
        assert [part.tolist() for part in draws.choose(2, counts, sizes)] == found


def test_choosing_is_of_the_row_also_in_a_batch_of_many_rows() -> None:
    size = (1 << 16) + 50
    draws = Draws.of(1, 1, np.arange(size), 1)
    rows, slots, _ = draws.choose(0, np.ones(size, int), np.full(size, 3))
    assert rows.tolist() == list(range(size))
    last = np.array([size - 1])
    assert slots[-1:].tolist() == draws.select(last).choose(0, np.ones(1, int), np.full(1, 3))[1].tolist()
