"""Random generators for each seed, epoch, item and view."""

import hashlib
import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from fairseq_clear.seeding import rng_for

MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645  # of PCG64 (O'Neill 2014)


@pytest.mark.parametrize("names", [(1, 1, 0, 0), (7, 40, 10**9, 6), (-1, 2, 3, 4), (2**70, 1, 2**40, 1)])
def test_states_are_hashes_of_the_names(names):
    """PCG64's seeding, written out: a change of it would change the views of every resumed run."""
    words = np.frombuffer(hashlib.shake_128(repr(names).encode()).digest(32), "<u8").tolist()
    increment = (words[2] << 64 | words[3]) << 1 | 1
    state = ((increment + (words[0] << 64 | words[1])) * MULTIPLIER + increment) % 2**128
    found = rng_for(*names).bit_generator.state["state"]
    assert found == {"state": state, "inc": increment % 2**128}


def test_generators_differ_in_each_name():
    names = itertools.product(range(3), range(3), range(30), range(4))
    states = {rng_for(*each).bit_generator.state["state"]["state"] for each in names}
    assert len(states) == 3 * 3 * 30 * 4
    assert rng_for(1, 12, 3, 0).random() != rng_for(11, 2, 3, 0).random(), "names are separated before hashing"


@pytest.mark.parametrize("name", range(4))
def test_first_draws_of_neighbours_are_uniform(name):
    """Consecutive items, epochs, views: as independent as draws of one generator."""
    draws = []
    for value in range(4_000):
        names = [1, 1, 1, 1]
        names[name] = value
        draws.append(rng_for(*names).random())
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 4 / np.sqrt(len(draws))


def test_numpy_integers_and_other_processes_draw_the_same():
    here = rng_for(*np.array([3, 2, 1, 0], np.int32)).random()
    code = "from fairseq_clear.seeding import rng_for; print(repr(rng_for(3, 2, 1, 0).random()))"
    there = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert float(there.stdout) == here == pickle.loads(pickle.dumps(rng_for(3, 2, 1, 0))).random()
