from pathlib import Path

import pytest

from tests.preparation.back_translation.toys import train_toys


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_toys(tmp_path_factory)
