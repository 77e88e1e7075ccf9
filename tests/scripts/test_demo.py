"""The demonstration's text: the same on every machine that has the packages of requirements.txt."""

from importlib import metadata
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture
def corpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """``examples/demo/corpus.py`` with a requirements.txt of one package."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "demo"))
    import corpus

    monkeypatch.setattr(corpus, "PROJECT", tmp_path)
    (tmp_path / "requirements.txt").write_text(f"# of the test\npackaging=={metadata.version('packaging')}  # why\n")
    return corpus


def test_only_listed_packages_are_read(corpus) -> None:
    found = corpus.documents()
    assert found and {document.package for document in found} == {"packaging"}


@pytest.mark.parametrize("line", ["packaging==1.0", "no-such-package==1.0"])
def test_another_version_is_refused(corpus, line: str, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(line)
    with pytest.raises(SystemExit, match=line.split("==")[0] + r" is .*run the demo in \.venv"):
        corpus.documents()
