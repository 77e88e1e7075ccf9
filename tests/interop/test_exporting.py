"""What is exported computes what the checkpoint computes, in the library that it is for; and back in again."""

import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.interop import exporting
from fairseq_clear.interop.exporting import export
from fairseq_clear.interop.importing import import_hf
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.conftest import rejected, run
from tests.interop.folders import NEEDS_HF, NEEDS_ST, make_folder, read_sentence_transformer, their_states

pytestmark = [pytest.mark.slow, NEEDS_HF]

FORM = "sentence-transformers"
TEXTS = ["bada kefe linu", "A man plays, isn't he?", "", "Caf\u00e9 \u4e2d and more of it " * 9]


def encode(checkpoint: Path, folder: Path, texts: list[str], pooling: str = "mean", **kwargs) -> np.ndarray:
    return SentenceEncoder.from_pretrained(checkpoint, folder, **kwargs).encode(texts, pooling=pooling)


@pytest.fixture(scope="module", params=["bert", "roberta", "xlm-roberta"])
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    parent = tmp_path_factory.mktemp(request.param)
    source = make_folder(parent / "hf", request.param)
    import_hf(source, parent / "ours")
    return source, parent / "ours"


def test_round_trip(imported: tuple[Path, Path], tmp_path: Path) -> None:
    source, ours = imported
    parities = export(ours / "model.pt", ours, tmp_path / "hf", "hf", load_tokenizer(ours))
    assert "hidden states" in parities[0].summary()
    for one, two in zip(their_states(source, TEXTS), their_states(tmp_path / "hf", TEXTS), strict=True):
        torch.testing.assert_close(one, two, atol=2e-5, rtol=1e-4)
    import_hf(tmp_path / "hf", tmp_path / "again", pooling="mean")
    first, again = (torch.load(folder / "model.pt")["model"] for folder in (ours, tmp_path / "again"))
    assert first.keys() == again.keys()
    assert max((first[name] - again[name]).abs().max().item() for name in first) == 0


@NEEDS_ST
@pytest.mark.parametrize("pooling", ["cls", "max"])
def test_sentence_transformers_pool_the_same(imported: tuple[Path, Path], tmp_path: Path, pooling: str) -> None:
    _, ours = imported
    export(ours / "model.pt", ours, tmp_path / "st", FORM, load_tokenizer(ours), pooling=pooling, normalized=True)
    theirs = read_sentence_transformer(tmp_path / "st").encode(TEXTS)
    vectors = encode(ours / "model.pt", ours, TEXTS, pooling)
    np.testing.assert_allclose(theirs, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), atol=2e-5)


@NEEDS_ST
def test_sentence_transformers_truncate_the_same(imported: tuple[Path, Path], tmp_path: Path) -> None:
    _, ours = imported
    given = (ours / "model.pt", ours, tmp_path / "st", FORM, load_tokenizer(ours))
    for pooling in ("first-last", "layer:1"):
        with pytest.raises(UserError, match="only pools the last layer, by cls, mean, max"):
            export(*given, pooling=pooling)
    if int(version("sentence-transformers").partition(".")[0]) < 6:  # 5.1 does not read it
        with pytest.raises(UserError, match="does not read truncate_dim from a folder; install a newer one"):
            export(*given, pooling="mean", dimension=7)
        assert not (tmp_path / "st").exists()
        return
    export(*given, pooling="mean", dimension=7)
    theirs = read_sentence_transformer(tmp_path / "st")
    vectors = theirs.encode(TEXTS)
    assert theirs.truncate_dim == 7 and vectors.shape == (len(TEXTS), 7)
    np.testing.assert_allclose(vectors, encode(ours / "model.pt", ours, TEXTS)[:, :7], atol=2e-5)
    unit = theirs.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(unit, encode(ours / "model.pt", ours, TEXTS, dimension=7), atol=2e-5)
    export(*given, pooling="mean", overwrite=True)
    assert not (tmp_path / "st" / "config_sentence_transformers.json").exists()
    with pytest.raises(UserError, match="--dimension 999: the vectors have .* dimensions"):
        export(*given, pooling="mean", dimension=999, overwrite=True)


