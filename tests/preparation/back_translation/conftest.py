import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.preparation.back_translation.toys import train_toys


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_toys(tmp_path_factory)


@pytest.fixture(scope="module", autouse=True)
def no_translators_are_left() -> Iterator[None]:
    """A process forked later would wait for the threads of CTranslate2 when it takes a translator apart."""
    yield
    gc.collect()
