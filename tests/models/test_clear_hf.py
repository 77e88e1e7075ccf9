"""``clear_hf``: families of transformers through training, checkpoint and export; the traps of each."""

import json
import math
import shutil
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from torch._dynamo.utils import counters

from fairseq_clear import SentenceEncoder
from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.interop.exporting import export
from fairseq_clear.interop.parity import compare_states
from fairseq_clear.models import hf_source
from fairseq_clear.models.clear_hf import ClearHfModel
from fairseq_clear.models.encoding import read_tokens
from fairseq_clear.models.hf_encoder import HfBackbone, HfEncoder
from fairseq_clear.models.hf_source import read_source
from fairseq_clear.modules.pooling import POOLINGS
from fairseq_clear.text.data_folders import load_tokenizer
from tests.conftest import Ranks, sentences, tool
from tests.integration.test_command_lines import RUN, interrupted
from tests.interop.folders import FAMILIES, NEEDS_HF, SMALL, make, wordpiece
from tests.models.test_clear_roberta import difference, step
from tests.models.test_compile import compiling_with
from tests.training import Case, build, configuration, distance, refuses, update

pytestmark = NEEDS_HF

IS_NEW = bool(find_spec("transformers")) and int(version("transformers").partition(".")[0]) >= 5
TRAINED = ("bert", "mpnet", "modernbert")  # families in which parity, resume and chunks are tested


def prepared(folder: Path, source: Path) -> Path:
    """A data folder with the tokenizer of ``source``."""
    text = folder / "text.txt"
    text.write_text("\n".join(sentences(140, seed=1, longest=9)) + "\n")
    command = ["prepare", str(text), "--dest", str(folder / "bin"), "--tokenizer-dir", str(source), "--workers", "1"]
    assert main(command) == 0
    return folder / "bin"


def one(folder: Path, name: str, **changes: Any) -> SimpleNamespace:
    """A folder of one family, and data with its tokenizer."""
    source = make(folder / "source", name, **changes)
    return SimpleNamespace(name=name, source=source, data=prepared(folder, source))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SimpleNamespace]:
    """``one`` of a family, which tests share: they leave its files as they are."""
    return cache(lambda name: one(tmp_path_factory.mktemp(name), name))


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, made: Any) -> SimpleNamespace:
    """Every family, or those that a test is parametrized with, indirectly."""
    found: SimpleNamespace = made(request.param)
    return found


def start(family: SimpleNamespace, *flags: str) -> tuple[Any, Any]:
    """Trainer and training set of a run that starts from the family's folder."""
    own = ("--arch", "clear_hf", "--encoder-from", str(family.source), "--tokens-per-sample", "32")
    return build(family.data, *own, *flags)


def test_states_and_loss_are_those_of_transformers(family: SimpleNamespace) -> None:
    import transformers

    trainer, dataset = start(family, "--augment", "del-word")
    model = trainer.get_model().eval()
    sample = dataset.collater([dataset[index] for index in range(8)])
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(family.source).eval()
    tokens, target = sample["net_input"]["src_tokens"], sample["target"]
    ids = model.backbone.ids[tokens]
    is_token = tokens.ne(1)
    labels = torch.where(target.eq(1), -100, model.backbone.ids[target])
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=is_token.long(), labels=labels, output_hidden_states=True)
        # the last of hidden_states is not normalised in some versions of ModernBERT
        last = theirs.base_model(input_ids=ids, attention_mask=is_token.long()).last_hidden_state
        own = model.hidden_states(tokens)
        logits, _ = model(tokens, masked_tokens=target.ne(1))
        loss = torch.nn.functional.cross_entropy(logits, target[target.ne(1)])
    assert len(own) == len(expected.hidden_states) == 4
    states = [*expected.hidden_states[:-1], last]
    for mine, their in zip(own, states, strict=True):
        assert (mine - their)[is_token].abs().max() < 1e-6
    assert (model.embed(tokens, "wk") - POOLINGS["wk"](states, is_token)).abs().max() < 1e-6
    assert loss.item() == pytest.approx(expected.loss.item(), abs=1e-6)


