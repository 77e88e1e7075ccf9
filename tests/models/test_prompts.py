"""Prompts: as sentence-transformers applies them, and in training before texts that were tokenized without them."""

import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

from fairseq_clear import SentenceEncoder
from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.interop.exporting import export
from fairseq_clear.interop.importing import import_hf
from fairseq_clear.models.encoding import prompt_ids, read_tokens
from fairseq_clear.refining.refine_settings import PAIRS, RECIPES, RefineSettings
from fairseq_clear.refining.refine_steps import Training, training_flags
from fairseq_clear.tasks import validation_scores
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.sentence_folders import DOCUMENT, prompt_for
from tests.interop.folders import NEEDS_ST, make_sentence_folder, read_sentence_transformer
from tests.models.test_clear_hf import prepared
from tests.training import build, refuses

pytestmark = NEEDS_ST

PROMPTS = {"query": "bada kefe: ", "passage": "linu:", "document": ""}
LONGEST = 12  # tokens of a view in training; some of the texts are longer with their prompt
TEXTS = ["Baju keni reho.", "", "life baho mome reme keme bada keni mofe " * 4]


def folder_with(parent: Path, kind: str = "bert", pooling: str = "mean", *, pooled: bool = True, **config: Any) -> Path:
    """A sentence-transformers folder with PROMPTS; ``pooled`` is its include_prompt."""
    source = make_sentence_folder(parent / "source", kind, pooling=pooling)
    (source / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS, **config}))
    path = source / "1_Pooling" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"include_prompt": pooled}))
    return source


def ours(source: Path, parent: Path) -> SentenceEncoder:
    import_hf(source, parent / "ours", arch="clear_hf")
    return SentenceEncoder.from_pretrained(parent / "ours" / "model.pt", parent / "ours")


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_they_are_those_of_sentence_transformers(pooling: str, pooled: bool, tmp_path: Path) -> None:
    if pooling == "cls" and not pooled and int(version("sentence-transformers").partition(".")[0]) < 6:
        pytest.skip("before version 6, cls is always the first token")
    source = folder_with(tmp_path, pooling=pooling, pooled=pooled, default_prompt_name="passage")
    encoder, theirs = ours(source, tmp_path), read_sentence_transformer(source)
    pairs = [
        (encoder.encode_query(TEXTS), theirs.encode_query(TEXTS)),
        (encoder.encode(TEXTS), theirs.encode(TEXTS)),  # with the default prompt
        (encoder.encode_document(TEXTS), theirs.encode(TEXTS, prompt_name="passage")),
        (encoder.encode(TEXTS, prompt="mome "), theirs.encode(TEXTS, prompt="mome ")),
        (encoder.encode(TEXTS, prompt=""), theirs.encode(TEXTS, prompt="")),
    ]
    for mine, expected in pairs:
        np.testing.assert_allclose(mine, expected, atol=1e-6)
    assert np.abs(pairs[0][0] - pairs[1][0])[0].max() > 1e-3
    with pytest.raises(UserError, match="prompt answer: the encoder has no such prompt; it has query, passage"):
        encoder.encode(TEXTS, prompt_name="answer")


@pytest.mark.parametrize(
    ("prompts", "default"),
    [({"query": "bada kefe: ", "document": ""}, "query"), ({"retrieval": "bada kefe: "}, "retrieval")],
)
def test_a_default_prompt_is_not_one_of_queries_or_passages(prompts, default, tmp_path) -> None:
    encoder = ours(folder_with(tmp_path, prompts=prompts, default_prompt_name=default), tmp_path)
    theirs = read_sentence_transformer(tmp_path / "source")
    for side in ("encode_query", "encode_document"):
        np.testing.assert_allclose(getattr(encoder, side)(TEXTS), getattr(theirs, side)(TEXTS), atol=1e-6)
    np.testing.assert_allclose(encoder.encode(TEXTS), theirs.encode(TEXTS), atol=1e-6)
    assert prompt_for(CachedEncoder(encoder), DOCUMENT) == prompt_for(theirs, DOCUMENT) == ""
    data = prepared(tmp_path, tmp_path / "source")
    (tmp_path / "pairs.tsv").write_text("bada kefe\tlinu moba pada\nbaju keni\treho life baho\n")
    arch = ("--arch", "clear_hf", "--encoder-from", str(tmp_path / "source"), "--tokens-per-sample", "32")
    trainer, _ = build(data, *arch, "--eval-retrieval", str(tmp_path / "pairs.tsv"))
    with mock.patch.object(validation_scores, "encode_texts", side_effect=validation_scores.encode_texts) as used:
        trainer.task.retrieval(trainer.get_model(), trainer.task.dictionary)
    assert [call.kwargs["prompt"] for call in used.call_args_list] == [prompts.get("query", ""), ""]


