"""Models of transformers and CTranslate2 against each other, and what they report as errors."""

import shutil
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.translating import find_kind
from fairseq_clear.preparation.back_translation.translation_settings import OneDirection
from fairseq_clear.preparation.back_translation.translator import Translation, Translator, language_tokens
from tests.preparation.back_translation.tiny_translators import convert, make_m2m100, make_marian, texts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ctranslate2") is None, reason="ctranslate2 is not installed (extra translate)"),
]
BOTH = pytest.mark.parametrize("name", ["marian", "marian-ct2"])
TEXTS = texts(24, seed=3)
SHORT = {"max_len_a": 0.0, "max_len_b": 15}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of transformers, and the same weights for CTranslate2."""
    folder = tmp_path_factory.mktemp("models")
    make_marian(folder / "marian", ends=7)
    convert(folder / "marian", folder / "marian-ct2", "source.spm", "target.spm")
    make_m2m100(folder / "m2m100")
    convert(folder / "m2m100", folder / "m2m100-ct2", "sentencepiece.bpe.model")
    return folder


def load(path: Path, languages: tuple[str, str] | None = None, **others: Any) -> Translator:
    files = {"input": path / "in", "output": path / "out", "model": str(path), "model_languages": languages}
    model = OneDirection(**files, device="cpu", **{"beam": 1, **SHORT, **others}).models[0]
    kind = find_kind(model)
    kind.files(model)
    return kind(model, torch.device("cpu"))


def search(model: Translator, seed: int = 1) -> list[Translation]:
    return model.search([model.encode(text) for text in TEXTS], seed)


def test_both_libraries_translate_alike(models: Path) -> None:
    """With greedy search and a beam, and between languages; each of these changes the translations."""
    settings = [("marian", None, {}), ("marian", None, {"beam": 4})]
    settings += [("m2m100", pair, {}) for pair in (("en", "pt"), ("en", "de"), ("fr", "pt"))]
    found = [load(models / name, pair, **how).translate(TEXTS) for name, pair, how in settings]
    assert found == [load(models / f"{name}-ct2", pair, **how).translate(TEXTS) for name, pair, how in settings]
    assert all(one != other for one, other in combinations(found, 2))
    assert {one.is_cut for one in found[0]} == {True, False}


@BOTH
def test_samples_depend_on_the_seed_alone(models: Path, name: str) -> None:
    folder = models / name
    model = load(folder, beam=None, sampling=10)
    first, other, again = search(model, 1), search(model, 2), search(model, 1)
    assert first == again != other and model.draws
    assert search(load(folder, beam=None, sampling=0), 1) != first
    assert search(load(folder, beam=None, sampling=1)) == search(load(folder))


@BOTH
def test_special_words_of_the_text_are_not_special(models: Path, name: str) -> None:
    model = load(models / name)
    other = load(models / ("marian" if name == "marian-ct2" else "marian-ct2"))
    text = ">> bada << kefe"  # Marian's tokenizer takes the beginning as a language
    assert len(model.encode(text)) == len(other.encode(text)) > 4
    tokens = model.encode("bada </s> <pad> kefe")
    assert tokens.count(model.encode("")[0]) == 1
    found = model.translate(["bada kefe", "bada ⅷ kefe"])
    assert found[0].unknown == 0 < found[1].unknown


@pytest.mark.parametrize(
    ("name", "edit", "told"),
    [
        ("marian", lambda f: (f / "model.safetensors").write_bytes(b"x"), "transformers cannot load it"),
        ("marian-ct2", lambda f: (f / "source.spm").unlink(), "no tokenizer; copy source.spm and target.spm"),
        ("marian-ct2", lambda f: (f / "shared_vocabulary.json").unlink(), "cannot read it .* convert it again"),
        ("marian-ct2", lambda f: (f / "config.json").write_text("[]"), "holds a list, not a dict; .* convert it again"),
        ("marian-ct2", lambda f: (f / "model.bin").write_bytes(b"x"), "CTranslate2 cannot load it"),
    ],
)
def test_incomplete_folder_is_one_line(models: Path, tmp_path: Path, name: str, edit: Any, told: str) -> None:
    shutil.copytree(models / name, tmp_path / "model")
    edit(tmp_path / "model")
    with pytest.raises(UserError, match=told):
        load(tmp_path / "model")


SEVERAL, NLLB = {">>por<<", ">>spa<<", "a"}, {"eng_Latn", "por_Latn", "a"}


@pytest.mark.parametrize(
    ("vocabulary", "languages", "marks"),
    [
        (SEVERAL, ("eng", "por"), ([">>por<<"], [])),
        (SEVERAL, ("por", "eng"), ([], [])),
        (NLLB, ("eng_Latn", "por_Latn"), (["eng_Latn"], ["por_Latn"])),
        ({"a", "b_c"}, None, ([], [])),
        (NLLB, None, "--model-languages not given: x knows the languages eng_Latn, por_Latn"),
        (NLLB, ("eng_Latn", "klingon"), "--model-languages eng_Latn:klingon: "),
        ({"en", "pt", "__en__", "__pt__"}, ("en", "pt"), (["__en__"], ["__pt__"])),  # "en" is also a piece of words
        ({"en", "pt", *SEVERAL, ">>pt<<"}, ("en", "pt"), ([">>pt<<"], [])),
        ({"en", "pt"}, ("en", "pt"), "--model-languages en:pt: x knows the languages of one pair only"),
        ({"a"}, ("en", "pt"), "--model-languages en:pt: x knows the languages of one pair only"),
    ],
)
def test_tokens_of_languages(vocabulary: set[str], languages: Any, marks: Any) -> None:
    """OPUS-MT marks the target language in the source text, the other models mark both languages."""
    settings = OneDirection(input=Path("i"), output=Path("o"), model="x", model_languages=languages)
    with pytest.raises(UserError, match=marks) if isinstance(marks, str) else nullcontext():
        assert language_tokens(vocabulary, settings.models[0]) == marks