def test_it_learns_and_comes_out_as_it_is(family: SimpleNamespace, tmp_path: Path) -> None:
    import transformers

    trainer, dataset = start(
        family, "--optimizer", "adam", "--lr", "5e-3", "--dropout", "0.1", "--attention-dropout", "0.1",
        "--augment", "del-word:ratio=0.3",
    )  # fmt: skip
    batch = dataset.collater(dataset.__getitems__(range(16)))
    losses = [trainer.train_step([batch])["loss"] for _ in range(8)]
    assert np.mean(losses[-2:]) < losses[0] - 0.2
    checkpoint = tmp_path / "checkpoint.pt"
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(checkpoint), {"train_iterator": {"epoch": 1}})
    shutil.move(family.source, tmp_path / "elsewhere")  # what it started from is not needed any more
    try:
        encoder = SentenceEncoder.from_pretrained(checkpoint, family.data)
        texts = ["Bada kefe ligi.", "", "numo paju ba ke " * 30, "<mask> [UNK] <unk>"]
        vectors = encoder.encode(texts)
        model = trainer.get_model().eval()
        own = model.embed(torch.tensor([read_tokens(encoder.dictionary, encoder.tokenizer, texts[0])]))
        assert np.abs(vectors[0] - own.detach().numpy()[0]).max() < 1e-6
        for form in ("hf", "sentence-transformers"):
            found = export(checkpoint, family.data, tmp_path / form, form, load_tokenizer(family.data))
            assert all(parity.embeddings < 2e-6 and not parity.hidden_states for parity in found)
    finally:
        shutil.move(tmp_path / "elsewhere", family.source)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf").eval()
    assert theirs.get_input_embeddings().num_embeddings == model.encoder.rows  # without <del>
    tokens, target = batch["net_input"]["src_tokens"], batch["target"]
    with torch.no_grad():
        logits = theirs(input_ids=model.backbone.ids[tokens], attention_mask=tokens.ne(1).long()).logits[target.ne(1)]
        ours, _ = model(tokens, masked_tokens=target.ne(1))
    assert (logits[:, model.encoder.columns] - ours).abs().max() < 2e-5


@pytest.fixture
def bert(made: Any) -> SimpleNamespace:
    found: SimpleNamespace = made("bert")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("family", TRAINED, indirect=True)
def test_resumed_is_uninterrupted(family: SimpleNamespace, tmp_path: Path) -> None:
    flags = (
        "--arch", "clear_hf", "--encoder-from", family.source, "--criterion", "clear_moco", "--queue-size", "37",
        "--mlm-weight", "1", "--augment", "del-word:ratio=0.3", "--dropout", "0.1", "--disable-validation",
        *(["--bf16"] if family.name == "modernbert" else []),
    )  # fmt: skip
    interrupted(tmp_path, *tool("train"), family.data, *RUN, *flags)


@pytest.mark.slow
@pytest.mark.parametrize("family", TRAINED, indirect=True)
@pytest.mark.parametrize("backend", ["legacy_ddp", "pytorch_ddp"])
def test_two_workers_make_the_update_of_one(family: SimpleNamespace, ranks: Ranks, backend: str) -> None:
    own = ("--arch", "clear_hf", "--encoder-from", str(family.source), "--tokens-per-sample", "32", "--lr", "0.05")
    flags = (*own, "--augment", "del-word:ratio=0.3", "--ddp-backend", backend)
    alone = update(0, str(family.data), Case(flags, [[list(range(10))]]))
    case = Case(flags, [[[0, 1, 2, 3, 4, 5, 6]], [[7, 8, 9]]])
    configuration(family.data, *case.flags)
    for result in ranks(2, update, str(family.data), case):
        assert distance(alone["after"], result["after"]) < 1e-5
    assert distance(alone["before"], alone["after"]) > 1e-3
    other = update(0, str(family.data), Case(flags, [[list(range(7))]]))
    assert distance(alone["after"], other["after"]) > 1e-4  # the negative control


