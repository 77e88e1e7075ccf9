"""Functions of the user as translators: round trips with any mix of kinds, workers, kills, and errors in one line."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.finished_chunks import FinishedChunks
from fairseq_clear.preparation.back_translation.round_trip import back_translate, read_report
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, ModelSource, Search
from fairseq_clear.preparation.back_translation.translator_kinds import (
    check_flags,
    find_kind,
    identity,
    load_translator,
)
from tests.preparation.back_translation.test_resuming import finished, killed_at
from tests.preparation.back_translation.tiny_translators import NO_CTRANSLATE2, convert, make_marian, texts

CPU = torch.device("cpu")
# reverses the words; the samples put a number of the seed's before them
MODULE = """
import random

class Reversed:
    def translate(self, texts):
        return [" ".join(reversed(text.split())).upper() for text in texts]

class Drawn:
    def translate(self, texts, seed):
        rng = random.Random(seed)
        return [f"{rng.randrange(10**6)} {text.lower()}" for text in texts]

def there():
    return Reversed()

def back():
    return Reversed()

def drawn():
    return Drawn()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Name of a module in the working directory, another for each test."""
    name = f"words_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return name


def settings_of(tmp_path: Path, forward: str, backward: str, **others: Any) -> BackTranslateSettings:
    text = tmp_path / "text.txt"
    if not text.exists():
        text.write_text("".join(f"{line}\n" if line else "\n" for line in [*texts(30), "", *texts(20, seed=2)]))
    sources = {"forward": ModelSource(forward), "backward": ModelSource(backward)}
    given = {"device": "cpu", "threads": 1, "chunk_lines": 8, **sources, **others}
    return BackTranslateSettings(input=text, output=tmp_path / "out.txt", **given)


def test_words_are_passed_on_whole_and_in_order(module: str, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, f"{module}:there", f"{module}:back")
    report = back_translate(settings).report
    assert settings.output.read_text() == settings.input.read_text().upper()
    assert report["kept"] == 0 and report["forward"]["tokens"] == len(settings.input.read_text().split())
    assert back_translate(settings).was_complete


def test_batches_have_at_most_as_many_words(module: str, tmp_path: Path) -> None:
    sizes = tmp_path / "sizes"
    noted = (
        f"open({str(sizes)!r}, 'a').write(f'{{sum(len(text.split()) for text in texts)}}\\n')\n        return [\" \""
    )
    (tmp_path / f"{module}.py").write_text(MODULE.replace('return [" "', noted))
    back_translate(settings_of(tmp_path, f"{module}:there", f"{module}:back", max_tokens=20))
    found = [int(line) for line in sizes.read_text().split()]
    assert 6 < max(found) <= 20


def stop_after(chunks: int) -> Any:
    """Take the place of FinishedChunks.add: add some chunks, then act like Ctrl-C."""
    add = FinishedChunks.add

    def limited(self: FinishedChunks, *arguments: Any) -> None:
        if len(self.counts) == chunks:
            raise KeyboardInterrupt
        add(self, *arguments)

    return limited


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["marian", pytest.param("ctranslate2", marks=NO_CTRANSLATE2)])
def test_any_mix_is_the_same_with_two_workers_and_after_a_stop(
    module: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples of a model forward, samples of a function back; in one process, in two, and stopped between two chunks.

    A process in which CTranslate2 has run cannot be forked, so nothing is killed here; ``test_resuming`` does that.
    """
    model = make_marian(tmp_path / "marian", ends=7)
    if kind == "ctranslate2":
        model = convert(model, tmp_path / "converted", "source.spm", "target.spm")
    search = Search(sampling="forward", sampling_topk=10, max_len_a=0, max_len_b=8)
    quiet = settings_of(tmp_path, str(model), f"{module}:drawn", search=search)
    assert back_translate(quiet).report["kept"] == 0
    wanted = quiet.output.read_bytes()
    assert wanted != quiet.input.read_bytes()
    pair = replace(quiet, output=tmp_path / "pair.txt", workers=2)
    back_translate(pair)
    assert pair.output.read_bytes() == wanted
    stopped = replace(quiet, output=tmp_path / "stopped.txt")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(FinishedChunks, "add", stop_after(3))
        back_translate(stopped)
    assert finished(stopped) == 3 and not stopped.output.exists()
    back_translate(stopped)
    assert stopped.output.read_bytes() == wanted
    other = replace(quiet, output=tmp_path / "other.txt", seed=2)
    back_translate(other)
    assert other.output.read_bytes() != wanted


def test_changed_source_does_not_resume(module: str, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, f"{module}:there", f"{module}:back")
    assert killed_at(9, lambda: back_translate(settings))
    with open(tmp_path / f"{module}.py", "a") as stream:
        stream.write("# changed\n")
    with pytest.raises(UserError, match=f"backward: other {module}.py"):
        back_translate(settings)


def test_a_model_that_cannot_be_loaded_leaves_no_folder(module: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def one(): raise RuntimeError('no licence')\n")
    settings = settings_of(tmp_path, f"{module}:there", "broken:one")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match="no licence"):
        back_translate(settings)
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == before
    assert killed_at(9, lambda: back_translate(replace(settings, backward=settings.forward)))
    with pytest.raises(UserError):  # chunks that an earlier call finished stay
        back_translate(settings)
    assert (tmp_path / "out.txt.partial").is_dir()


def test_identity_of_an_installed_package_is_its_version(tmp_path: Path) -> None:
    import sacrebleu

    settings = settings_of(tmp_path, "sacrebleu.metrics.bleu:BLEU", "sacrebleu:corpus_bleu")
    found = identity(settings, "forward")
    assert found["sacrebleu"] == sacrebleu.__version__ and len(found["bleu.py"]) == 64


