"""--guide: a separate frozen encoder decides which negatives --false-negatives masks."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_clear.data.batch import Batch
from fairseq_clear.evaluation.checkpoints import load_model
from tests.criterions.test_clear_nt_xent import backward, parts, reduced
from tests.faults.commands import MOCO, same, train_and_read
from tests.objectives import oracles
from tests.objectives.test_false_negatives import nearer
from tests.training import build, refuses

PLAIN = ("--mlm-weight", "0", "--temperature", "0.2", "--projection-layers", "0")
PAIRS = ("--views", "paraphrase:original,other")
GUIDED = ("--false-negatives", "guide:margin=0.0", "--guide")
QUEUE = ("--criterion", "clear_moco", "--queue-size", "30", "--key-momentum", "0.5")


def vectors_of(guide: Path, data: Path, views: dict[str, Any], missing: int = -1) -> torch.Tensor:
    """The guide's vectors of all views in float64, one text at a time, without padding; ``missing`` becomes ``<mask>``."""
    loaded = load_model(guide / "model.pt", data)
    rows = [row[:length] for row, length in zip(views["tokens"], views["lengths"], strict=True)]
    masks = [row.masked_fill(row == missing, loaded.dictionary.index("<mask>")) for row in rows]
    with torch.no_grad():
        return torch.cat([loaded.model.double().embed(row.unsqueeze(0)) for row in masks])