# Flags, and which of the three blocks are trained.
RECIPES: dict[str, list[bool]] = {
    "--criterion clear_self_guided --augment none --objective sg-opt --frozen-layers 1": [True] * 3,
    "--regularizer-weight 0.1 --mlm-weight 0": [True] * 3,
    "--criterion clear_moco --queue-size 20 --mlm-weight 1": [True] * 3,
    "--pooling layer:1 --mlm-weight 0": [True, False, False],
    "--pooling first-last --mlm-weight 0": [True] * 3,
    "--frozen-layers 2": [False, True, True],
    "--frozen-layers 4 --mlm-weight 0": [False] * 3,
    "--fp16 --fp16-no-flatten-grads --mlm-weight 0": [True] * 3,
    "--amp --mlm-weight 0": [True] * 3,
}


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize(
    ("family", "flags"),
    [("bert", flags) for flags in RECIPES] + [("mpnet", "--frozen-layers 2"), ("modernbert", "--frozen-layers 2")],
    indirect=["family"],
)
def test_every_recipe_trains_what_it_uses(flags, family, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", partial(torch.amp.GradScaler, "cpu"))
    trainer, dataset = start(family, *flags.split(), "--dropout", "0.1")
    model = trainer.get_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batch = dataset.collater(dataset.__getitems__(range(8)))
    for _ in range(3):
        trainer.train_step([batch])
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name for name, p in model.named_parameters() if p.grad is not None} == trained
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved and all(name in trained or name.startswith("key_encoder.") for name in moved)
    has_head = "moco" in flags or flags == "--frozen-layers 2"
    assert any(name.startswith("encoder.mlm_head") for name in before.keys() - trained) != has_head
    assert [any(p.requires_grad for p in block.parameters()) for block in model.backbone.layers] == RECIPES[flags]


@pytest.mark.parametrize("family", TRAINED, indirect=True)
def test_chunks_are_the_whole(family: SimpleNamespace) -> None:
    own = ("--arch", "clear_hf", "--encoder-from", str(family.source), "--tokens-per-sample", "32")
    flags = (*own, "--augment", "del-word:ratio=0.3")
    whole, gradients = step(family.data, *flags)
    chunked, of_chunks = step(family.data, *flags, "--encode-chunk-size", "40")
    assert chunked == pytest.approx(whole, rel=1e-5) and difference(gradients, of_chunks) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mpnet", "modernbert"], indirect=True)
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which torch hides itself
def test_compiled_blocks_make_the_same_updates(family: SimpleNamespace) -> None:
    losses = []
    for flags in ((), ("--compile",)):
        with compiling_with(backend="eager"):
            trainer, dataset = start(family, *flags)
            batches = [dataset.collater(dataset.__getitems__(range(size))) for size in (4, 6, 3)]
            losses.append([trainer.train_step([batch])["loss"] for batch in batches])
            assert bool(counters["stats"]["unique_graphs"]) == bool(flags)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_folder_in_half_precision_is_loaded_in_float32(bert: SimpleNamespace, tmp_path: Path) -> None:
    import transformers

    half = transformers.AutoModelForMaskedLM.from_pretrained(bert.source, dtype=torch.float16)
    half.save_pretrained(shutil.copytree(bert.source, tmp_path / "source"))
    assert "float16" in (tmp_path / "source" / "config.json").read_text()
    model = start(SimpleNamespace(source=tmp_path / "source", data=bert.data))[0].get_model()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_rounded_models_keep_the_frequencies_of_positions(made: Any) -> None:
    found = made("modernbert")
    model = start(found)[0].get_model()
    before = {name: value.clone() for name, value in model.named_buffers() if value.dtype == torch.float32}
    assert any("inv_freq" in name for name in before)
    model.to(torch.bfloat16)
    assert next(model.parameters()).dtype == torch.bfloat16
    assert all(torch.equal(value, dict(model.named_buffers())[name]) for name, value in before.items())
    assert not all(torch.equal(value, value.bfloat16().float()) for value in before.values())  # rounding would show


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_a_pooler_is_kept_and_not_trained(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import transformers

    found = one(tmp_path, name, head=False)
    trainer, dataset = start(found, "--mlm-weight", "0", "--optimizer", "adam")
    trainer.train_step([dataset.collater(dataset.__getitems__(range(8)))])
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(tmp_path / "x.pt"), {"train_iterator": {"epoch": 1}})
    export(tmp_path / "x.pt", found.data, tmp_path / "out", "sentence-transformers", load_tokenizer(found.data))
    before, after = (transformers.AutoModel.from_pretrained(folder) for folder in (found.source, tmp_path / "out"))
    pairs = list(zip(before.pooler.parameters(), after.pooler.parameters(), strict=True))
    assert pairs and all(torch.equal(one, other) for one, other in pairs)
    refuses(caplog, "--mlm-weight: the encoder has no head", found, of=start)