BROKEN = """
def raises():
    raise RuntimeError("no licence\\nfor today")
class Plain: pass
def nothing(): return Plain()
class Needs:
    def translate(self, texts, beam): return texts
def needs(): return Needs()
class Short:
    def translate(self, texts): return texts[1:]
def short(): return Short()
class Kind:
    def translate(self, texts): return dict.fromkeys(texts)
def kind(): return Kind()
class Nones:
    def translate(self, texts): return [None for text in texts]
def none(): return Nones()
class Fails:
    def translate(self, texts): raise RuntimeError("out of luck")
def fails(): return Fails()
number = 3
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("raises", r"raises\(\) failed \(RuntimeError: no licence\)"),
        ("nothing", r"nothing\(\) returned Plain, which has no method translate"),
        ("needs", "must take a list of texts, and besides it at most seed .*beam"),
        ("number", "has no function number"),
        ("absent", "has no function absent"),
        ("short", r"^--forward \w+:short: translate returned \d+ translations of \d+ texts"),
        ("kind", r"^--forward \w+:kind: translate must return a list of str; found dict"),
        ("none", r"^--forward \w+:none: translate must return a list of str; found NoneType"),
        ("fails", "not one of 8 texts could be translated .*out of luck"),
    ],
)
def test_broken_function_is_one_line(module: str, tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / f"{module}.py").write_text(MODULE + BROKEN)
    settings = settings_of(tmp_path, f"{module}:{name}", f"{module}:back")
    with pytest.raises(UserError, match=told) as caught:
        back_translate(settings)
    assert "\n" not in str(caught.value) and not settings.output.exists()


def test_module_that_cannot_be_imported_is_one_line(module: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--backward nowhere:f: cannot import nowhere .*no module"):
        back_translate(settings_of(tmp_path, f"{module}:there", "nowhere:f"))
    (tmp_path / f"{module}.py").write_text("1 / 0")
    with pytest.raises(UserError, match=f"cannot import {module} .ZeroDivisionError"):
        load_translator(settings_of(tmp_path, f"{module}:there", f"{module}:back"), "forward", CPU)


def test_text_that_fails_alone_keeps_its_text(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(
        MODULE.replace('return [" "', "assert not any('ba' in text for text in texts); return [\" \"")
    )
    settings = settings_of(tmp_path, f"{module}:there", f"{module}:back")
    report = back_translate(settings).report
    lines = settings.input.read_text().split("\n")
    wanted = [line if "ba" in line else line.upper() for line in lines]
    assert settings.output.read_text().split("\n") == wanted
    assert report["kept"] == sum("ba" in line for line in lines) > 0
    assert read_report(settings.output)["kept_share"] == pytest.approx(report["kept"] / 50)  # type: ignore[index]


def test_nothing_to_be_found_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no model; looked for model\.bin .*; config\.json .*; model\*\.pt"):
        find_kind(ModelSource(str(tmp_path)), "forward")
    for path in ("nowhere", "a/b:c", "model.pt", "1:2"):
        with pytest.raises(UserError, match=rf"--backward {path}: no such file or folder, and not of the form package"):
            find_kind(ModelSource(path), "backward")


FAIRSEQ, FUNCTION, CT2 = "fairseq", "os:getcwd", "ctranslate2"


@pytest.mark.parametrize(
    ("forward", "backward", "change", "told"),
    [
        (CT2, CT2, {"codes": "x"}, "--forward-codes: does not apply to .*a CTranslate2 model"),
        (CT2, CT2, {"dictionaries": "x"}, "--forward-data: does not apply"),
        (FAIRSEQ, CT2, {"languages": ("a", "b")}, "--forward-languages: does not apply to .*a model of fairseq"),
        (CT2, CT2, {"bpe": "none"}, "--bpe: does not apply to a CTranslate2 model"),
        (CT2, FAIRSEQ, {"bpe": "none"}, ""),
        (FUNCTION, FUNCTION, {"search": Search(beam=3)}, "--beam: does not apply to a function"),
        (FUNCTION, CT2, {"search": Search(beam=3)}, ""),
        (FUNCTION, FUNCTION, {"fp16": True}, "--fp16: does not apply to a function"),
        (FUNCTION, CT2, {"search": Search(sampling="both")}, "--sampling: does not apply to --forward os:getcwd"),
        (FUNCTION, CT2, {"search": Search(sampling="backward")}, ""),
        (CT2, FAIRSEQ, {"search": Search(sampling="forward", beam=2)}, "--beam with --sampling: does not apply"),
        (CT2, FAIRSEQ, {"search": Search(sampling="backward", beam=2)}, ""),
        (FUNCTION, FUNCTION, {"languages": ("a", "b")}, ""),
    ],
)
def test_flags_that_do_not_apply_are_one_line(
    tmp_path: Path, forward: str, backward: str, change: dict[str, Any], told: str
) -> None:
    for name, file in ((FAIRSEQ, "model.pt"), (CT2, "model.bin")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    paths = [path if ":" in path else str(tmp_path / path) for path in (forward, backward)]
    own = {name: change.pop(name) for name in ("codes", "dictionaries", "languages") if name in change}
    settings = settings_of(tmp_path, *paths, **change)
    settings = replace(settings, forward=replace(settings.forward, **own))
    if not told:
        check_flags(settings)
        return
    with pytest.raises(UserError, match=told):
        check_flags(settings)
