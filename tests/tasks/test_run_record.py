"""A checkpoint records what decides its run; resuming anything else is one line, and starting from its weights is not."""

import json
import re
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import ListDataset
from fairseq.data.iterators import EpochBatchIterator
from omegaconf import OmegaConf

from fairseq_clear.augmentations.base import Symbols
from fairseq_clear.augmentations.chain import build_augmentation
from fairseq_clear.errors import UserError
from fairseq_clear.patches import stopping
from fairseq_clear.tasks import run_record
from fairseq_clear.tasks.run_record import check_same_run, content_hash
from tests.conftest import ROOT, binarize, sentences
from tests.faults.commands import NT_XENT, fairseq_hydra_train, run, saved, train_and_read, updates
from tests.faults.test_mistakes import CONFIG
from tests.training import configuration

pytestmark = pytest.mark.slow

SHORT = ("--max-update", "2", "--log-interval", "1")


def train(data: Path, folder: Path, *flags: str) -> str:
    """What a run of two updates logs."""
    code, text = train_and_read(data, folder, *SHORT, *flags, recipe=NT_XENT)
    assert code == 0, text[-3000:]
    return text


def refused(data: Path, folder: Path, *flags: str) -> str:
    """The error line of a run that ends with status 2."""
    code, text = train_and_read(data, folder, *SHORT, *flags, recipe=NT_XENT)
    lines = [line for line in text.splitlines() if "ERROR" in line]
    assert code == 2 and len(lines) == 1 and "Traceback" not in text, text[-3000:]
    return lines[0]


@pytest.fixture(scope="module")
def first(data_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "run"
    train(data_bin, folder)
    return folder


@pytest.fixture
def copy(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "run"))


# One setting of each part of the record, of which the error shows six.
OTHER_RUN = {
    "--augment none": "--augment del-word:ratio=0.7, now none",
    "--optimizer sgd": "--optimizer adam, now sgd",
    "--lr-scheduler polynomial_decay": "--lr-scheduler fixed, now polynomial_decay",
    "--grouped-shuffling": "--grouped-shuffling False, now True",
    "--encoder-ffn-embed-dim 128": "--encoder-ffn-embed-dim 64, now 128",
}


def test_another_run_does_not_resume(data_bin: Path, copy: Path) -> None:
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    line = refused(data_bin, copy, *" ".join(OTHER_RUN).split(), "--max-update", "5")
    assert f"{copy}/checkpoint_last.pt belongs to another run: " in line
    for said in (*OTHER_RUN.values(), "another --save-dir", "--finetune-from-model", "--allow-change"):
        assert said in line
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_what_may_change_resumes(data_bin: Path, copy: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(data_bin, tmp_path / "elsewhere"))
    free = ("--max-update", "4", "--log-interval", "3", "--save-interval-updates", "7", "--keep-interval-updates", "1")
    spelled_out = ("--augment", "del-word:ratio=0.70")  # the default
    without_effect = ("--required-batch-size-multiple", "1")  # with views
    others = ("--validate-interval-updates", "2", "--encode-chunk-size", "64")
    text = train(moved, copy, *free, *spelled_out, *without_effect, *others)
    assert text.count(f"resumes    from update 2 of {copy}") == 1 and updates(copy) == 4


def test_a_change_that_is_allowed_is_named(data_bin: Path, copy: Path) -> None:
    flags = ("--lr", "0.001", "--temperature", "0.2", "--max-update", "3")
    line = refused(data_bin, copy, *flags, "--allow-change", "lr")
    assert "--temperature 0.1, now 0.2" in line and "--allow-change temperature,lr" in line
    text = train(data_bin, copy, *flags, "--allow-change", "lr,--temperature")
    assert updates(copy) == 3
    for said in ("--lr 0.003, now 0.001", "--temperature 0.1, now 0.2"):
        assert text.count(f"resuming with a changed setting: {said}") == 1


def test_what_is_compared(data_bin: Path, guide: Path) -> None:
    """A schedule's length, which another section may give; a list, in one form for flags and YAML; the weights of a guide."""
    cfg = configuration(data_bin, "--lr-scheduler", "polynomial_decay", "--total-num-update", "100")
    assert run_record._section("lr_scheduler", cfg.lr_scheduler)["total_num_update"] == 100
    assert run_record._plain("(0.9, 0.98)") == run_record._plain(OmegaConf.create([0.9, 0.98])) == [0.9, 0.98]
    # an optimizer without a dataclass has the flags of the whole run
    sgd = configuration(data_bin, "--optimizer", "sgd", "--momentum", "0.5").optimizer
    assert run_record._section("optimizer", sgd) == {"momentum": 0.5, "weight_decay": 0, "optimizer": "sgd"}
    cfg.criterion.guide = str(guide)
    found = run_record._files(cfg, build_augmentation("none", Symbols(0, 2, 1, 5, 4)))["guide"]
    assert found["hash"] == content_hash(guide / "model.pt")