@pytest.mark.parametrize("name", ["bert", "roberta", "nystromformer", "yoso", "mra", "ibert", "mpnet"])
def test_the_longest_text_has_positions(name: str) -> None:
    import transformers

    own = {"quant_mode": False} if name == "ibert" else {}
    config = transformers.AutoConfig.for_model(name, vocab_size=50, **SMALL, **own)
    model = transformers.AutoModel.from_config(config).eval()
    longest = HfBackbone.positions.fget(SimpleNamespace(model=model))  # type: ignore[attr-defined]
    model.embeddings(input_ids=torch.full((1, longest), 5))
    with pytest.raises((RuntimeError, IndexError)):
        model.embeddings(input_ids=torch.full((1, longest + 1), 5))


def test_a_configuration_is_enough(tmp_path: Path) -> None:
    """Random weights, for the vocabulary of any tokenizer."""
    source = make(tmp_path / "source", "modernbert")
    data = prepared(tmp_path, source)
    config = json.loads((source / "config.json").read_text())
    del config["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    trainer, dataset = build(
        data, "--arch", "clear_hf", "--encoder-config", str(tmp_path / "config.json"), "--tokens-per-sample", "32",
        "--optimizer", "adam", "--lr", "1e-3",
    )  # fmt: skip
    batch = dataset.collater(dataset.__getitems__(range(16)))
    losses = [trainer.train_step([batch])["loss"] for _ in range(12)]
    assert losses[-1] < losses[0]
    assert trainer.get_model().backbone.model.config.pad_token_id == 0
    assert trainer.get_model().encoder.rows == 1 + max(load_tokenizer(data).ids().values())


def test_a_checkpoint_starts_another_run_with_and_without_deleted_words(made: Any, tmp_path: Path) -> None:
    found = made("mpnet")
    for number, (first, second) in enumerate((("del-word", "none"), ("none", "del-word"))):
        trainer, dataset = start(found, "--augment", first, "--dropout", "0.1")
        trainer.train_step([dataset.collater(dataset.__getitems__(range(8)))])
        trainer.consolidate_optimizer()
        path = tmp_path / f"{number}.pt"
        trainer.save_checkpoint(str(path), {"train_iterator": {"epoch": 1}})
        flags = ("--arch", "clear_hf", "--encoder-from", str(path), "--tokens-per-sample", "32", "--dropout", "0.1")
        other, others = build(found.data, *flags, "--augment", second)
        other.load_checkpoint(str(path), reset_optimizer=True, reset_lr_scheduler=True, reset_meters=True)
        rows = other.get_model().encoder.rows
        for part, spec in ((trainer, first), (other, second)):
            ids, known = part.get_model().backbone.ids, part.task.dictionary
            assert ids[known.index("<del>")] == (rows if spec == "del-word" else ids[known.unk()])
        models = (part.get_model().backbone.model for part in (trainer, other))
        before, after = (model.get_input_embeddings().weight for model in models)
        assert {len(before), len(after)} == {rows, rows + 1} and torch.equal(before[:rows], after[:rows])
        other.train_step([others.collater(others.__getitems__(range(8)))])


