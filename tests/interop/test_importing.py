"""An imported model computes the same as transformers: tokens, every hidden state, MLM logits."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.interop.hf_format import check_kind
from fairseq_clear.interop.importing import import_hf
from fairseq_clear.interop.parity import compare_hf
from fairseq_clear.models.encoding import read_tokens
from fairseq_clear.text.data_folders import load_tokenizer
from tests.conftest import rejected
from tests.interop.folders import NEEDS_HF, make_folder, their_states

pytestmark = [pytest.mark.slow, NEEDS_HF]

TEXTS = ["bada kefe linu", "A man plays, isn't he?", "", "Caf\u00e9 \u4e2d and more of it " * 9]
KINDS = ["bert", "roberta", "xlm-roberta"]


@pytest.fixture(scope="module", params=KINDS)
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(Hugging Face's folder, the imported folder)."""
    parent = tmp_path_factory.mktemp(request.param)
    source = make_folder(parent / "hf", request.param)
    import_hf(source, parent / "ours")
    return source, parent / "ours"


def test_vectors_and_mlm_logits_are_those_of_transformers(folders: tuple[Path, Path]) -> None:
    import transformers

    source, ours = folders
    encoder, states = SentenceEncoder.from_pretrained(ours / "model.pt", ours), their_states(source, TEXTS)
    pools = {"cls": lambda state: state[0], "mean": lambda state: state.mean(0), "max": lambda state: state.amax(0)}
    for pooling, pooled in pools.items():
        expected = torch.stack([pooled(state) for state in states]).numpy()
        np.testing.assert_allclose(encoder.encode(TEXTS, pooling=pooling), expected, atol=2e-5)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(str(source)).eval()
    ids = transformers.AutoTokenizer.from_pretrained(str(source))(TEXTS[1], return_tensors="pt")["input_ids"]
    tokens = torch.tensor([read_tokens(encoder.dictionary, encoder.tokenizer, TEXTS[1])])
    order = [encoder.tokenizer.ids()[symbol] for symbol in encoder.dictionary.symbols]
    with torch.no_grad():
        expected = theirs(ids).logits[0][:, order]
        logits, _ = encoder.model(tokens)
    torch.testing.assert_close(logits[0], expected, atol=5e-5, rtol=1e-4)


def _loaded(folder: Path):
    from fairseq_clear.evaluation.checkpoints import load_model

    return load_model(folder / "model.pt", folder)


@pytest.mark.parametrize("spoil", ["epsilon", "last position", "NaN"])
def test_the_check_detects_a_difference(tmp_path: Path, spoil: str) -> None:
    source = make_folder(tmp_path / "hf", "bert", layer_norm_eps=0.01)
    import_hf(source, tmp_path / "ours")
    loaded = _loaded(tmp_path / "ours")
    assert loaded.model.args.layer_norm_eps == 0.01
    (positions,) = (weight for name, weight in loaded.model.named_parameters() if "embed_positions" in name)
    for module in loaded.model.modules():
        if spoil == "epsilon" and isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-5
    if spoil != "epsilon":
        positions.data[-1, 0] += float("nan") if spoil == "NaN" else 1.0
    parity = compare_hf(loaded, load_tokenizer(tmp_path / "ours"), source, "mean")
    assert not parity.hidden_states <= 1e-3 and (spoil != "epsilon" or parity.embeddings > 1e-3)
    with pytest.raises(UserError, match="above 1e-04, so nothing was written"):
        parity.check()


@pytest.mark.parametrize("arch", ["clear_roberta", "clear_hf"])
def test_a_head_that_computes_nan_is_rejected(arch: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = make_folder(tmp_path / "hf", "roberta")
    weights = load_file(source / "model.safetensors")
    weights["lm_head.layer_norm.bias"][0] = float("nan")
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"hf: \S*layer_norm\.bias is NaN or infinite"):
        import_hf(source, tmp_path / "ours", arch=arch)
    assert not (tmp_path / "ours").exists()