def test_what_a_configuration_file_leaves_out_may_change_too() -> None:
    """Under hydra, the settings of the model are those that the file gives, without defaults."""
    cfg = configuration("data", "--allow-change", "lr-scheduler,arch,attention-dropout")
    for section in [name for name in cfg if isinstance(cfg[name], Namespace)]:
        cfg[section] = OmegaConf.create({"_name": cfg[section]._name})
    run_record.check_allowed(cfg)
    cfg.task.allow_change = "speed"
    with pytest.raises(UserError, match="--allow-change speed: there is no such setting"):
        run_record.check_allowed(cfg)


def test_other_data_does_not_resume(data_bin: Path, copy: Path, tmp_path: Path) -> None:
    other = binarize(tmp_path / "other", data_bin / "dict.txt", train=sentences(120, 99), valid=sentences(20, 2))
    assert f"the data of {data_bin}, now {other}" in refused(other, copy)
    train(other, tmp_path / "new", "--finetune-from-model", str(copy / "checkpoint_last.pt"))


def test_other_negatives_and_synonyms_are_other_data(data_bin: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(data_bin, tmp_path / "data"))
    shutil.copytree(data_bin, data / "paraphrase" / "worse")
    (data / "synonyms.npz").write_bytes(b"one")

    def files(augment: str = "subs", names: str = "worse") -> list[Any]:
        chain = build_augmentation(augment, Symbols(0, 2, 1, 4, 4))
        found = run_record._files(configuration(data, "--augment", augment, "--hard-negatives", names), chain)
        return [(found.get(name) or {}).get("hash") for name in ("data", "synonyms", "aligned")]

    before = files()
    assert files("del-word") == [before[0], None, None]
    (data / "synonyms.npz").write_bytes(b"two")
    assert files()[0] == before[0] and files()[1] != before[1]
    change(data / "paraphrase" / "worse")
    changed = files()
    assert changed[0] != before[0]
    for end in ("bin", "idx"):  # which fairseq joins with train
        shutil.copyfile(data / f"train.{end}", data / f"train1.{end}")
    assert files()[0] != changed[0]
    elsewhere = Path(shutil.copytree(data_bin, tmp_path / "elsewhere"))
    before = files(names=str(elsewhere))
    change(elsewhere)
    after = files(names=str(elsewhere))
    assert after[:2] == before[:2] and after[2] != before[2]


def change(folder: Path) -> None:
    """Other training texts, of the same number and lengths."""
    with (folder / "train.bin").open("r+b") as stream:
        stream.write(stream.read(8)[::-1])


SHARD_TEXTS = sentences(40, 0), sentences(20, 1)


def sharded(folder: Path, dictionary: Path) -> Path:
    for number, texts in enumerate(SHARD_TEXTS):
        binarize(folder / f"shard{number}", dictionary, train=texts, valid=sentences(20, 2))
    (folder / "clear.json").write_text(json.dumps({"format": 1, "shards": ["shard0", "shard1"]}))
    return folder


def test_another_mix_does_not_resume(data_bin: Path, copy: Path, tmp_path: Path) -> None:
    other = binarize(tmp_path / "other", data_bin / "dict.txt", train=sentences(50, 99), valid=sentences(20, 2))
    mix, mixed = f"{data_bin}:0.8,{other}:0.2", tmp_path / "mixed"
    line = refused(data_bin, copy, "--mix", mix)
    assert f"belongs to another run: --mix none, now {mix}" in line and "--allow-change mix" in line
    train(data_bin, mixed, "--mix", mix)
    for flags, said in (
        (("--mix", f"{data_bin}:0.7,{other}:0.3"), f"--mix {mix}, now {data_bin}:0.7,{other}:0.3"),
        ((), f"--mix {mix}, now none"),
        (("--mix", mix, "--mix-batches", "one"), "--mix-batches any, now one"),
    ):
        assert said in refused(data_bin, mixed, *flags, "--max-update", "4")
    config, log = tmp_path / "run.yaml", tmp_path / "log"
    config.write_text(CONFIG.format(plugin=ROOT / "fairseq_clear", data=data_bin, save_dir=mixed))
    assert run(lambda: fairseq_hydra_train(config, f'++task.mix="{mix}"', "optimization.max_update=3"), log) == 0
    # the same corpora elsewhere, in another order, with equal shares
    moved = Path(shutil.copytree(other, tmp_path / "moved"))
    train(data_bin, mixed, "--mix", f"{moved}:1,{data_bin}:4", "--max-update", "4")
    assert updates(mixed) == 4
    change(other)
    line = refused(data_bin, mixed, "--mix", mix, "--max-update", "6")
    assert "--mix" in line and "belongs to another run" in line