@pytest.mark.parametrize("has_json", [False, True])
def test_folders_without_a_tokenizer_json_or_the_names_of_special_tokens(has_json: bool, tmp_path: Path) -> None:
    """transformers converts their files, here BERT's vocab.txt."""
    source = make(tmp_path / "source", "bert")
    known = wordpiece().get_vocab()
    (source / "vocab.txt").write_text("".join(f"{word}\n" for word in sorted(known, key=known.__getitem__)))
    if not has_json:
        (source / "tokenizer.json").unlink()
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    data = prepared(tmp_path, source)
    assert load_tokenizer(data).ids()["<mask>"] == known["[MASK]"]
    assert main(["import", str(source), "--dest", str(tmp_path / "ours"), "--arch", "clear_hf"]) == 0


def test_the_sentencepiece_model_of_a_deberta_is_converted(tmp_path: Path) -> None:
    import transformers
    from sentencepiece import SentencePieceTrainer

    source = make(tmp_path / "source", "deberta-v2")
    (source / "tokenizer.json").unlink()
    special = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    lines = [line for line in sentences(200, seed=1) if line]
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(source / "spm"), vocab_size=100, hard_vocab_limit=False, pad_id=0,
        bos_id=1, eos_id=2, unk_id=3, minloglevel=2, **special,
    )  # fmt: skip
    (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "DebertaV2Tokenizer"}))
    theirs, ours = transformers.AutoTokenizer.from_pretrained(source), load_tokenizer(prepared(tmp_path, source))
    assert ours.ids()["<mask>"] == theirs.mask_token_id
    assert [ours.encode(line) for line in lines[:20]] == [theirs.tokenize(line) for line in lines[:20]]


def edit(source: Path, **changes: Any) -> None:
    path = source / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("flags", "change", "said"),
    [
        (["--tokens-per-sample", "41"], {}, "--tokens-per-sample 41: the encoder reads at most 40 tokens"),
        (["--frozen-layers", "5"], {}, "--frozen-layers 5: give 0 to 4"),
        (["--attn-implementation", "no-such"], {}, "transformers cannot load it"),
        ([], {"is_decoder": True}, "a bert that decodes; an encoder is needed"),
        ([], {"model_type": "mine", "auto_map": {"AutoModel": "code.Mine"}}, "transformers cannot load it"),
        ([], {"vocab_size": 90}, "do not fit its config.json"),
        ([], {"attention_type": "block_sparse"}, "set it to original_full"),
    ],
)
def test_mistakes_are_one_line(flags, change, said, bert, tmp_path, caplog) -> None:
    source = shutil.copytree(bert.source, tmp_path / "source")
    edit(source, **change)
    refuses(caplog, said, SimpleNamespace(source=source, data=bert.data), *flags, of=start)


def test_encoders_that_cannot_be_trained_are_rejected(bert, tmp_path, caplog, capsys) -> None:
    import transformers

    found = SimpleNamespace(source=shutil.copytree(bert.source, tmp_path / "source"), data=bert.data)
    for kind, said, more in (
        ("convbert", "change with the padding", {"embedding_size": 16}),
        ("gpt2", "reads a text from left to right", {"n_embd": 32, "n_layer": 2, "n_head": 2}),
        ("t5", "holds a t5 that decodes", {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4}),
    ):
        values = SMALL if kind == "convbert" else {}
        config = transformers.AutoConfig.for_model(kind, vocab_size=160, pad_token_id=0, **values, **more)
        folder = tmp_path / kind
        shutil.copytree(found.source, folder)
        (folder / "model.safetensors").unlink()
        transformers.AutoModel.from_config(config).save_pretrained(folder)
        refuses(caplog, said, SimpleNamespace(data=found.data, source=folder), "--mlm-weight", "0", of=start)
        if kind == "t5":
            transformers.T5EncoderModel(config).save_pretrained(folder)
            refuses(caplog, "half of a t5 that decodes", SimpleNamespace(data=found.data, source=folder), of=start)
    (found.source / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense", "path": ""}]))
    with pytest.raises(SystemExit):  # while the command line is parsed
        start(found)
    assert "has a module Dense" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        start(bert, "--attention-window", "8")
    assert "--attention-window: no such flag" in capsys.readouterr().err
    flags = ("--arch", "clear_hf", "--encoder-from", str(bert.source), "--ddp-backend", "fully_sharded")
    with pytest.raises(UserError, match="--ddp-backend fully_sharded: .* give pytorch_ddp"):
        ClearHfModel.check_run(configuration(bert.data, *flags))
    of_stock = configuration(bert.data, *flags[:4])
    of_stock.task._name = "masked_lm"
    with pytest.raises(UserError, match="is not trained by --task masked_lm .* give --task clear_lm"):
        ClearHfModel.check_run(of_stock)


def test_data_of_another_tokenizer_are_rejected(bert, made, tmp_path, caplog) -> None:
    """Ids would be valid, and read the rows of other words."""
    split = shutil.copytree(bert.data, tmp_path / "split")
    path = split / "clear.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer": {"kind": "none", "files": []}}))
    for data in (made("roberta").data, split):
        refuses(caplog, "the data have another tokenizer", SimpleNamespace(source=bert.source, data=data), of=start)