def test_the_export_says_them_under_both_names_and_the_cache_keeps_them_apart(tmp_path: Path) -> None:
    """sentence-transformers looks for ``document`` first, which every folder has, empty by default."""
    encoder = ours(folder_with(tmp_path, default_prompt_name="query"), tmp_path)
    folder = tmp_path / "ours"
    export(folder / "model.pt", folder, tmp_path / "out", "sentence-transformers", load_tokenizer(folder))
    theirs = read_sentence_transformer(tmp_path / "out")
    np.testing.assert_allclose(encoder.encode_document(TEXTS), theirs.encode_document(TEXTS), atol=1e-6)
    query = encoder.encode_query(TEXTS)
    np.testing.assert_allclose(query, theirs.encode_query(TEXTS), atol=1e-6)
    assert theirs.prompts == {**PROMPTS, "document": PROMPTS["passage"]}
    cached = CachedEncoder(encoder)  # keeps texts with and without a prompt apart
    for prompt, expected in ((None, query), ("", encoder.encode(TEXTS, prompt=""))):
        np.testing.assert_allclose(cached.encode(TEXTS, prompt=prompt), expected, atol=1e-6)
    assert cached.sentences == 2 * len(TEXTS)


def test_the_commands_apply_and_print_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = ours(folder_with(tmp_path), tmp_path)
    (tmp_path / "pairs.tsv").write_text("bada kefe\tlinu moba pada\nbaju keni\treho life baho\nmome\treme keme bada\n")
    (tmp_path / "texts.txt").write_text("bada kefe\nbaju keni\n")
    common = ["--data-bin", str(tmp_path / "ours"), "--device", "cpu"]
    model = str(tmp_path / "ours" / "model.pt")
    assert main(["retrieval", "--pairs", str(tmp_path / "pairs.tsv"), "--encoder", model, *common]) == 0
    assert "prompts {'query': 'bada kefe: ', 'passage': 'linu:'}" in capsys.readouterr().err
    mine = ["mine", "--pairs", str(tmp_path / "pairs.tsv"), "--dest", str(tmp_path / "mined"), "--encoder", model]
    assert main([*mine, *common]) == 0
    assert "# prompts of queries and of passages: 'bada kefe: ', 'linu:'" in capsys.readouterr().err
    embed = ["embed", str(tmp_path / "texts.txt"), "--checkpoint", model, "--output", str(tmp_path / "out.npy")]
    assert main([*embed, *common, "--prompt-name", "query"]) == 0
    assert "prompt 'bada kefe: '" in capsys.readouterr().out
    expected = encoder.encode_query(["bada kefe", "baju keni"])
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-6)


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("names", ["query", "query,passage", "query,"])
def test_training_reads_the_joined_text(names: str, pooled: bool, tmp_path: Path) -> None:
    """The vector of a view is that of the encoder for prompt and text; the masked copies have no prompt."""
    encoder = ours(folder_with(tmp_path, pooled=pooled), tmp_path)
    data = prepared(tmp_path, tmp_path / "source")
    arch = ("--arch", "clear_hf", "--encoder-from", str(tmp_path / "source"), "--mlm-weight", "0")
    trainer, dataset = build(
        data, *arch, "--tokens-per-sample", str(LONGEST), "--prompts", names, "--views", "neighbor", "--augment", "none",
        "--projection-layers", "0",
    )  # fmt: skip
    model = trainer.get_model().eval()
    batch = dataset.collater(dataset.__getitems__(range(6)))
    views, counts = batch["views"]["tokens"], batch["views"]["counts"]
    assert counts["view_length"] <= counts["text_length"], "prompts are in neither"
    assert views.shape[1] <= LONGEST and int(dataset.sizes.max()) <= LONGEST
    with torch.no_grad():
        found = torch.nn.functional.normalize(model(views=views)[1]["projections"], dim=1).numpy()
    raw = dataset.view_maker.pairs(np.arange(6), dataset.epoch).texts
    for row in range(12):
        prompt = {"": "", **PROMPTS}[names.split(",")[0 if row < 6 else -1]]
        anchor = 2 * row if row < 6 else 2 * (row - 6) + 1  # in the order of the pairs
        symbols = [encoder.dictionary.symbols[index] for index in raw[anchor][1:-1]]
        text = encoder.tokenizer.decode(symbols)
        own = [0, *prompt_ids(encoder.dictionary, encoder.tokenizer, prompt), *raw[anchor][1:]]
        own = own if len(own) <= LONGEST else [*own[: LONGEST - 1], own[-1]]
        assert views[row][views[row] != 1].tolist() == own
        if len(own) < LONGEST:
            assert read_tokens(encoder.dictionary, encoder.tokenizer, prompt + text) == own
            np.testing.assert_allclose(encoder.encode(text, prompt=prompt), found[row], atol=1e-6)