@pytest.mark.parametrize("form", ["hf", "sentence-transformers"])
def test_transformers_finds_every_weight(imported: tuple[Path, Path], tmp_path: Path, form: str) -> None:
    """What is left over of format hf belongs to the other class: each knows a part that the other lacks."""
    import transformers

    source, ours = imported
    export(ours / "model.pt", ours, tmp_path / "out", form, load_tokenizer(ours), pooling="mean")
    load = {"output_loading_info": True}
    model, info = transformers.AutoModel.from_pretrained(str(tmp_path / "out"), **load)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    heads = {key.split(".")[0] for key in info["unexpected_keys"]}
    assert heads == (set() if form != "hf" else {"cls"} if source.parent.name.startswith("bert") else {"lm_head"})
    states = model(torch.tensor([[0, 5, 2]]))
    torch.testing.assert_close(states.pooler_output, states.last_hidden_state[:, 0].tanh())
    if form == "hf":
        _, info = transformers.AutoModelForMaskedLM.from_pretrained(str(tmp_path / "out"), **load)
        assert not info["missing_keys"]
        assert {key.rpartition("pooler.")[2] for key in info["unexpected_keys"]} == {"dense.weight", "dense.bias"}


def test_a_head_that_transformers_cannot_hold_is_said_to_be_left_out(tmp_path: Path, caplog) -> None:
    for kind, is_left_out in (("roberta", True), ("bert", False)):
        import_hf(make_folder(tmp_path / kind / "hf", kind, hidden_act="relu"), tmp_path / kind / "ours")
        caplog.clear()
        ours = tmp_path / kind / "ours"
        export(ours / "model.pt", ours, tmp_path / kind / "out", "hf", load_tokenizer(ours))
        said = "the MLM head is left out: the head of a roberta always uses GELU, the checkpoint's relu"
        assert (said in caplog.text) == is_left_out


@pytest.mark.parametrize("spoil", ["weights", "epsilon", "tokens"])
def test_a_difference_fails_and_writes_nothing(imported, tmp_path, monkeypatch, spoil) -> None:
    _, ours = imported
    stock = exporting.to_hf

    def spoiled(*args, **kwargs):
        made = stock(*args, **kwargs)
        if spoil == "weights":
            made.base.embeddings.word_embeddings.weight.data[:, 0] += 1e-2
        else:
            made.base.config.layer_norm_eps = 0.01
        return made

    if spoil != "tokens":
        monkeypatch.setattr(exporting, "to_hf", spoiled)
    else:
        stock_writer = exporting.write_tokenizer

        def shuffled(tokenizer, symbols, folder, positions, **kwargs) -> None:
            stock_writer(tokenizer, symbols, folder, positions, **kwargs)
            content = (folder / "tokenizer.json").read_text().replace('"lowercase": true', '"lowercase": false')
            content = content.replace('"always"', '"never"')
            if (model := json.loads(content)["model"])["type"] == "BPE":
                one, other = (model["vocab"][letter] for letter in "at")
                content = content.replace(f'"a": {one}', f'"a": {other}').replace(f'"t": {other}', f'"t": {one}')
            (folder / "tokenizer.json").write_text(content)

        monkeypatch.setattr(exporting, "write_tokenizer", shuffled)
    with pytest.raises(UserError, match="nothing was written"):
        export(ours / "model.pt", ours, tmp_path / "hf", "hf", load_tokenizer(ours))
    assert list(tmp_path.iterdir()) == []


def test_stock_fairseq_needs_no_plugin(checkpoint: Path, data_bin: Path, tmp_path: Path) -> None:
    parities = export(checkpoint, data_bin, tmp_path / "stock", "fairseq", WhitespaceTokenizer())
    assert parities[0].hidden_states < 1e-5
    code = (
        "import sys, torch; from fairseq.models.roberta import RobertaModel; "
        "hub = RobertaModel.from_pretrained(sys.argv[1], 'model.pt', bpe=None).eval(); "
        "tokens = hub.task.source_dictionary.encode_line('<s> bada kefe', append_eos=True, add_if_not_exist=False).long(); "
        "torch.save(hub.extract_features(tokens[None]), sys.argv[2]); "
        "assert not any(name.startswith('fairseq_clear') for name in sys.modules)"
    )
    run(sys.executable, "-c", code, tmp_path / "stock", tmp_path / "out.pt", cwd=tmp_path)
    vectors = encode(checkpoint, data_bin, ["bada kefe"], tokenizer=WhitespaceTokenizer())
    np.testing.assert_allclose(torch.load(tmp_path / "out.pt").detach()[0].mean(0).numpy(), vectors[0], atol=1e-5)


