"""Models of transformers and CTranslate2 against decoding by hand and against each other, and what they report as errors."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.libraries import quiet_transformers
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, ModelSource, Search
from fairseq_clear.preparation.back_translation.translator import Translation, Translator, language_tokens
from fairseq_clear.preparation.back_translation.translator_kinds import identity, load_translator
from tests.preparation.back_translation.tiny_translators import (
    NO_CTRANSLATE2,
    POSITIONS,
    convert,
    make_m2m100,
    make_marian,
    texts,
)

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
LANGUAGES = ("en", "pt")
TEXTS = texts(24, seed=3)
GREEDY = Search(beam=1)
LIMIT = 15


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


def settings_of(path: Path, languages: tuple[str, str] | None = None, search: Search = GREEDY) -> BackTranslateSettings:
    source = ModelSource(str(path), languages=languages)
    files = {"input": path / "in", "output": path / "out"}
    return BackTranslateSettings(**files, forward=source, backward=source, device="cpu", threads=1, search=search)


def load(path: Path, languages: tuple[str, str] | None = None, search: Search = GREEDY) -> Translator:
    return load_translator(settings_of(path, languages, search), "forward", CPU)


def translate(model: Translator, seed: int = 1, count: int = 1) -> list[list[Translation]]:
    return model.translate_batch([model.encode(text) for text in TEXTS], seed, count)


def decode_by_hand(folder: Path, first: list[str], forced: list[str], end: int) -> list[str]:
    """The most probable token after each prefix, one text at a time, without cache and padding.

    Args:
        folder: of transformers.
        first: tokens before those of the text.
        forced: first tokens of the translation.
        end: id of ``</s>``.
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
            limit = LIMIT + start
            while len(target) <= limit:
                scores = model(input_ids=source, decoder_input_ids=torch.tensor([target])).logits[0, -1]
                scores[banned] = -torch.inf
                if len(target) == start:
                    scores[end] = -torch.inf
                target.append(int(scores.argmax()))
                if target[-1] == end:
                    break
            results.append(tokenizer.decode([index for index in target[start:] if index != end]).strip())
    return results


def by_hand(folder: Path, marks: tuple[str, str] | None, end: int) -> list[str]:
    first, forced = ([marks[0]], [marks[1]]) if marks else ([], [])
    return [" ".join(text.split()) for text in decode_by_hand(folder, first, forced, end)]


