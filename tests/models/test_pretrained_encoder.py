"""--encoder-from: the same run as with every flag given by hand, one-line errors for contradictions, and resuming."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.models.roberta import RobertaModel

from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.files import hash_file
from fairseq_clear.interop.stock import build_model, settings_of, write_checkpoint
from fairseq_clear.models.pretrained_encoder import encoder_settings
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.conftest import ROOT
from tests.faults.commands import NT_XENT, fairseq_hydra_train, run, same, saved, train_and_read
from tests.faults.test_mistakes import CONFIG

# Flag -> its value in the imported folder, a contradicting one, and its value in a run of tests.faults.commands, which
# gives the same flags.
SETTINGS: dict[str, tuple[Any, Any, Any]] = {
    "encoder-layers": (3, 2, 3),
    "encoder-embed-dim": (24, 48, 32),
    "encoder-ffn-embed-dim": (40, 48, 64),
    "encoder-attention-heads": (3, 2, 2),
    "activation-fn": ("relu", "gelu", "relu"),
    "layer-norm-eps": (1e-7, 1e-12, 1e-7),
    "max-positions": (50, 512, 40),
    "segments": (2, 1, 2),
    "pooling": ("first-last", "cls", "mean"),
}
FLAGS, OTHERS, START = ({name: values[part] for name, values in SETTINGS.items()} for part in range(3))
BY_HAND = tuple(word for name, value in FLAGS.items() for word in (f"--{name}", str(value)))
COMMON = ("--task", "clear_lm", "--criterion", "clear_nt_xent", "--optimizer", "adam", "--batch-size", "8")


SENTENCE_SETTINGS = {
    "normalized": True,
    "max_length": 30,
    "include_prompt": True,
    "config": {"prompts": {"query": "q: "}},
}


def write(folder: Path, data: Path, arch: str = "clear_roberta", sentence_settings: Any = None, **flags: Any) -> Path:
    """Write a folder with model.pt, as import does."""
    folder.mkdir()
    cfg = settings_of(folder, "clear_lm" if arch == "clear_roberta" else "masked_lm", arch, flags)
    dictionary = Dictionary.load(str(data / "dict.txt"))
    dictionary.add_symbol("<mask>")
    if arch == "roberta":
        model = RobertaModel.build_model(cfg.model, type("Task", (), {"source_dictionary": dictionary}))
    else:
        model = build_model(cfg, dictionary)
    cfg.model.sentence_settings = sentence_settings
    write_checkpoint(folder / "model.pt", cfg, model.state_dict(), hash_file(data / "dict.txt"))
    return folder


@pytest.fixture(scope="module")
def imported(data_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("imported") / "encoder", data_bin, **FLAGS, **{"projection-layers": 0})


def parse(*flags: str) -> dict[str, Any]:
    command = ["data", "--arch", "clear_roberta", *COMMON, *flags]
    found = vars(options.parse_args_and_arch(options.get_training_parser(), command))
    return {name: value for name, value in found.items() if name != "encoder_from"}


def test_one_flag_replaces_nine(imported: Path) -> None:
    path = str(imported / "model.pt")
    by_hand = parse("--finetune-from-model", path, *BY_HAND)
    for source in (str(imported), path):
        assert parse("--encoder-from", source) == by_hand
    assert parse("--encoder-from", path, *BY_HAND) == by_hand, "equal values do not contradict"
    assert parse("--encoder-from", path, "--finetune-from-model", path) == by_hand
    assert parse("--finetune-from-model", path) != by_hand


def test_the_attention_window_is_copied_or_added(imported: Path, data_bin: Path, tmp_path: Path) -> None:
    folder = str(write(tmp_path / "long", data_bin, **FLAGS, **{"attention-window": 6}))
    assert parse("--encoder-from", folder)["attention_window"] == 6
    assert "attention_window" not in encoder_settings(str(imported / "model.pt"))
    found = parse("--encoder-from", str(imported), *"--attention-window 8 --projection-layers 1 --dropout 0".split())
    assert (found["attention_window"], found["projection_layers"], found["dropout"]) == (8, 1, 0.0)


def test_stock_roberta(data_bin: Path, tmp_path: Path) -> None:
    flags = {name: value for name, value in FLAGS.items() if name not in ("layer-norm-eps", "segments", "pooling")}
    folder = write(tmp_path / "stock", data_bin, arch="roberta", **flags)
    expected = {name.replace("-", "_"): value for name, value in flags.items()}
    expected |= {"layer_norm_eps": 1e-5, "segments": 1}
    assert encoder_settings(str(folder / "model.pt")) == expected
    expected["pooling"] = "mean"
    assert {name: parse("--encoder-from", str(folder))[name] for name in expected} == expected
    assert parse("--encoder-from", str(folder), "--pooling", "cls")["pooling"] == "cls", "stock has no pooling"


@pytest.mark.parametrize("name", OTHERS)
def test_a_contradiction_is_one_line(name: str, imported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse("--encoder-from", str(imported), f"--{name}", str(OTHERS[name]))
    said = capsys.readouterr().err
    expected = f"--{name} {OTHERS[name]}: contradicts --encoder-from {imported}, which has {FLAGS[name]}; leave it out"
    assert left.value.code == 2 and expected in said and said.count("\n") == 1
    allow = ("--allow-change", name)
    command = ("--encoder-from", str(imported), f"--{name}", str(OTHERS[name]), *allow)
    if name in ("encoder-attention-heads", "activation-fn", "layer-norm-eps", "pooling"):
        assert f"keep it with --allow-change {name}" in said
        assert parse(*command)[name.replace("-", "_")] == OTHERS[name]
    else:
        with pytest.raises(SystemExit):
            parse(*command)


def test_an_unreadable_checkpoint_is_one_line(imported, tmp_path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.pt").write_text("no checkpoint")
    state = torch.load(imported / "model.pt", weights_only=True)
    del state["model"]["encoder.sentence_encoder.embed_positions.weight"]
    torch.save(state, tmp_path / "other.pt")
    wrong = {
        "none": "no such file or folder; give a folder of fairseq-clear import, or a checkpoint (.pt)",
        "empty": "has no model.pt; give a folder of fairseq-clear import, or a checkpoint (.pt)",
        "text.pt": "not a complete checkpoint of fairseq-train",
        "other.pt": "not a RoBERTa model",
    }
    for name, reason in wrong.items():
        with pytest.raises(SystemExit) as left:
            parse("--encoder-from", str(tmp_path / name))
        said = capsys.readouterr().err
        assert left.value.code == 2 and f"{tmp_path / name}: {reason}" in said and said.count("\n") == 1
    with pytest.raises(SystemExit):
        parse("--encoder-from", str(imported), "--finetune-from-model", "other.pt")
    assert "--finetune-from-model other.pt: --encoder-from" in capsys.readouterr().err


def train(data: Path, folder: Path, *flags: str, code: int = 0) -> str:
    """Train for two updates, which must end with this exit code; return the log."""
    found, text = train_and_read(data, folder, "--max-update", "2", *flags, recipe=NT_XENT)
    assert found == code, text[-3000:]
    return text


@pytest.mark.slow
def test_runs_are_equal_to_the_bit_and_resume(data_bin: Path, tmp_path: Path) -> None:
    start = write(tmp_path / "start", data_bin, sentence_settings=SENTENCE_SETTINGS, **START)
    path = str(start / "model.pt")
    typed = tuple(word for name, value in START.items() for word in (f"--{name}", str(value)))
    train(data_bin, tmp_path / "hand", "--finetune-from-model", path, *typed)
    train(data_bin, tmp_path / "one", "--encoder-from", str(start))
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG.format(plugin=ROOT / "fairseq_clear", data=data_bin, save_dir=tmp_path / "hydra"))
    left_open = '++checkpoint.finetune_from_model="???"'  # as in the recipes
    work = ("optimization.max_update=2", f"++model.encoder_from={start}", left_open)
    log = tmp_path / "log"
    assert run(lambda: fairseq_hydra_train(config, *work), log) == 0, log.read_text()[-3000:]
    hand = saved(tmp_path / "hand")
    for name in ("one", "hydra"):
        state = saved(tmp_path / name)
        assert same(state["model"], hand["model"]), name
        assert state["task_state"]["run"] == hand["task_state"]["run"]
        model = state["cfg"]["model"]
        settings = model if isinstance(model, dict) else vars(model)
        assert settings["sentence_settings"] == SENTENCE_SETTINGS, name
        last, tokenizer = tmp_path / name / "checkpoint_last.pt", WhitespaceTokenizer()
        encoder = SentenceEncoder.from_pretrained(last, data_bin, tokenizer=tokenizer, device="cpu")
        assert encoder.normalized and encoder.max_length == 30
    changed = saved(tmp_path / "one")["model"]["encoder.sentence_encoder.layers.2.fc1.weight"]
    first = torch.load(path, weights_only=True)["model"]["encoder.sentence_encoder.layers.2.fc1.weight"]
    assert 0 < (changed - first).abs().max() < 0.1, "starts from the weights, and trains"

    # a run with --encoder-from resumes one with the flags given by hand, and the reverse
    longer = ("--max-update", "3")
    train(data_bin, tmp_path / "one", "--finetune-from-model", path, *typed, *longer)
    assert "from update 2" in train(data_bin, tmp_path / "hand", "--encoder-from", str(start), *longer)
    copy = shutil.copyfile(path, tmp_path / "copy.pt")
    train(data_bin, tmp_path / "hand", "--encoder-from", str(copy), "--max-update", "4")
    # the trained checkpoint does not need the file
    (start / "model.pt").unlink()
    text = train(data_bin, tmp_path / "one", "--encoder-from", str(start), "--max-update", "4", code=2)
    assert f"--encoder-from {start}: has no model.pt" in text and "Traceback" not in text
    start = tmp_path / "hand" / "checkpoint_last.pt"
    train(data_bin, tmp_path / "next", "--encoder-from", str(start))
    work = (f"++model.encoder_from={start}", "++model.activation_fn=gelu")
    assert run(lambda: fairseq_hydra_train(config, *work), log) == 2
    assert f"--activation-fn gelu: contradicts --encoder-from {start}, which has relu" in log.read_text()
