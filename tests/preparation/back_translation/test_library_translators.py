"""Models of transformers and CTranslate2 against decoding by hand and against each other, and what they report as errors."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.libraries import quiet_transformers
from fairseq_clear.preparation.back_translation.ctranslate2_translator import CTranslate2Translator
from fairseq_clear.preparation.back_translation.translating import find_kind
from fairseq_clear.preparation.back_translation.translation_settings import OneDirection
from fairseq_clear.preparation.back_translation.translator import Translation, Translator, language_tokens
from tests.preparation.back_translation.tiny_translators import (
    NO_CTRANSLATE2,
    POSITIONS,
    convert,
    make_m2m100,
    make_marian,
    texts,
)

pytestmark = pytest.mark.slow
LANGUAGES = ("en", "pt")
TEXTS = texts(24, seed=3)
LIMIT = 15
SHORT = {"max_len_a": 0.0, "max_len_b": LIMIT}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_marian(folder / "marian", ends=7)
    make_m2m100(folder / "m2m100")
    return folder


@pytest.fixture(scope="module")
def converted(models: Path) -> Path:
    """The same weights for CTranslate2."""
    if not (models / "marian-ct2").exists():
        convert(models / "marian", models / "marian-ct2", "source.spm", "target.spm")
        convert(models / "m2m100", models / "m2m100-ct2", "sentencepiece.bpe.model")
    return models


def load(path: Path, languages: tuple[str, str] | None = None, **others: Any) -> Translator:
    files = {"input": path / "in", "output": path / "out", "model": str(path), "model_languages": languages}
    model = OneDirection(**files, device="cpu", **{"beam": 1, **SHORT, **others}).models[0]
    kind = find_kind(model)
    kind.files(model)
    return kind(model, torch.device("cpu"))


def search(model: Translator, seed: int = 1) -> list[Translation]:
    return model.search([model.encode(text) for text in TEXTS], seed)


def decode_by_hand(folder: Path, first: list[str], forced: list[str], end: int) -> list[str]:
    """The most probable token after each prefix, one text at a time, without cache and padding; ``end`` is the id of ``</s>``.

    ``first`` are the tokens before those of the text, ``forced`` the first ones of the translation.
    """
    results = []
    with quiet_transformers() as transformers, torch.no_grad():
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(folder)).eval()
        banned = [tokenizer.unk_token_id, tokenizer.pad_token_id]
        for text in TEXTS:
            marks = [tokenizer.convert_tokens_to_ids(token) for token in first]
            source = torch.tensor([[*marks, *tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)), end]])
            target = [model.config.decoder_start_token_id, *map(tokenizer.convert_tokens_to_ids, forced)]
            start = len(target)
            while len(target) <= LIMIT + start:
                scores = model(input_ids=source, decoder_input_ids=torch.tensor([target])).logits[0, -1]
                scores[banned] = -torch.inf
                if len(target) == start:
                    scores[end] = -torch.inf
                target.append(int(scores.argmax()))
                if target[-1] == end:
                    break
            results.append(tokenizer.decode([index for index in target[start:] if index != end]).strip())
    return [" ".join(text.split()) for text in results]


def test_marian_translates_as_by_hand(models: Path) -> None:
    model = load(models / "marian")
    found = model.translate(TEXTS)
    assert [one.text for one in found] == decode_by_hand(models / "marian", [], [], 0)
    assert {one.is_cut for one in found} == {True, False}
    assert model.languages is None and model.max_source == POSITIONS and not model.draws
    assert load(models / "marian", beam=4).translate(TEXTS) != found


def test_m2m100_translates_as_by_hand(models: Path) -> None:
    found = load(models / "m2m100", LANGUAGES).translate(TEXTS)
    assert [one.text for one in found] == decode_by_hand(models / "m2m100", ["__en__"], ["__pt__"], 2)
    for others in (("en", "de"), ("fr", "pt")):
        assert found != load(models / "m2m100", others).translate(TEXTS)


@NO_CTRANSLATE2
@pytest.mark.parametrize("how", [{}, {"beam": 4}, {"beam": 4, "max_len_b": 6}])
def test_ctranslate2_translates_as_transformers(converted: Path, how: dict[str, Any]) -> None:
    theirs, ours = (load(converted / name, **how) for name in ("marian", "marian-ct2"))
    found = ours.translate(TEXTS)
    assert found == theirs.translate(TEXTS) and {one.is_cut for one in found} == {True, False}


@NO_CTRANSLATE2
def test_ctranslate2_knows_the_languages(converted: Path) -> None:
    found = load(converted / "m2m100-ct2", LANGUAGES).translate(TEXTS)
    assert found == load(converted / "m2m100", LANGUAGES).translate(TEXTS)
    assert found != load(converted / "m2m100-ct2", ("en", "de")).translate(TEXTS)


@pytest.fixture(params=["marian", pytest.param("marian-ct2", marks=NO_CTRANSLATE2)])
def folder(request: pytest.FixtureRequest, models: Path) -> Path:
    if request.param == "marian-ct2":
        request.getfixturevalue("converted")
    return models / str(request.param)


def test_samples_depend_on_the_seed_alone(folder: Path) -> None:
    model = load(folder, beam=None, sampling=10)
    first, other, again = search(model, 1), search(model, 2), search(model, 1)
    assert first == again != other and model.draws
    assert search(load(folder, beam=None, sampling=0), 1) != first
    assert search(load(folder, beam=None, sampling=1)) == search(load(folder))


def test_special_words_of_the_text_are_not_special(folder: Path) -> None:
    model = load(folder)
    tokens = model.encode("bada </s> <pad> kefe")
    assert tokens.count(model.encode("")[0]) == 1
    found = model.translate(["bada kefe", "bada ⅷ kefe"])
    assert found[0].unknown == 0 < found[1].unknown


@pytest.mark.parametrize(
    ("name", "edit", "told"),
    [
        ("marian", lambda f: (f / "config.json").write_text('{"model_type": "bert"}'), "transformers cannot load it"),
        ("marian", lambda f: (f / "model.safetensors").write_bytes(b"x"), "transformers cannot load it"),
        ("marian", lambda f: (f / "source.spm").unlink(), "transformers cannot load it"),
        ("marian-ct2", lambda f: (f / "source.spm").unlink(), "no tokenizer; copy source.spm and target.spm"),
        ("marian-ct2", lambda f: (f / "target.spm").write_text("x"), "not a sentencepiece model"),
        ("marian-ct2", lambda f: (f / "shared_vocabulary.json").unlink(), "cannot read its vocabulary"),
        ("marian-ct2", lambda f: (f / "shared_vocabulary.json").write_text("["), "cannot read its vocabulary"),
        ("marian-ct2", lambda f: (f / "model.bin").write_bytes(b"x"), "CTranslate2 cannot load it"),
    ],
)
def test_incomplete_folder_is_one_line(
    request: Any, models: Path, tmp_path: Path, name: str, edit: Any, told: str
) -> None:
    if name == "marian-ct2":
        pytest.importorskip("ctranslate2")
        request.getfixturevalue("converted")
    shutil.copytree(models / name, tmp_path / "model")
    edit(tmp_path / "model")
    with pytest.raises(UserError, match=told) as caught:
        load(tmp_path / "model")
    assert "\n" not in str(caught.value)


@NO_CTRANSLATE2
def test_missing_ctranslate2_names_the_extra(converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r"pip install 'fairseq_clear\[translate\]'"):
        load(converted / "marian-ct2")


def test_languages_are_given_where_they_are_needed(models: Path) -> None:
    for name, languages, told in (
        ("m2m100", None, "--model-languages not given: .*m2m100 knows the languages af, am, "),
        ("m2m100", ("en", "klingon"), "--model-languages en:klingon: "),
        ("marian", LANGUAGES, "--model-languages en:pt: "),
    ):
        with pytest.raises(UserError, match=told):
            load(models / name, languages)


def test_opus_mt_marks_the_target_in_the_source() -> None:
    several, nllb = {">>por<<", ">>spa<<", "a"}, {"eng_Latn", "por_Latn", "a"}
    for vocabulary, languages, marks in (
        (several, ("eng", "por"), ([">>por<<"], [])),
        (several, ("por", "eng"), ([], [])),
        (nllb, ("eng_Latn", "por_Latn"), (["eng_Latn"], ["por_Latn"])),
        ({"a", "b_c"}, None, ([], [])),
    ):
        settings = OneDirection(input=Path("i"), output=Path("o"), model="x", model_languages=languages)
        assert language_tokens(vocabulary, settings.models[0]) == marks


@NO_CTRANSLATE2
@pytest.mark.parametrize("limit", [POSITIONS, 10 * POSITIONS])
def test_a_long_text_fails_alone(converted: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Ours or the library's limit."""
    monkeypatch.setattr(CTranslate2Translator, "max_source", limit)
    found = load(converted / "marian-ct2").translate([" ".join(TEXTS), "bada"])
    assert not found[0].text and found[1].text
