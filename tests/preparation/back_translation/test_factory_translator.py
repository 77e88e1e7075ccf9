"""Functions of the user as translators, and their errors in one line."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.translating import translate_file
from fairseq_clear.preparation.back_translation.translation_settings import OneDirection

MODULE = """
import random
class Reversed:
    def translate(self, texts):
        open("sizes", "a").write(f"{sum(len(text.split()) for text in texts)}\\n")
        return [" ".join(reversed(text.split())).upper() for text in texts]
class Drawn:
    def translate(self, texts, seed): return [f"{random.Random(seed).random()} {text}" for text in texts]
class Needs:
    def translate(self, texts, beam): return texts
class Short:
    def translate(self, texts): return texts[1:]
class Fails:
    def translate(self, texts): raise RuntimeError("out of luck")
def raises(): raise RuntimeError("no licence\\nfor today")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Name of a module in the working directory, another for each test."""
    name = f"words_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return name


def translate(model: str, **others: Any) -> list[str]:
    Path("text").write_text("one two\n\nthree\nfour five six\nseven\n")
    settings = OneDirection(input=Path("text"), output=Path("out"), model=model, device="cpu", overwrite=True, **others)
    translate_file(settings)
    return settings.output.read_text().split("\n")[:-1]


def test_words_are_passed_on_whole_and_in_order(module: str) -> None:
    reversed_ = ["TWO ONE", "", "THREE", "SIX FIVE FOUR", "SEVEN"]
    assert translate(f"{module}:Reversed", max_tokens=5) == reversed_
    assert Path("sizes").read_text().split() == ["3", "2", "2"]  # a batch's limit counts an end for each text


def test_seed_and_source_determine_the_text(module: str) -> None:
    first = translate(f"{module}:Drawn")
    assert first == translate(f"{module}:Drawn") != translate(f"{module}:Drawn", seed=2)
    with open(f"{module}.py", "a") as stream:
        stream.write("# changed\n")
    with pytest.raises(UserError, match="exists already"):
        translate_file(OneDirection(input=Path("text"), output=Path("out"), model=f"{module}:Drawn", device="cpu"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("raises", "no licence"),
        ("Needs", "the only other parameter may be seed .*beam"),
        ("absent", "cannot import it"),
        ("Short", "must return a list of 4 str"),
        ("Fails", "none of 4 texts"),
    ],
)
def test_broken_function_is_one_line(module: str, name: str, told: str) -> None:
    with pytest.raises(UserError, match=rf"^--model {module}:{name}: .*{told}"):
        translate(f"{module}:{name}")
    assert {path.name for path in Path().iterdir()} - {"__pycache__"} == {"text", f"{module}.py"}