def test_augmentations_and_masks_leave_them_alone(tmp_path: Path) -> None:
    encoder = ours(folder_with(tmp_path), tmp_path)
    data = prepared(tmp_path, tmp_path / "source")
    prompt = prompt_ids(encoder.dictionary, encoder.tokenizer, PROMPTS["query"])
    common = ("--arch", "clear_hf", "--encoder-from", str(tmp_path / "source"), "--prompts", "query")
    spans = ("--views", "span:anchors=1,positives=1,min=2,max=8", "--anchor-mlm", "joint")
    for flags in ((), spans):
        augment = ("--augment", "del-word:ratio=0.9", "--mask-prob", "0.8", "--tokens-per-sample", "32")
        _, dataset = build(data, *common, *augment, *flags)
        batch = dataset.collater(dataset.__getitems__(range(8)))
        rows, target = batch["views"]["tokens"], batch["views"].get("target")
        assert (rows[:, 1 : 1 + len(prompt)] == torch.tensor(prompt)).all()
        if target is None:
            text = torch.where(batch["target"].eq(1), batch["net_input"]["src_tokens"], batch["target"])
            assert not (text[:, 1 : 1 + len(prompt)] == torch.tensor(prompt)).all(dim=1).any()
        else:
            assert (target[:, 1 : 1 + len(prompt)] == 1).all() and (target != 1).any()
            assert (rows[: len(target), : target.shape[1]][target != 1] != 1).all()  # targets are where the tokens are


def test_a_guide_reads_them_as_its_own_folder_says(tmp_path: Path) -> None:
    encoder = ours(folder_with(tmp_path, pooled=False), tmp_path)
    data = prepared(tmp_path, tmp_path / "source")
    flags = ("--arch", "clear_hf", "--encoder-from", str(tmp_path / "ours"), "--mlm-weight", "0", "--prompts", "query")
    guided = ("--false-negatives", "guide:margin=0.0", "--guide", str(tmp_path / "ours"), "--tokens-per-sample", "20")
    trainer, dataset = build(data, *flags, *guided, "--augment", "none")
    views = dataset.collater(dataset.__getitems__(range(4)))["views"]
    guide = trainer.get_criterion().guide
    found = guide(views["tokens"], views["lengths"], next(trainer.get_model().parameters()))
    row = views["tokens"][0]
    prompt = prompt_ids(encoder.dictionary, encoder.tokenizer, PROMPTS["query"])
    symbols = [encoder.dictionary.symbols[index] for index in row[1 + len(prompt) :] if index > 2]
    expected = encoder.encode_query(encoder.tokenizer.decode(symbols))
    found = torch.nn.functional.normalize(found, dim=1)
    np.testing.assert_allclose(found[0].numpy(), expected, atol=1e-6)


