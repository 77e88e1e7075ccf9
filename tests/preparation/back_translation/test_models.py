"""What a folder holds becomes a model, or one line saying why not."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from fairseq import hub_utils
from fairseq.models.transformer import TransformerModel

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation.fairseq_translator import (
    FairseqTranslator,
    checkpoint_files,
)
from fairseq_clear.preparation.back_translation.round_trip import back_translate
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, ModelSource, Search
from tests.preparation.back_translation.archives import PIECES, SENTENCE, make_archive

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    make_archive(folder / "en-de", "en", "de", models=2)
    make_archive(folder / "de-en", "de", "en", models=1, seed=7)
    return folder


def settings_of(archives: Path, **others: Any) -> BackTranslateSettings:
    forward, backward = ModelSource(str(archives / "en-de")), ModelSource(str(archives / "de-en"))
    given = {"forward": forward, "backward": backward, "device": "cpu", **others}
    return BackTranslateSettings(input=archives / "text", output=archives / "out", **given)


def load(archives: Path, **others: Any) -> FairseqTranslator:
    return FairseqTranslator(settings_of(archives, **others), "forward", CPU)


def test_archive_is_tokenized_as_moses_and_fastbpe_do(archives: Path) -> None:
    model = load(archives)
    assert model.languages == ("en", "de") and len(model.models) == 2 and model.max_source == 48
    assert model.segmentation.encode(SENTENCE).split() == PIECES
    dictionary = model.task.source_dictionary
    assert [dictionary[index] for index in model.encode(SENTENCE)[:-1]] == PIECES
    back = FairseqTranslator(settings_of(archives), "backward", CPU)
    assert back.segmentation.decode(" ".join(PIECES)) == SENTENCE


def test_ensemble_is_that_of_the_hub(archives: Path) -> None:
    """fairseq's own interface on the same files and ids; one model alone says something else."""
    model = load(archives, search=Search(beam=4, max_len_a=0, max_len_b=30))
    texts = [SENTENCE, "the cat", "he sat. he sat, the cat"]
    ids = [model.encode(text) for text in texts]
    loaded = hub_utils.from_pretrained(
        str(archives / "en-de"), "model1.pt:model2.pt", archive_map=TransformerModel.hub_models()
    )
    hub = hub_utils.GeneratorHubInterface(loaded["args"], loaded["task"], loaded["models"])
    flags = {"beam": 4, "max_len_a": 0, "max_len_b": 30, "unkpen": float("inf")}
    found = hub.generate([torch.tensor(one) for one in ids], **flags)
    theirs = [model.segmentation.decode(hub.string(best[0]["tokens"])) for best in found]
    ours = [one.text for (one,) in model.translate_batch(ids, 0)]
    assert ours == theirs
    several = [[one.text for one in hypotheses] for hypotheses in model.translate_batch(ids, 0, 3)]
    assert several == [[model.segmentation.decode(hub.string(one["tokens"])) for one in best[:3]] for best in found]
    alone = load(archives, forward=ModelSource(str(archives / "en-de" / "model1.pt")), search=model.search)
    assert [one.text for (one,) in alone.translate_batch(ids, 0)] != theirs


def test_translations_end_at_the_greatest_length(archives: Path) -> None:
    model = load(archives, search=Search(beam=1, max_len_a=0, max_len_b=3))
    cut = [one for (one,) in model.translate_batch([model.encode("the cat"), model.encode("he")], 0)]
    assert any(one.is_cut for one in cut)
    assert all(len(one.text.split()) <= 3 for one in cut)


def test_special_words_of_the_text_are_not_special(archives: Path) -> None:
    model = load(archives, tokenizer="none", bpe="none")
    dictionary = model.task.source_dictionary
    ids = model.encode("</s> <pad> the <s> quux")
    assert ids == [dictionary.unk()] * 2 + [dictionary.index("the")] + [dictionary.unk()] * 2 + [dictionary.eos()]
    assert model.count_unknown(ids) == 4


def test_archives_make_a_round_trip(archives: Path) -> None:
    (archives / "text").write_text("the cat\n\nhe sat.\n")
    report = back_translate(settings_of(archives)).report
    assert report["lines"] == 3 and report["blank"] == 1
    assert (archives / "out").read_text().count("\n") == 3