def test_marian_translates_as_by_hand(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(models / "marian", search=Search(beam=1, max_len_a=0, max_len_b=LIMIT))
    found = translate(model)
    assert [one.text for (one,) in found] == by_hand(models / "marian", None, 0)
    assert {one.is_cut for (one,) in found} == {True, False}
    assert model.languages is None and model.max_source == POSITIONS and not model.draws
    penalty = Search(beam=4, max_len_a=0, max_len_b=LIMIT)
    assert translate(load(models / "marian", search=penalty)) != found


def test_m2m100_translates_as_by_hand(models: Path) -> None:
    search = Search(beam=1, max_len_a=0, max_len_b=LIMIT)
    found = translate(load(models / "m2m100", LANGUAGES, search))
    assert [one.text for (one,) in found] == by_hand(models / "m2m100", ("__en__", "__pt__"), 2)
    assert found != translate(load(models / "m2m100", ("en", "de"), search))
    assert found != translate(load(models / "m2m100", ("fr", "pt"), search))


@NO_CTRANSLATE2
@pytest.mark.parametrize(
    "search", [GREEDY, Search(beam=4), Search(beam=4, lenpen=0), Search(beam=4, lenpen=0, max_len_a=0, max_len_b=6)]
)
def test_ctranslate2_translates_as_transformers(converted: Path, search: Search) -> None:
    theirs, ours = (load(converted / name, search=search) for name in ("marian", "marian-ct2"))
    assert ours.max_source == theirs.max_source == POSITIONS
    found = translate(ours)
    assert found == translate(theirs)
    assert {one.is_cut for (one,) in found} == {True, False}
    if search.lenpen == 0:  # the two count lengths differently: with a penalty, the others change places
        several = translate(ours, count=4)
        assert several == translate(theirs, count=4)
        assert [one[:1] for one in several] == found and {len(one) for one in several} == {4}


@NO_CTRANSLATE2
def test_ctranslate2_knows_the_languages(converted: Path) -> None:
    theirs, ours = (load(converted / name, LANGUAGES) for name in ("m2m100", "m2m100-ct2"))
    found = translate(ours)
    assert found == translate(theirs)
    assert found != translate(load(converted / "m2m100-ct2", ("en", "de")))


KINDS = ["marian", pytest.param("marian-ct2", marks=NO_CTRANSLATE2)]


@pytest.fixture
def folder(request: pytest.FixtureRequest, models: Path) -> Path:
    if request.param == "marian-ct2":
        request.getfixturevalue("converted")
    return models / str(request.param)


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_samples_depend_on_the_seed_alone(folder: Path) -> None:
    model = load(folder, search=Search(sampling="both", sampling_topk=10))
    first, other, again = translate(model, 1), translate(model, 2), translate(model, 1)
    assert first == again != other
    assert model.draws and translate(load(folder, search=Search(sampling="both", sampling_topk=10)), 1) == first
    one = Search(sampling="forward", sampling_topk=1)
    assert translate(load(folder, search=one)) == translate(load(folder))
    cold = Search(sampling="forward", temperature=1e-6)
    assert translate(load(folder, search=cold)) == translate(load(folder))
    top = Search(sampling="forward", sampling_topp=0.0001)
    assert translate(load(folder, search=top)) == translate(load(folder))


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_special_words_of_the_text_are_not_special(folder: Path) -> None:
    model = load(folder)
    tokens = model.encode("bada </s> <pad> kefe")
    assert tokens.count(model.encode("")[0]) == 1
    assert model.count_unknown(model.encode("bada kefe")) == 0
    assert model.count_unknown(model.encode("bada ⅷ kefe")) > 0


@NO_CTRANSLATE2
def test_tokenizer_json_gives_the_subwords_of_its_sentencepiece_model(converted: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = json.loads((converted / "marian" / "vocab.json").read_text())
    folder = tmp_path / "json"
    shutil.copytree(converted / "marian-ct2", folder)
    for name in ("source.spm", "target.spm"):
        (folder / name).unlink()
    words = models.WordLevel(pieces, "<unk>")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["</s>", "<unk>", "<pad>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    model = load(folder)
    assert model.encode("ab</s>")[:2] == ["a", "b"] and model.encode("ab</s>").count("</s>") == 1
    assert all(isinstance(one.text, str) for (one,) in translate(model))


def edited(source: Path, folder: Path, edit: Callable[[Path], Any]) -> BackTranslateSettings:
    shutil.copytree(source, folder)
    edit(folder)
    return settings_of(folder)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (
            lambda f: (f / "config.json").write_text('{"model_type": "t5"}'),
            "type t5; give one of type marian or m2m_100",
        ),
        (lambda f: (f / "config.json").write_text("[]"), "not a JSON object"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x"), "transformers cannot load it"),
        (lambda f: (f / "source.spm").unlink(), "transformers cannot load it"),
    ],
)
def test_incomplete_folder_of_transformers_is_one_line(models: Path, tmp_path: Path, edit: Any, told: str) -> None:
    settings = edited(models / "marian", tmp_path / "model", edit)
    with pytest.raises(UserError, match=told) as caught:
        identity(settings, "forward")
        load_translator(settings, "forward", CPU)
    assert "\n" not in str(caught.value)


@NO_CTRANSLATE2
@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda f: (f / "source.spm").unlink(), "no tokenizer; copy source.spm and target.spm"),
        (lambda f: (f / "target.spm").write_text("x"), "not a sentencepiece model"),
        (lambda f: (f / "shared_vocabulary.json").unlink(), "no shared_vocabulary.json"),
        (lambda f: (f / "shared_vocabulary.json").write_text("["), "not JSON"),
        (lambda f: (f / "model.bin").write_bytes(b""), "not a complete model"),
        (lambda f: (f / "model.bin").write_bytes((f / "model.bin").read_bytes()[:900]), "CTranslate2 cannot load it"),
    ],
)
def test_incomplete_folder_of_ctranslate2_is_one_line(converted: Path, tmp_path: Path, edit: Any, told: str) -> None:
    settings = edited(converted / "marian-ct2", tmp_path / "model", edit)
    with pytest.raises(UserError, match=told) as caught:
        load_translator(settings, "forward", CPU)
    assert "\n" not in str(caught.value)


@NO_CTRANSLATE2
def test_missing_ctranslate2_names_the_extra(converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r"pip install 'fairseq_clear\[translate\]'"):
        load(converted / "marian-ct2")


def test_languages_are_given_where_they_are_needed(models: Path) -> None:
    with pytest.raises(UserError, match=r"several languages \(af, am, .*add --forward-languages SOURCE:TARGET"):
        load(models / "m2m100")
    with pytest.raises(UserError, match=r"--forward-languages en:klingon: .* does not know klingon; it has af"):
        load(models / "m2m100", ("en", "klingon"))
    with pytest.raises(UserError, match="no language tokens in its vocabulary; leave the flag out"):
        load(models / "marian", LANGUAGES)


def test_opus_mt_marks_the_target_in_the_source() -> None:
    several, nllb = {">>por<<", ">>spa<<", "a"}, {"eng_Latn", "por_Latn", "a"}
    assert language_tokens(several, ("eng", "por"), "forward", "x") == ([">>por<<"], [])
    assert language_tokens(several, ("por", "eng"), "forward", "x") == ([], [])
    assert language_tokens(nllb, ("eng_Latn", "por_Latn"), "forward", "x") == (["eng_Latn"], ["por_Latn"])
    assert language_tokens({"a", "b_c"}, None, "forward", "x") == ([], [])


def test_identity_is_that_of_files_and_languages(models: Path, tmp_path: Path) -> None:
    settings = edited(models / "marian", tmp_path / "model", lambda folder: None)
    before = identity(settings, "forward")
    assert {"config.json", "model.safetensors", "source.spm", "vocab.json"} <= set(before)
    with open(tmp_path / "model" / "vocab.json", "a") as stream:
        stream.write(" ")
    after = identity(settings, "forward")
    assert {name for name in before if before[name] != after[name]} == {"vocab.json"}
    assert identity(settings_of(models / "m2m100", LANGUAGES), "forward")["languages"] == "en:pt"