def test_a_corpus_of_shards_is_read_whole(data_bin: Path, tmp_path: Path) -> None:
    other, lines = sharded(tmp_path / "other", data_bin / "dict.txt"), []
    one = binarize(tmp_path / "one", data_bin / "dict.txt", train=sum(SHARD_TEXTS, []), valid=sentences(20, 2))
    for folder in (other, one):
        text = train(data_bin, tmp_path / f"of-{folder.name}", "--mix", f"{data_bin}:1,{folder}:0.3")
        lines.append(re.search(rf"mix +.*?; {folder}: (.*)", text)[1])
    assert lines[0] == lines[1]  # size, weight and share
    change(other / "shard1")
    again = ("--mix", f"{data_bin}:1,{other}:0.3", "--max-update", "4")
    assert "belongs to another run" in refused(data_bin, tmp_path / "of-other", *again)


def test_a_folder_of_shards_stands_for_its_shards(data_bin: Path, tmp_path: Path) -> None:
    folder = sharded(tmp_path / "sharded", data_bin / "dict.txt")
    named = Path(f"{folder}/shard0:{folder}/shard1")
    for number, data in enumerate((folder, named)):
        # one epoch of each shard
        train(data, tmp_path / str(number), "--max-epoch", "2", "--max-update", "0")
    torch.testing.assert_close(*(saved(tmp_path / number)["model"] for number in "01"), rtol=0, atol=0)
    assert updates(tmp_path / "0") == updates(tmp_path / "1") > 2
    train(named, tmp_path / "0", "--max-epoch", "3", "--max-update", "0")
    assert updates(tmp_path / "0") > updates(tmp_path / "1")


def test_another_start_does_not_resume(data_bin: Path, copy: Path, tmp_path: Path) -> None:
    last, new = copy / "checkpoint_last.pt", tmp_path / "new"
    start = ("--finetune-from-model", str(last))
    for _ in range(2):
        train(data_bin, new, *start)
    assert f"--finetune-from-model {last}, now none" in refused(data_bin, new)
    last.write_bytes(last.read_bytes() + b" ")
    assert f"--finetune-from-model {last} has changed" in refused(data_bin, new, *start)
    last.unlink()
    assert f"--finetune-from-model {last}: no such file" in refused(data_bin, new, *start)


def test_another_vocabulary_of_equal_size(data_bin: Path, copy: Path, tmp_path: Path) -> None:
    """A checkpoint without a hash is compared with the dictionary beside it."""
    other, last = Path(shutil.copytree(data_bin, tmp_path / "data")), copy / "checkpoint_last.pt"
    words, start = (data_bin / "dict.txt").read_text(), ("--finetune-from-model", str(last))
    first, second, *rest = words.splitlines()
    (other / "dict.txt").write_text("\n".join([second, first, *rest]) + "\n")
    said = f"checkpoint_last.pt: its vocabulary differs from {other / 'dict.txt'}"
    assert said in refused(other, tmp_path / "none", *start) and not list((tmp_path / "none").iterdir())
    state = saved(copy)
    state["task_state"].clear()
    torch.save(state, last)
    (copy / "dict.txt").write_text(words.replace(" ", " 1"))  # counts may differ, words may not
    train(data_bin, tmp_path / "new", *start)
    (copy / "dict.txt").write_text("other 1\n" + words.partition("\n")[2])
    assert f"{last}: its vocabulary differs from" in refused(data_bin, tmp_path / "other", *start)
    (copy / "dict.txt").unlink()
    assert "does not record its settings" in train(data_bin, copy)