def test_sentencepiece_model_beside_the_checkpoint(archives: Path, tmp_path: Path) -> None:
    folder = tmp_path / "en-de"
    shutil.copytree(archives / "en-de", folder)
    (folder / "bpecodes").unlink()
    corpus = tmp_path / "corpus"
    corpus.write_text("the cat sat\nthe cat sat on the mat\nhe sat\n" * 20)
    name = "sentencepiece.bpe"
    sentencepiece.SentencePieceTrainer.Train(
        input=str(corpus), model_prefix=str(folder / name), vocab_size=30, model_type="bpe", minloglevel=2
    )
    model = load(archives, forward=ModelSource(str(folder)))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.model"))
    assert model.segmentation.encode("the cat sat.") == " ".join(processor.encode("the cat sat.", out_type=str))
    assert model.segmentation.decode(model.segmentation.encode("the cat sat.")) == "the cat sat."
    (folder / f"{name}.model").write_text("nothing of the kind")
    with pytest.raises(UserError, match="not a sentencepiece model"):
        load(archives, forward=ModelSource(str(folder)))


def test_codes_and_dictionaries_may_lie_elsewhere(archives: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint_best.pt"
    shutil.copyfile(archives / "en-de" / "model1.pt", checkpoint)
    source = ModelSource(str(tmp_path), archives / "en-de", archives / "en-de" / "bpecodes")
    assert load(archives, forward=source).segmentation.encode(SENTENCE).split() == PIECES
    assert load(archives, forward=replace(source, codes=None)).segmentation.name == "words between spaces"
    names = {"checkpoint_best.pt", "dict.de.txt", "dict.en.txt", "bpecodes"}
    assert set(FairseqTranslator.identity(settings_of(archives, forward=source), "forward")) == names


def test_folder_of_a_training_run_gives_its_best(tmp_path: Path) -> None:
    source = ModelSource(str(tmp_path))
    for name in ("checkpoint3.pt", "checkpoint_last.pt", "checkpoint_best.pt"):
        (tmp_path / name).touch()
    assert [file.name for file in checkpoint_files(source, "forward")] == ["checkpoint_best.pt"]
    (tmp_path / "checkpoint_best.pt").unlink()
    assert [file.name for file in checkpoint_files(source, "forward")] == ["checkpoint_last.pt"]


def edited(archives: Path, folder: Path, edit: Any) -> BackTranslateSettings:
    shutil.copytree(archives / "en-de", folder)
    edit(folder)
    return settings_of(archives, forward=ModelSource(str(folder)))


def resave(folder: Path, change: Any) -> None:
    state = torch.load(folder / "model1.pt", weights_only=False)
    change(state)
    torch.save(state, folder / "model1.pt")


class Bomb:
    def __reduce__(self) -> Any:
        return (open, ("/nowhere/at/all", "w"))


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda f: [path.unlink() for path in f.glob("*.pt")], "neither model"),
        (lambda f: [path.unlink() for path in f.glob("dict.*")], "no dict.LANGUAGE.txt .*--forward-data"),
        (lambda f: (f / "dict.de.txt").unlink(), "no dict.de.txt .*--forward-data"),
        (lambda f: (f / "model1.pt").write_bytes((f / "model1.pt").read_bytes()[:500]), "not a complete checkpoint"),
        (lambda f: (f / "model1.pt").write_text("hello"), "not a complete checkpoint"),
        (lambda f: [(f / f"dict.{x}.txt").write_text("a 1\nb 1\n") for x in ("en", "de")], "cannot be loaded with"),
        (lambda f: (f / "dict.de.txt").write_text("a\n"), "cannot be loaded with"),
        (lambda f: resave(f, lambda state: state["args"].__setattr__("task", "language_modeling")), "was trained by"),
        (lambda f: resave(f, lambda state: state["args"].__setattr__("source_lang", "fr")), "no dict.fr.txt"),
        (lambda f: resave(f, lambda state: state.update(extra=Bomb())), "could run code"),
        (lambda f: resave(f, lambda state: state.pop("model")), "not a complete checkpoint"),
        (lambda f: (f / "bpecodes").write_text("one\n"), ":1: 'one' is not a merge"),
    ],
)
def test_what_is_no_model_is_one_line(archives: Path, tmp_path: Path, edit: Any, told: str) -> None:
    settings = edited(archives, tmp_path / "model", edit)
    with pytest.raises(UserError, match=told) as caught:
        FairseqTranslator.identity(settings, "forward")
        FairseqTranslator(settings, "forward", CPU)
    assert "\n" not in str(caught.value)


def test_missing_codes_are_named(archives: Path, tmp_path: Path) -> None:
    source = ModelSource(str(archives / "en-de"), codes=tmp_path / "none")
    with pytest.raises(UserError, match="--forward-codes .*none: no such file"):
        FairseqTranslator.identity(settings_of(archives, forward=source), "forward")
    folder = tmp_path / "bare"
    shutil.copytree(archives / "en-de", folder, ignore=shutil.ignore_patterns("bpecodes"))
    with pytest.raises(UserError, match="--bpe bpe: no codes in"):
        load(archives, forward=ModelSource(str(folder)), bpe="bpe")