def test_the_names_of_the_first_release_of_bert(tmp_path: Path) -> None:
    """As in bert-base-uncased: gamma and beta of a LayerNorm, and a head that is left out."""
    from safetensors.torch import load_file, save_file

    source = make_folder(tmp_path / "hf", "bert")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    weights = load_file(source / "model.safetensors")
    import_hf(source, tmp_path / "new")
    for theirs, first in old.items():
        weights = {name.replace(theirs, first): value for name, value in weights.items()}
    weights["cls.seq_relationship.weight"] = torch.zeros(2, 24)
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    report = import_hf(source, tmp_path / "ours")
    assert any("left out" in note and "cls.seq_relationship" in note for note in report)
    one, other = (torch.load(tmp_path / name / "model.pt")["model"] for name in ("new", "ours"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_pickles_are_read_without_running_them(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    source = make_folder(tmp_path / "hf", "roberta", hidden_act="gelu_new")
    weights = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    torch.save(weights, source / "pytorch_model.bin")
    import_hf(source, tmp_path / "ours")
    assert _loaded(tmp_path / "ours").model.args.activation_fn == "gelu_accurate"
    torch.save({**weights, "more": Path("x")}, source / "pytorch_model.bin")
    # the second before transformers 5
    said = r"holds a pathlib\S*, which is not a weight and could run code|Unable to load weights"
    with pytest.raises(UserError, match=said):
        import_hf(source, tmp_path / "refused")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "ours"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "t5"}, "has model_type 't5'; bert, roberta, xlm-roberta can be converted"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "swish"}, "hidden_act 'swish' has no counterpart"),
        ({"num_hidden_layers": 4}, r"do not fit its config.json \(encoder.layer.3"),
        ({"hidden_size": "many"}, "transformers cannot load it"),
    ],
)
def test_other_models_are_rejected(tmp_path: Path, change: dict, message: str) -> None:
    source = make_folder(tmp_path / "hf", "bert")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(UserError, match=message):
        import_hf(source, tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_config_without_a_padding_id(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "hf", "bert")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "pad_token_id": None}))
    import_hf(source, tmp_path / "ours")
    with pytest.raises(UserError, match="pad_token_id None: positions of a roberta"):
        check_kind({"model_type": "roberta", "pad_token_id": None}, source)


def test_a_damaged_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_folder(tmp_path / "hf", "bert")
    told = {
        "tokenizer.json": "not a tokenizer.json",
        "model.safetensors": "Safetensor",
        "config.json": "not valid JSON",
    }
    for number, (name, message) in enumerate(told.items()):
        broken = tmp_path / f"broken{number}"
        shutil.copytree(source, broken)
        content = (source / name).read_bytes()
        (broken / name).write_bytes(content[: len(content) // 2])
        rejected(capsys, ["import", broken, "--dest", tmp_path / "ours"], message)
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("arch", ["clear_roberta", "clear_hf"])
def test_what_is_missing_is_not_made_up(tmp_path: Path, arch: str) -> None:
    """transformers fills in weights of another shape at random, and an empty tokenizer."""
    from safetensors.torch import load_file, save_file

    source = make_folder(tmp_path / "hf", "bert")
    weights = load_file(source / "model.safetensors")
    dense = "cls.predictions.transform.dense.weight"
    save_file({**weights, dense: torch.ones(23, 24)}, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=rf"do not fit its config.json \({dense}\)"):
        import_hf(source, tmp_path / "ours", arch=arch)
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    for path in source.glob("*token*"):
        path.unlink()
    with pytest.raises(UserError, match="hf: .*tokenizer"):
        import_hf(source, tmp_path / "ours", arch=arch)
    assert not (tmp_path / "ours").exists()


def test_an_archive_of_fairseq_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "roberta.base").mkdir()
    (tmp_path / "roberta.base/model.pt").write_text("weights")
    command = ["import", make_folder(tmp_path / "hf", "bert"), "--dest", tmp_path / "roberta.base", "--overwrite"]
    rejected(capsys, command, "was not made by this command")
    (tmp_path / "roberta.base/clear.json").write_text('{"format": 1}')  # as of the checkpoint of refine
    rejected(capsys, command, "was not made by this command")
    assert (tmp_path / "roberta.base/model.pt").read_text() == "weights"
    import_hf(tmp_path / "hf", tmp_path / "made")
    rejected(capsys, ["import", tmp_path / "made", "--dest", tmp_path / "again"], "made: is a folder of import")


def test_a_tokenizer_of_another_model_is_rejected(tmp_path: Path) -> None:
    source, other = make_folder(tmp_path / "hf", "bert"), make_folder(tmp_path / "other", "roberta")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(other / name, source / name)
    with pytest.raises(UserError, match="tokenizer and weights belong to different models"):
        import_hf(source, tmp_path / "ours")


def test_a_stated_pooling_is_kept(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "hf", "bert")
    (source / "1_Pooling").mkdir()
    kind = "sentence_transformers.models."
    modules = [{"path": "", "type": f"{kind}Transformer"}, {"path": "1_Pooling", "type": f"{kind}Pooling"}]
    (source / "modules.json").write_text(json.dumps(modules))
    config = source / "1_Pooling" / "config.json"
    for content in ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, {"pooling_mode": "cls"}):
        config.write_text(json.dumps(content))
        import_hf(source, tmp_path / "ours", overwrite=True)
        assert _loaded(tmp_path / "ours").model.args.pooling == "cls"
    config.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}))
    with pytest.raises(UserError, match=r"pooling cls \+ mean is not one of"):
        import_hf(source, tmp_path / "ours", overwrite=True)
    import_hf(source, tmp_path / "ours", pooling="max", overwrite=True)
    assert _loaded(tmp_path / "ours").model.args.pooling == "max"