def test_what_no_shape_tells_is_compared(data_bin: Path, copy: Path, tmp_path: Path) -> None:
    changed = ("--encoder-attention-heads", "4", "--activation-fn", "relu")
    flags = ("--finetune-from-model", str(copy / "checkpoint_last.pt"), *changed)
    line = refused(data_bin, tmp_path / "new", *flags)
    for flag, old, new in (("--encoder-attention-heads", "2", "4"), ("--activation-fn", "gelu", "relu")):
        assert f"{flag} {old}" in line.partition("and the flags say")[0] and new in line.partition("say")[2]
    train(data_bin, tmp_path / "new", *flags, "--allow-change", "encoder-attention-heads,activation-fn")


def test_a_large_file_is_hashed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_record, "WHOLE", 4096)
    monkeypatch.setattr(run_record, "PIECE", 64)
    path = tmp_path / "file"
    content = bytes(range(256)) * 64
    path.write_bytes(content)
    known = content_hash(path)
    for position in (0, len(content) - 1):
        path.write_bytes(content[:position] + b"\xaa" + content[position + 1 :])
        assert content_hash(path) != known
    path.write_bytes(content + b"\0")
    assert content_hash(path) != known


def test_settings_of_one_side_workers_and_ways_of_drawing_are_not_compared() -> None:
    current = {"new": 2, "lr": [0.1], "workers": 2}
    assert check_same_run({"old": 1, "lr": [0.1]}, current, "x.pt", "") == []
    (told,) = check_same_run({"lr": [0.1], "workers": 4}, current, "x.pt", "")
    assert told.startswith("4 workers, now 2; --batch-size")
    with pytest.raises(UserError, match=re.escape("--lr 0.1,0.2, now 0.1")):
        check_same_run({"lr": [0.1, 0.2]}, current, "x.pt", "")
    for saved_draws, draws in (({}, 2), ({"draws": 3}, 4)):  # the first is of a version that did not record it
        (told,) = check_same_run({"lr": [0.1], **saved_draws}, {**current, "draws": draws}, "x.pt", "")
        assert "batches, views and masks of this epoch may be drawn anew" in told
    assert check_same_run({"draws": 2}, {"draws": 2, **current}, "x.pt", "") == []


PATIENT = "--lr 1e-12 --patience 2 --validate-interval-updates 2".split()  # no validation is better than the first


def test_a_resumed_run_stops_as_early(data_bin: Path, tmp_path: Path) -> None:
    def stops_at(folder: Path, *limits: str) -> int:
        for limit in limits:
            text = train(data_bin, folder, *PATIENT, "--max-update", limit)
        assert text.count("early stop: loss has not improved for 2 validations") == 1
        return updates(folder)

    whole = stops_at(tmp_path / "whole", "20")
    assert stops_at(tmp_path / "resumed", "2", "20", "20") == whole < 20, "the third command finds the run over"
    assert stops_at(tmp_path / "again", "2", "2", "2", "20") == whole, "the same weights, validated again, are no miss"


ACCURACY = ("--best-checkpoint-metric", "contrastive_accuracy", "--maximize-best-checkpoint-metric")


def test_another_metric_begins_anew(data_bin: Path, tmp_path: Path) -> None:
    for folder, flags in ((tmp_path / "metric", ACCURACY), (tmp_path / "meters", ("--reset-meters",))):
        train(data_bin, folder, *PATIENT, "--max-update", "4")
        text = train(data_bin, folder, *PATIENT, *flags, "--max-update", "12")
        said = "--best-checkpoint-metric loss, now contrastive_accuracy: the best score and --patience begin anew"
        assert (said in text) == (flags == ACCURACY)
        # validated after updates 6, 8 and 9: the best, and two that are not better; 4 if the count went on
        assert updates(folder) == 9
    best = torch.load(tmp_path / "metric" / "checkpoint_best.pt", weights_only=False)
    assert best["optimizer_history"][-1]["num_updates"] > 4


def test_a_run_that_is_out_of_time_makes_no_further_update(data_bin: Path, copy: Path) -> None:
    """Control: with more time, it does."""
    for hours, expected in (("1e-9", 2), ("9", 5)):
        train(data_bin, copy, "--stop-time-hours", hours, "--max-update", "5")
        assert updates(copy) == expected


def test_no_run_resumes_without_the_optimizers_state(data_bin: Path, tmp_path: Path) -> None:
    train(data_bin, tmp_path, "--no-save-optimizer-state")
    said = "holds no optimizer state (--no-save-optimizer-state)"
    assert said in refused(data_bin, tmp_path, "--max-update", "30")