def with_weight(source: Path, name: str) -> Path:
    """The folder with one weight more."""
    from safetensors.torch import load_file, save_file

    path = source / "model.safetensors"
    save_file(load_file(path) | {name: torch.ones(4)}, path, {"format": "pt"})
    return source


def test_weights_without_a_place_are_named_or_rejected(bert, tmp_path, caplog) -> None:
    """Relative positions are ignored by transformers 5, which computes other vectors without them."""
    from fairseq_clear.interop.importing import import_hf

    source = with_weight(shutil.copytree(bert.source, tmp_path / "classifying"), "classifier.out.weight")
    notes = import_hf(source, tmp_path / "ours", arch="clear_hf")
    assert notes[0] == "left out, as the encoder has no such part: classifier.out"
    if not IS_NEW:
        return  # transformers 4 has such weights
    name = "bert.encoder.layer.0.attention.self.distance_embedding.weight"
    source = with_weight(shutil.copytree(bert.source, tmp_path / "relative"), name)
    refuses(caplog, "do not fit its config.json", SimpleNamespace(source=source, data=bert.data), of=start)


def test_rotary_positions_that_transformers_4_ignores(made, monkeypatch, caplog) -> None:
    if not IS_NEW:
        pytest.skip("transformers 4 does not write them")
    monkeypatch.setattr(hf_source, "version", lambda _: "4.57.6")
    refuses(caplog, "install transformers 5", made("modernbert"), of=start)