def keep_segments(folder: Path) -> None:
    """Keep both segments of the BERT in ``hf`` in the checkpoint in ``ours``, as a model trained with --segments 2 has them."""
    import transformers

    path = folder / "ours" / "model.pt"
    state = torch.load(path, weights_only=False)
    types = transformers.AutoModel.from_pretrained(str(folder / "hf")).embeddings.token_type_embeddings.weight.detach()
    name = "encoder.sentence_encoder.embed_positions."
    state["model"][f"{name}weight"][2:] -= types[0]
    state["model"][f"{name}segments.weight"] = types.clone()
    state["cfg"]["model"].segments = 2
    torch.save(state, path)


def test_stock_fairseq_cannot_have_berts_epsilon_or_segments(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "hf", "bert", layer_norm_eps=0.01)
    ours = tmp_path / "ours"
    import_hf(source, ours)
    for change, message in ((lambda _: None, "no flag for LayerNorm's epsilon"), (keep_segments, "has no segments")):
        change(tmp_path)
        with pytest.raises(UserError, match=message):
            export(ours / "model.pt", ours, tmp_path / "x", "fairseq", load_tokenizer(ours))
    assert not (tmp_path / "x").exists()


def test_segments_go_back(tmp_path: Path) -> None:
    import transformers

    source = make_folder(tmp_path / "hf", "bert")
    import_hf(source, tmp_path / "ours")
    keep_segments(tmp_path)
    export(tmp_path / "ours" / "model.pt", tmp_path / "ours", tmp_path / "out", "hf", load_tokenizer(tmp_path / "ours"))
    states = []
    for folder in (source, tmp_path / "out"):
        model = transformers.AutoModel.from_pretrained(str(folder)).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
        pair = tokenizer("bada kefe", "linu moba", return_tensors="pt", return_token_type_ids=True)
        with torch.no_grad():
            states.append(model(**pair).last_hidden_state)
    torch.testing.assert_close(*states, atol=2e-5, rtol=1e-4)
    assert "token_type_ids" in tokenizer("a", "b")


def test_the_card_says_what_is_known(checkpoint: Path, data_bin: Path, tmp_path: Path, capsys) -> None:
    rows = [{"label": "x/checkpoint.pt mean", "scores": {"STS-B": 51.5}}]
    report = {"command": "sts", "protocol": {"metric": "spearman"}, "columns": ["STS-B"], "rows": rows}
    (tmp_path / "sts.json").write_text(json.dumps(report))
    command = ["export", str(checkpoint), "--data-bin", str(data_bin), "--tokenizer", "whitespace", "--format", "hf"]
    command += ["--dest", str(tmp_path / "hf"), "--scores"]
    assert main([*command, str(tmp_path / "sts.json")]) == 0
    assert "largest difference to transformers" in capsys.readouterr().out
    card = (tmp_path / "hf" / "README.md").read_text()
    for said in ("**mean** pooling", "`clear_nt_xent`", "| x/checkpoint.pt mean | 51.50 |", "lr | `0.01`"):
        assert said in card, said
    assert str(tmp_path) not in card and str(data_bin) not in card
    rejected(capsys, [*command, str(tmp_path / "sts.json")], "exists already")
    assert main([*command, str(tmp_path / "sts.json"), "--overwrite"]) == 0
    (tmp_path / "sts.json").write_text("[]")
    rejected(capsys, [*command, str(tmp_path / "sts.json"), "--overwrite"], "not a report of fairseq-clear")


def test_tokenizer_files_of_another_folder(checkpoint, data_bin, tmp_path, capsys) -> None:
    """clear.json may be written by hand, and its files must go with the export."""
    data = shutil.copytree(data_bin, tmp_path / "data")
    command = ["export", checkpoint, "--data-bin", data, "--format", "fairseq", "--dest"]
    assert main([*map(str, command), str(tmp_path / "stock")]) == 0, "stock fairseq needs no tokenizer"
    command.append(tmp_path / "x")
    (data / "spm").mkdir()
    (data / "spm" / "x.model").write_text("")
    tokenizer = {"kind": "sentencepiece", "files": ["spm/x.model"]}
    (data / "clear.json").write_text(json.dumps({"format": 1, "tokenizer": tokenizer}))
    rejected(capsys, [*command, "--tokenizer", "whitespace"], "names spm/x.model; put the tokenizer's files")
    assert not (tmp_path / "x").exists()