@pytest.mark.slow
@pytest.mark.parametrize("chunk", ["0", "40"])
@pytest.mark.parametrize("is_separate", [False, True])
@pytest.mark.parametrize(
    "flags",
    [(*PAIRS, "--augment", "none"), ("--views", "same", "--hard-negatives", "other,bt", "--augment", "del-word")],
    ids=["pairs", "hard negatives, <del>"],
)
def test_nt_xent_against_the_oracle(flags, is_separate, chunk, paired_bin, guide) -> None:
    """The guide is a separate encoder, or the model itself."""
    masking = (*GUIDED, str(guide)) if is_separate else GUIDED[:-1]
    model, criterion, dataset, task = parts(paired_bin, *PLAIN, *flags, *masking, "--encode-chunk-size", chunk)
    sample = dataset.collater([dataset[index] for index in range(8)])
    views = sample["views"]
    has_deleted = bool((views["tokens"] == task.del_idx).any())
    assert has_deleted == ("del-word" in flags)
    with torch.no_grad():
        z = model(views=views["tokens"])[1]["projections"]
    g = vectors_of(guide, paired_bin, views, task.del_idx) if is_separate else z
    assert g.shape == (len(views["tokens"]), 24 if is_separate else 128)
    positive = torch.arange(16).roll(8)
    hashes = views["identity"].tolist() * 2 + views["negative_identity"].tolist()
    sets = [set(np.atleast_1d(some)) for some in hashes]
    # the query itself, its positive, and for all queries blank hard negatives, which have their text's hash
    same = np.array([[bool(mine & other) for other in sets] for mine in sets[:16]])
    same[:, 16:] |= np.array([bool(some & sets[number // 2]) for number, some in enumerate(sets[16:])], np.bool_)
    masked = nearer(g[:16], g, g[positive], 0.0)
    vectors = z.double().numpy()
    expected = oracles.nt_xent_with_exclusions(vectors[:16], vectors, positive.tolist(), 0.2, masked | same)
    loss, size, log = criterion(model, sample)
    left = ~(masked | same)
    assert 0 < left.sum() < (~same).sum(), "some are masked, some are not"
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert size == left.any(axis=1).sum()
    assert log["candidates"] == (~same).sum() and log["negatives"] == left.sum()
    by_itself = nearer(z[:16], z, z[positive], 0.0)
    differs = (by_itself & ~same).sum() != (masked & ~same).sum()
    assert differs == is_separate, "the negative control: the model itself masks other candidates"


@pytest.mark.parametrize(
    ("views", "margin"),
    [("original,other --symmetric", 0.0), ("original,other", 0.0), ("original,bt,other", 0.2), ("original,bt", 0.5)],
    ids=["symmetric", "one positive", "two positives", "the model itself"],
)
def test_moco_keeps_the_guides_vectors_with_the_keys(views, margin, paired_bin, guide) -> None:
    separate = () if margin == 0.5 else ("--guide", str(guide))
    flags = ("--views", *f"paraphrase:{views}".split(), "--false-negatives", f"guide:margin={margin}", *separate)
    command = (*PLAIN, "--augment", "none", *QUEUE, *flags)
    model, criterion, dataset, _ = parts(paired_bin, *command)
    model.begin()
    model.train()
    first, second = (dataset.collater([dataset[n] for n in rows]) for rows in (range(9, 15), range(4)))
    g = []
    for sample in (first, second):
        texts, rows = len(sample["id"]), vectors_of(guide, paired_bin, sample["views"])
        anchors, positives = rows[:texts], rows[texts:]
        if "--symmetric" in flags:
            g.append((rows, torch.cat([positives, anchors])))
        else:
            g.append((anchors, positives.view(texts, -1, 24).mean(dim=1)))
    criterion(model, first)
    queue = model.key_queue
    kept, count = g[0][1], len(g[0][1])
    if "--symmetric" in flags:  # in the queue, both keys of a text are next to each other
        kept = torch.stack(kept.chunk(2), dim=1).flatten(0, 1)
    if separate:
        unit = torch.nn.functional.normalize(kept, dim=-1)
        torch.testing.assert_close(queue.guides[:count].double(), unit, atol=1e-5, rtol=0)
        assert queue.guides.dtype == torch.float32 and not queue.guides[count:].any()
    keys = queue.keys[:count].clone()
    called = criterion.view_inputs(Batch.of(second).views)
    with torch.no_grad():
        extra = model(**called)[1]
    q = extra["projections"]
    own = extra["keys"].view(len(q), -1, q.shape[1]).mean(dim=1)
    masked = nearer(g[1][0], kept, g[1][1], margin) if separate else nearer(q, keys, own, margin)
    assert 0 < masked.sum() < masked.size
    expected, counted = oracles.cert_equation_2(*(rows.double().numpy() for rows in (q, own, keys)), 0.2, masked)
    loss, size, log = criterion(model, second)
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5) and size == counted
    assert log["candidates"] == masked.size and log["negatives"] == (~masked).sum()


def test_the_share_is_logged(paired_bin: Path) -> None:
    for criterion in ((), ("--criterion", "clear_moco", "--queue-size", "30")):
        for flags, is_logged in (((), False), (GUIDED[:-1], True)):
            model, loss, dataset, _ = parts(paired_bin, *PLAIN, "--augment", "none", *PAIRS, *criterion, *flags)
            for rows in (range(9, 15), range(6)):  # the queue is empty at first
                log = loss(model, dataset.collater([dataset[index] for index in rows]))[2]
            share = float(1 - log["negatives"] / log["candidates"]) if is_logged else None
            assert reduced([log]).get("false_negative_share") == pytest.approx(share, abs=5e-4)
            assert share is None or 0 < share < 1


def test_the_guide_is_neither_trained_nor_saved(paired_bin: Path, guide: Path) -> None:
    for criterion, added in (((), set()), (QUEUE, {"key_queue.guides"})):
        command = (*PLAIN, *PAIRS, *criterion, "--dropout", "0.1", "--optimizer", "adam")
        plain, _ = build(paired_bin, *command)
        trainer, dataset = build(paired_bin, *command, *GUIDED, str(guide))
        encoder = trainer.get_criterion().guide.model
        before = {name: value.clone() for name, value in encoder.state_dict().items()}
        sample = dataset.collater([dataset[index] for index in range(6)])
        rng = torch.get_rng_state()
        views = sample["views"]
        vectors = trainer.get_criterion().guide(views["tokens"], views["lengths"], torch.zeros(1))
        assert torch.equal(torch.get_rng_state(), rng) and not vectors.requires_grad
        for _ in range(2):
            trainer.train_step([sample])
        assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
        assert not any(module.training for module in encoder.modules())
        assert not any(parameter.requires_grad for parameter in encoder.parameters())
        assert not [*trainer.get_criterion().parameters()]
        state = trainer.get_model().state_dict()
        assert state.keys() - plain.get_model().state_dict().keys() == added
        ours = {id(parameter) for parameter in encoder.parameters()}
        groups = trainer.optimizer.optimizer.param_groups
        assert not any(id(parameter) in ours for group in groups for parameter in group["params"])
    without_views, _ = build(paired_bin, "--contrastive-weight", "0", *GUIDED, str(guide))
    assert without_views.get_criterion().guide is None


def test_autocast_leaves_the_guides_weights_in_float32(paired_bin: Path, guide: Path) -> None:
    command = (*PLAIN, *PAIRS, "--projection-layers", "1", *GUIDED, str(guide))
    model, criterion, dataset, _ = parts(paired_bin, *command)
    with torch.autocast("cpu", torch.bfloat16):
        criterion(model, dataset.collater([dataset[index] for index in range(6)]))
    assert {parameter.dtype for parameter in criterion.guide.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_half_precision_compares_in_float32(precision: torch.dtype, paired_bin: Path, guide: Path) -> None:
    command = (*PLAIN, *PAIRS, "--augment", "none", *QUEUE, *GUIDED, str(guide))
    model, criterion, dataset, _ = parts(paired_bin, *command)
    model.begin()
    first, second = (dataset.collater([dataset[n] for n in rows]) for rows in (range(9, 15), range(4)))
    criterion(model, first)
    exact = model.key_queue.guides.clone()
    model.to(precision)
    model.key_queue.clear()
    backward(model, criterion, first)
    assert next(criterion.guide.model.parameters()).dtype == precision
    assert model.key_queue.guides.dtype == torch.float32
    torch.testing.assert_close(model.key_queue.guides, exact, atol=0.05, rtol=0)
    assert torch.allclose(model.key_queue.guides[:6].norm(dim=1), torch.ones(6), atol=1e-5)  # normalised in float32
    loss, *_ = backward(model, criterion, second)
    assert loss.dtype == torch.float32 and bool(loss.isfinite())


def test_a_queue_without_the_guides_vectors_begins_empty(data_bin: Path, guide: Path) -> None:
    with_guide, *_ = parts(data_bin, *PLAIN, *QUEUE, *GUIDED, str(guide))
    plain, *_ = parts(data_bin, *PLAIN, *QUEUE)
    larger, *_ = parts(data_bin, *PLAIN, *QUEUE, "--queue-size", "40")
    for model in (with_guide, plain):
        guides = (torch.randn(5, 24),) if model is with_guide else ()
        model.key_queue.enqueue(torch.randn(5, 128), torch.arange(5), *guides)
    saved, other = with_guide.state_dict(), plain.state_dict()
    again, *_ = parts(data_bin, *PLAIN, *QUEUE, *GUIDED, str(guide))
    again.load_state_dict({**saved})
    assert int(again.key_queue.fill) == 5 and torch.equal(again.key_queue.guides, saved["key_queue.guides"])
    fresh, *_ = parts(data_bin, *PLAIN, *QUEUE, *GUIDED, str(guide))
    fresh.load_state_dict({**other})
    assert int(fresh.key_queue.fill) == 0 and not fresh.key_queue.keys.any()
    plain.load_state_dict({**saved})
    assert int(plain.key_queue.fill) == 5
    larger.load_state_dict({**saved})
    assert int(larger.key_queue.fill) == 0


def test_mistakes_are_one_line(paired_bin: Path, guide: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = tmp_path / "other"
    shutil.copytree(paired_bin, other)
    lines = (other / "dict.txt").read_text().splitlines()
    (other / "dict.txt").write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")
    unrecorded = tmp_path / "unrecorded"  # its vocabulary is read from the dict.txt in its folder
    unrecorded.mkdir()
    state = torch.load(guide / "model.pt", weights_only=True)
    torch.save({**state, "task_state": {}}, unrecorded / "model.pt")
    shutil.copyfile(other / "dict.txt", unrecorded / "dict.txt")
    long = ("--tokens-per-sample", "51", "--max-positions", "60")
    for data, flags, message in [
        (paired_bin, (*GUIDED, str(unrecorded)), f"--guide {unrecorded / 'model.pt'}: its vocabulary differs from"),
        (paired_bin, ("--guide", str(guide)), f"--guide {guide}: only decides what --false-negatives masks; add"),
        (paired_bin, (*GUIDED, "none.pt"), "--guide none.pt: no such file or folder; give a folder of"),
        (other, (*GUIDED, str(guide)), f"--guide {guide / 'model.pt'}: its vocabulary differs from"),
        (
            paired_bin,
            (*GUIDED, str(guide), *long),
            f"--guide {guide}: reads at most 50 tokens; give --tokens-per-sample 50",
        ),
    ]:
        refuses(caplog, message, data, *flags)


@pytest.mark.slow
def test_resuming_needs_the_same_guide(data_bin: Path, guide: Path, tmp_path: Path) -> None:
    own, states = Path(shutil.copytree(guide, tmp_path / "guide")), {}

    def train(folder: str, updates: int, *flags: str, status: int = 0) -> str:
        own = ("--false-negatives", "guide", "--save-interval-updates", "0", "--max-update", str(updates))
        code, text = train_and_read(data_bin, tmp_path / folder, *own, *flags, recipe=MOCO)
        assert code == status, text[-3000:]
        return text

    for name, updates in (("whole", (6,)), ("parts", (3, 6))):
        text = [train(name, number, "--guide", str(own)) for number in updates][-1]
        assert name == "whole" or "from update 3" in text
        states[name] = torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=True)
    assert same(states["whole"]["model"], states["parts"]["model"])
    assert not [key for key in states["whole"]["model"] if key.startswith("guide")]
    assert states["whole"]["task_state"]["run"]["guide"]["path"] == str(own / "model.pt")

    moved = Path(shutil.copytree(own, tmp_path / "moved"))
    train("parts", 7, "--guide", str(moved))
    (own / "model.pt").write_bytes((guide / "model.pt").read_bytes() + b" ")
    for flags, now in ((), "none"), (("--guide", str(own)), own / "model.pt"):
        text = train("parts", 7, *flags, status=2)
        assert f"--guide {moved / 'model.pt'}, now {now}" in text and "Traceback" not in text