def test_an_encoder_that_fails_is_one_line(bert: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = start(bert)[0].get_model().encoder
    encoder.check()
    with monkeypatch.context() as patch:
        patch.setattr(type(encoder.backbone), "forward", lambda *_: torch.zeros(2, 3, 4) @ torch.zeros(5))
        with pytest.raises(UserError, match=r"^bert: transformers cannot load it \(.*size"):
            encoder.check()
    with torch.no_grad():
        next(encoder.backbone.parameters()).fill_(math.nan)
    with pytest.raises(UserError, match="the bert computes NaN or infinity"):
        encoder.check()
    states = [torch.zeros(1, 4, 2)], [torch.zeros(1, 5, 2)]
    with pytest.raises(UserError, match="pads the text by itself"):
        compare_states(*states, torch.ones(1, 4, dtype=torch.bool))


@pytest.mark.parametrize("criterion", ["clear_nt_xent", "clear_moco"])
@pytest.mark.parametrize(("dropout", "is_warned"), [("0", True), ("0.1", False)])
def test_equal_views_are_warned_of(dropout, is_warned, criterion, bert, caplog) -> None:
    start(bert, "--augment", "none", "--views", "same", "--dropout", dropout, "--criterion", criterion)
    assert ("both views of a text are the same; give --dropout" in caplog.text) == is_warned


def test_blocks_that_share_their_weights_are_frozen_together(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    found = made("albert")
    for flag in ("--frozen-layers 2", "--compile"):
        refuses(caplog, f"{flag}: the blocks of this encoder share their weights", found, *flag.split(), of=start)
    encoder = start(found, "--frozen-layers", "1")[0].get_model().backbone.model
    assert not any(p.requires_grad for p in encoder.embeddings.parameters())
    assert any(p.requires_grad for p in encoder.encoder.parameters())


def test_the_export_keeps_the_configuration(tmp_path: Path) -> None:
    """Also what a run does not know, such as an id that the folder leaves out."""
    found = one(tmp_path, "bert", type_vocab_size=3, bos_token_id=None)
    edit(found.source, auto_map={"AutoModel": "code.Mine"})
    assert main(["import", str(found.source), "--dest", str(tmp_path / "ours"), "--arch", "clear_hf"]) == 0
    path = tmp_path / "ours" / "model.pt"
    own = ("--arch", "clear_hf", "--encoder-from", str(path), "--tokens-per-sample", "32")
    trainer, _ = build(found.data, *own, "--augment", "reorder")
    before = json.loads((found.source / "config.json").read_text())
    after = trainer.get_model().backbone.model.config.to_dict()
    stated = json.loads(trainer.get_model().args.hf_encoder)["config"]
    assert stated["hidden_act"] == "gelu" and stated["pad_token_id"] == 0  # also what equals the default of its class
    kept = {"bos_token_id": None, "type_vocab_size": 3, "vocab_size": before["vocab_size"]}
    assert {name: after[name] for name in kept} == kept
    assert "auto_map" not in stated, "the code would be run on weights that it does not know"


def test_attention_of_padded_batches_is_not_cudnns(bert: SimpleNamespace) -> None:
    model = start(bert, "--tokens-per-sample", "40")[0].get_model()
    assert model.max_positions() == 40, "texts as long as the positions are read"
    seen: list[bool] = []
    model.backbone.layers[0].register_forward_hook(lambda *_: seen.append(torch.backends.cuda.cudnn_sdp_enabled()))
    for lengths in ((5, 5), (5, 4)):
        model.hidden_states(torch.full((2, 5), 7), lengths=lengths)
    assert seen == [True, False] and torch.backends.cuda.cudnn_sdp_enabled()


def test_a_word_that_the_tokenizer_lacks_is_rejected(tmp_path: Path) -> None:
    source = read_source(make(tmp_path / "source", "bert"), {})
    dictionary = Dictionary()
    ids = torch.tensor([5, 0, 6, 7])  # of <s>, <pad>, </s> and <unk>
    assert len(HfEncoder(dictionary, source, ids, deleted=False).columns) == source.base.config.vocab_size
    ids[2] = -1
    with pytest.raises(UserError, match="belong to different models"):
        HfEncoder(dictionary, source, ids, deleted=False)


@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize(("name", "last"), [("modernbert", "final_norm"), ("megatron-bert", "encoder.ln")])
def test_a_last_norm_is_above_the_frozen_layers(name: str, last: str, layers: int, made: Any) -> None:
    backbone = start(made(name), "--frozen-layers", str(layers))[0].get_model().backbone
    assert all(parameter.requires_grad for parameter in backbone.model.get_submodule(last).parameters())
    trained = [next(block.parameters()).requires_grad for block in backbone.layers]
    assert trained == [layers <= n for n in range(1, 4)]
    assert not any(parameter.requires_grad for parameter in backbone.model.embeddings.parameters())


@pytest.mark.parametrize("layers", [1, 2])
def test_a_convolution_behind_the_first_block_belongs_to_it(layers: int, tmp_path: Path) -> None:
    found = one(tmp_path, "deberta-v2", conv_kernel_size=3, conv_act="gelu")
    encoder = start(found, "--frozen-layers", str(layers))[0].get_model().backbone.model.encoder
    assert encoder.conv.conv.weight.requires_grad == (layers == 1)
    assert encoder.rel_embeddings.weight.requires_grad == (layers == 1)


def test_a_head_that_reads_more_than_the_states_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if not IS_NEW:
        pytest.skip("transformers 4 does not load such a folder")
    found = one(tmp_path, "deberta-v2", legacy=False)
    refuses(caplog, "deberta-v2: transformers cannot load it", found, of=start)
    start(found, "--mlm-weight", "0")