def test_a_validation_without_negatives_is_one_line(data_bin: Path, tmp_path: Path) -> None:
    said = "--best-checkpoint-metric contrastive_accuracy: the validation did not measure it"
    assert said in refused(data_bin, tmp_path, "--batch-size-valid", "1", *ACCURACY)


@pytest.mark.parametrize(("steps", "position"), [(46, 40), (92, 80), (13, 11), (1, 0)])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_position_in_the_epoch_is_the_same_share_of_it(workers, steps, position, monkeypatch) -> None:
    def epoch(count: int) -> EpochBatchIterator:
        return EpochBatchIterator(ListDataset(range(count)), list, [[n] for n in range(count)], num_shards=workers)

    before, after = epoch(46 * workers), epoch(steps * workers - (workers - 1))  # the last worker has no last batch
    batches = before.next_epoch_itr(shuffle=False)
    for _ in range(40):
        next(batches)
    after.load_state_dict(before.state_dict())
    assert (after.iterations_in_epoch, len(after)) == (position, steps)
    old = {name: value for name, value in before.state_dict().items() if name != "steps"}  # of stock fairseq
    again = epoch(46 * workers)
    again.load_state_dict(old)
    assert again.iterations_in_epoch == 40
    monkeypatch.setattr(stopping._state, "update_freq", (2, 3))  # of the first epoch and of all others
    again = epoch(steps * workers - (workers - 1))
    again.load_state_dict(before.state_dict())
    assert again.iterations_in_epoch == position - position % 2


def test_a_run_resumes_between_the_groups_of_another_number_of_steps(data_bin: Path, tmp_path: Path) -> None:
    """fairseq would read the whole epoch again: its groups of batches end before the batches do."""
    given = ("--update-freq", "2", "--allow-change", "batch-size")
    for size, limit in (("8", "5"), ("9", "12")):  # the position would be 9 of 14
        text = train(data_bin, tmp_path, "--batch-size", size, *given, "--max-update", limit)
    assert updates(tmp_path) == 12 and text.count("begin training epoch 1\n") == 1
    assert text.count("begin training epoch 2\n") == 1


def test_a_changed_setting_of_the_optimizer_is_applied(data_bin: Path, tmp_path: Path) -> None:
    for optimizer in ("adam", "clear_adamw"):
        folder = tmp_path / optimizer
        for decay, limit in (("0.01", "2"), ("0.25", "3")):
            changed = ("--optimizer", optimizer, "--weight-decay", decay, "--allow-change", "weight-decay")
            train(data_bin, folder, *changed, "--max-update", limit)
        groups = saved(folder)["last_optimizer_state"]["param_groups"]
        assert [group["weight_decay"] for group in groups] == ([0.25] if optimizer == "adam" else [0.25, 0.0])


def test_the_epochs_after_a_curriculum_are_shuffled(data_bin: Path, tmp_path: Path) -> None:
    """Also without views, where fairseq uses the loader of the first epoch again, with its order."""
    given = (
        "--contrastive-weight",
        "0",
        "--curriculum",
        "1",
        "--max-epoch",
        "2",
        "--max-update",
        "0",
        "--log-format",
        "json",
    )
    text = train(data_bin, tmp_path, *given)
    words = [json.loads(line)["wpb"] for line in re.findall(r"train_inner \| (\{.*\})", text)]
    first, second = words[: len(words) // 2], words[len(words) // 2 :]
    assert len(first) == len(second) > 10 and sorted(first) == sorted(second) and first != second


def test_a_run_resumes_near_the_end_of_an_epoch_with_larger_batches(data_bin: Path, tmp_path: Path) -> None:
    """fairseq alone would end with an error: the epoch has fewer steps then than the position."""
    positions = []
    for flags in (("8", "--max-update", "12"), ("24", "--max-update", "13", "--allow-change", "batch-size")):
        train(data_bin, tmp_path, "--batch-size", *flags)
        positions.append(saved(tmp_path)["extra_state"]["train_iterator"])
    old, new = positions
    assert updates(tmp_path) == 13 and new["steps"] < 12
    step = 12 * new["steps"] // old["steps"] + 1
    assert (new["epoch"], new["iterations_in_epoch"]) == ((1, step) if step < new["steps"] else (2, 0))


def test_only_runs_with_views_record_how_they_are_drawn(first: Path, data_bin: Path, tmp_path: Path) -> None:
    assert saved(first)["task_state"]["run"]["draws"] == 5
    train(data_bin, tmp_path, "--contrastive-weight", "0")
    assert "draws" not in saved(tmp_path)["task_state"]["run"]
