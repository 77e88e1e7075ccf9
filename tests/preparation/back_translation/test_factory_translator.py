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
class Plain: pass
class Needs:
    def translate(self, texts, beam): return texts
class Short:
    def translate(self, texts): return texts[1:]
class Kind:
    def translate(self, texts): return dict.fromkeys(texts)
class Nones:
    def translate(self, texts): return [None for text in texts]
class Fails:
    def translate(self, texts): raise RuntimeError("out of luck")
def raises(): raise RuntimeError("no licence\\nfor today")
number = 3
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
    assert translate(f"{module}:Reversed") == ["TWO ONE", "", "THREE", "SIX FIVE FOUR", "SEVEN"]
    Path("sizes").unlink()
    translate(f"{module}:Reversed", max_tokens=5)
    assert Path("sizes").read_text().split() == ["3", "2", "2"]  # a batch's limit counts an end for each text


def test_samples_depend_on_the_seed(module: str) -> None:
    first = translate(f"{module}:Drawn")
    assert first == translate(f"{module}:Drawn") != translate(f"{module}:Drawn", seed=2)


def test_changed_source_is_another_model(module: str) -> None:
    translate(f"{module}:Drawn")
    with open(f"{module}.py", "a") as stream:
        stream.write("# changed\n")
    with pytest.raises(UserError, match="exists already"):
        translate_file(OneDirection(input=Path("text"), output=Path("out"), model=f"{module}:Drawn", device="cpu"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("raises", "no licence"),
        ("Plain", "must return an object with translate"),
        ("Needs", "at most a parameter seed .*beam"),
        ("number", "must return an object"),
        ("absent", "cannot import it"),
        ("Short", "must return a list of 4 str"),
        ("Kind", "must return a list of 4 str"),
        ("Nones", "must return a list of 4 str"),
        ("Fails", "not one of 4 texts"),
    ],
)
def test_broken_function_is_one_line(module: str, name: str, told: str) -> None:
    with pytest.raises(UserError, match=rf"^--model {module}:{name}: .*{told}") as caught:
        translate(f"{module}:{name}")
    assert "\n" not in str(caught.value)
    assert {path.name for path in Path().iterdir()} - {"__pycache__"} == {"text", f"{module}.py"}


def test_module_that_cannot_be_imported_is_one_line(module: str) -> None:
    Path(f"{module}.py").write_text("1 / 0")
    for name, told in (("nowhere:f", "nowhere"), (f"{module}:Drawn", "ZeroDivisionError")):
        with pytest.raises(UserError, match=f"--model {name}: cannot import it .*{told}"):
            translate(name)


@pytest.mark.parametrize("model", ["nowhere", "a/b:c", "model.pt", "1:2", "."])
def test_what_is_no_model_is_one_line(module: str, model: str) -> None:
    with pytest.raises(UserError, match=f"^--model {model}: "):
        translate(model)