def test_mistakes_are_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = prepared(tmp_path, folder_with(tmp_path, "roberta"))
    common = ("--arch", "clear_hf", "--encoder-from", str(tmp_path / "source"), "--tokens-per-sample", "32")
    for names, said in (
        ("answer", "--prompts answer: the encoder has no such prompt; it has query, passage"),
        ("query", "the tokenizer joins the prompt 'bada kefe: ' with the text behind it"),
    ):
        refuses(caplog, said, data, *common, "--prompts", names)


@pytest.mark.parametrize("recipe", [*RECIPES, PAIRS])
def test_refine_trains_with_them(recipe: str) -> None:
    settings = RefineSettings(encoder=Path("start"), dest=Path("out"))
    training = Training(recipe, Path("start"), Path("bin"), Path("out"), 4, prompts=("query", "passage"))
    flags = training_flags(training, settings, "cpu")
    asks = recipe in ("titles", "cloze", "pairs")
    assert flags[flags.index("--prompts") + 1] == ("query,passage" if asks else "query")
    assert "--prompts" not in training_flags(replace(training, prompts=()), settings, "cpu")


def test_sizes_count_the_prompt(tmp_path: Path) -> None:
    data = prepared(tmp_path, folder_with(tmp_path))
    arch = ("--arch", "clear_hf", "--encoder-from", str(tmp_path / "source"), "--mlm-weight", "0", "--augment", "none")
    for names in ("query", "query,passage"):
        _, dataset = build(data, *arch, "--prompts", names, "--views", "neighbor", "--tokens-per-sample", "36")
        for item in range(6):
            rows = dataset.examples(np.array([item]), 1).views.lengths
            assert (int(dataset.sizes[item]), int(dataset.totals[item])) == (rows.max(), rows.sum())


def test_validation_uses_them(tmp_path) -> None:
    data = prepared(tmp_path, folder_with(tmp_path, default_prompt_name="passage"))
    (tmp_path / "pairs.tsv").write_text("bada kefe\tlinu moba pada\nbaju keni\treho life baho\n")
    (tmp_path / "sts.tsv").write_text("bada kefe\tlinu moba\t1\nbaju keni\treho life\t2\nmome\treme\t3\n")
    flags = ("--eval-retrieval", str(tmp_path / "pairs.tsv"), "--eval-sts", str(tmp_path / "sts.tsv"))
    arch = ("--arch", "clear_hf", "--encoder-from", str(tmp_path / "source"), "--tokens-per-sample", "32")
    trainer, _ = build(data, *arch, *flags)
    stock = validation_scores.encode_texts
    with mock.patch.object(validation_scores, "encode_texts", side_effect=stock) as used:
        for validation in (trainer.task.retrieval, trainer.task.sts):
            validation(trainer.get_model(), trainer.task.dictionary)
    read = [(call.args[-1][0], call.kwargs["prompt"]) for call in used.call_args_list]
    assert read == [("bada kefe", "bada kefe: "), ("linu moba pada", "linu:"), ("bada kefe", "linu:")]


def test_a_prompt_whose_tokens_follow_from_the_text_is_rejected() -> None:
    """The text keeps its own tokens, but those of the prompt are others before a digit."""

    class Marking:
        def encode(self, text: str) -> list[str]:
            _, marked, rest = text.rpartition("q:")
            return [*(["q1" if rest[:1].isdigit() else "q2"] if marked else []), *rest.split()]

        def decode(self, symbols: list[str]) -> str:
            return " ".join(symbols)

    dictionary = Dictionary()
    for symbol in ("q1", "q2", "A", "film.", "1", "of", "2"):
        dictionary.add_symbol(symbol)
    with pytest.raises(UserError, match="--prompts: the tokenizer joins the prompt 'q:'"):
        prompt_ids(dictionary, Marking(), "q:")  # type: ignore[arg-type]
