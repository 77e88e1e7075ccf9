"""A folder of fairseq becomes a model, or one line saying why not."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import hub_utils
from fairseq.models.transformer import TransformerModel

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.fairseq_translator import FairseqTranslator, find_files
from fairseq_clear.preparation.back_translation.translation_settings import OneDirection
from tests.preparation.back_translation.archives import PIECES, SENTENCE, make_archive
from tests.preparation.corpora import sentencepiece_model

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    make_archive(folder / "en-de", "en", "de")
    make_archive(folder / "de-en", "de", "en", seed=7)
    return folder


def settings_of(folder: Path, **others: Any) -> OneDirection:
    return OneDirection(input=folder / "text", output=folder / "out", model=str(folder), device="cpu", **others)


def load(folder: Path, **others: Any) -> FairseqTranslator:
    return FairseqTranslator(settings_of(folder, **others).models[0], CPU)


def test_archive_is_tokenized_as_moses_and_fastbpe_do(archives: Path) -> None:
    model = load(archives / "en-de")
    assert model.languages == ("en", "de") and model.max_source == 48
    dictionary = model.task.source_dictionary
    assert model.split(SENTENCE) == PIECES == [dictionary[index] for index in model.encode(SENTENCE)[:-1]]
    assert load(archives / "de-en").join(PIECES) == SENTENCE


def test_translations_equal_the_hub(archives: Path) -> None:
    """fairseq's own interface on the same files and ids."""
    model = load(archives / "en-de", beam=4, max_len_a=0, max_len_b=30)
    texts = [SENTENCE, "the cat", "he sat. he sat, the cat"]
    ids = [model.encode(text) for text in texts]
    loaded = hub_utils.from_pretrained(str(archives / "en-de"), "model.pt", archive_map=TransformerModel.hub_models())
    hub = hub_utils.GeneratorHubInterface(loaded["args"], loaded["task"], loaded["models"])
    flags = {"beam": 4, "max_len_a": 0, "max_len_b": 30, "unkpen": float("inf")}
    found = hub.generate([torch.tensor(one) for one in ids], **flags)
    expected = [model.join(hub.string(best[0]["tokens"]).split()) for best in found]
    assert [one.text for one in model.translate(texts)] == expected


def test_without_codes_words_are_whole_or_those_of_a_sentencepiece_model(archives: Path, tmp_path: Path) -> None:
    shutil.copytree(archives / "en-de", tmp_path / "words", ignore=shutil.ignore_patterns("bpecodes"))
    model = load(tmp_path / "words")
    dictionary = model.task.source_dictionary
    ids = model.encode("</s> <pad> the <s> quux")
    assert ids == [dictionary.unk()] * 2 + [dictionary.index("the")] + [dictionary.unk()] * 2 + [dictionary.eos()]
    assert model.translate(["</s> <pad> the <s> quux"])[0].unknown == 4
    assert model.split("the cat sat.") == ["the", "cat", "sat."]
    sentencepiece_model(tmp_path / "words" / "sentencepiece.bpe.model")
    model = load(tmp_path / "words")
    assert model.split("the cat sat.")[0] == "▁the" and model.join(model.split("the cat sat.")) == "the cat sat."


def test_files_that_determine_the_translations(archives: Path, tmp_path: Path) -> None:
    names = ["model.pt", "dict.de.txt", "dict.en.txt", "bpecodes"]
    assert [path.name for path in FairseqTranslator.files(settings_of(archives / "en-de").models[0])] == names
    for name in ("checkpoint_last.pt", "checkpoint_best.pt", "model2.pt", "model1.pt"):  # each before the ones so far
        (tmp_path / name).touch()
        assert find_files(settings_of(tmp_path).models[0])[0].name == name


def other_task(folder: Path) -> None:
    state = torch.load(folder / "model.pt", weights_only=False)
    state["args"].task = "language_modeling"
    torch.save(state, folder / "model.pt")


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda f: (f / "model.pt").unlink(), "holds none of model"),
        (lambda f: (f / "dict.de.txt").unlink(), "cannot be loaded with .*dict.de.txt"),
        (other_task, "was trained by"),
    ],
)
def test_a_broken_folder_is_one_line(archives: Path, tmp_path: Path, edit: Any, told: str) -> None:
    shutil.copytree(archives / "en-de", tmp_path / "model")
    edit(tmp_path / "model")
    with pytest.raises(UserError, match=told):
        load(tmp_path / "model")
