import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_translators_are_left() -> Iterator[None]:
    """A process forked later would wait for the threads of CTranslate2 when it takes a translator apart."""
    yield
    gc.collect()
