"""On a GPU: the updates and vectors of the CPU, in every precision, compiled and resumed, and no waiting for the GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fairseq.logging import metrics

from fairseq_clear import SentenceEncoder
from fairseq_clear.criterions.figures import read_figures
from fairseq_clear.preparation.back_translation.translating import translate_file
from fairseq_clear.preparation.back_translation.translation_settings import OneDirection
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from tests.conftest import run, sentences, tool
from tests.criterions.test_gpu_waits import COMMON
from tests.distributed.test_parity import LOGGED, OF_DOCUMENTS, RECIPES, SHARES_OF_DOCUMENTS, cases, moved
from tests.faults.commands import saved
from tests.integration.test_command_lines import RECIPES as OWN
from tests.integration.test_command_lines import RUN, TORCHRUN, interrupted, numbers
from tests.preparation.back_translation.toys import train_toys
from tests.training import Case, build, distance, update

# of torch's compiler, about what it is given and might do faster, and of its search for waiting, which may miss some
WARNINGS = (
    "The .grad attribute of a Tensor that is not a leaf",
    "TensorFloat32 tensor cores for float32",
    "Synchronization debug mode is a prototype",
)
IGNORED = [pytest.mark.filterwarnings(f"ignore:{warning}:UserWarning") for warning in WARNINGS]
pytestmark = [pytest.mark.gpu, pytest.mark.slow, *IGNORED]

TRAIN = tuple(flag for flag in RUN if flag != "--cpu")


def case_of(recipe: str, guide: Path) -> Case:
    if recipe in OF_DOCUMENTS:
        return Case(OF_DOCUMENTS[recipe], SHARES_OF_DOCUMENTS[1])
    return cases(1, guide)[recipe,]


@pytest.mark.parametrize("recipe", [*RECIPES, *OF_DOCUMENTS])
def test_the_update_is_that_of_the_cpu(recipe: str, paired_bin: Path, guide: Path) -> None:
    case = case_of(recipe, guide)
    cpu, gpu = (update(0, str(paired_bin), replace(case, on_gpu=on_gpu)) for on_gpu in (False, True))
    assert distance(cpu["before"], gpu["before"]) == 0
    assert distance(cpu["after"], gpu["after"]) < 1e-4 < 1e-3 < moved(cpu)
    for name in LOGGED:
        assert gpu["log"].get(name) == pytest.approx(cpu["log"].get(name), abs=2e-3), name


@pytest.mark.parametrize("precision", ["--bf16", "--fp16", "--amp"])
@pytest.mark.parametrize(
    "recipe", ["clear", "moco with mlm, in chunks", "opt3", "window, in chunks", "joint, in chunks"]
)
def test_half_precision(recipe: str, precision: str, paired_bin: Path, guide: Path) -> None:
    """The first update: its loss is near that in float32, and weights move in the same direction."""
    case = replace(case_of(recipe, guide), on_gpu=True, steps=1)
    whole, half = (
        update(0, str(paired_bin), replace(case, flags=(*case.flags, "--fp16-init-scale", "4", *more)))
        for more in ((), (precision,))
    )
    assert half["log"]["loss"] == pytest.approx(whole["log"]["loss"], rel=0.03)
    steps = [torch.cat([(one["after"][name] - one["before"][name]).float().flatten() for name in one["after"]])
             for one in (whole, half)]  # fmt: skip
    assert torch.cosine_similarity(*steps, dim=0).item() > 0.99


@pytest.mark.parametrize("recipe", ["clear", "moco with mlm, in chunks", "opt3"])
def test_compiled(recipe: str, paired_bin: Path, guide: Path) -> None:
    case = replace(case_of(recipe, guide), on_gpu=True)
    plain, compiled = (
        update(0, str(paired_bin), one) for one in (case, replace(case, flags=(*case.flags, "--compile")))
    )
    assert distance(plain["after"], compiled["after"]) < 1e-4


PRECISIONS = {"float32": (), "bf16": ("--bf16",), "fp16": ("--fp16",), "amp": ("--amp",)}
RESUMED = PRECISIONS | {
    "moco, fp16": (*OWN["moco"], "--fp16"),
    "self-guided, bf16": (*OWN["self-guided"], "--bf16"),
    "clear_adamw, fp16": ("--fp16", "--fp16-no-flatten-grads", "--optimizer", "clear_adamw"),
}


@pytest.mark.parametrize("recipe", RESUMED)
def test_resumed_is_uninterrupted(recipe: str, data_bin: Path, tmp_path: Path) -> None:
    flags = (*TRAIN, *RESUMED[recipe], "--update-freq", "2", "--num-workers", "2", "--fp16-init-scale", "4")
    straight, _ = interrupted(tmp_path, *tool("train"), data_bin, *flags)
    assert "1 on GPU" in straight.stdout


def test_one_worker_under_torchrun_with_nccl(data_bin: Path, tmp_path: Path) -> None:
    launch = (*TORCHRUN[:-1], "1", "-m", "fairseq_cli.train", data_bin, *TRAIN)
    more = ("--fp16", "--ddp-backend", "pytorch_ddp", "--max-epoch", "3", "--save-dir", tmp_path / "run")
    done = run(*launch, *more, "--distributed-no-spawn", "--distributed-world-size", "1")
    assert "1 on GPU, fp16" in done.stdout
    losses = [float(line["loss"]) for line in numbers(done)]
    assert losses[-1] < losses[0]
    assert saved(tmp_path / "run")["extra_state"]["train_iterator"]["epoch"] == 4


@contextmanager
def no_waiting() -> Iterator[None]:
    """An operation that waits for the GPU is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("size", ["0", "128"])
@pytest.mark.parametrize("criterion", ["clear_nt_xent", "clear_self_guided", "clear_moco"])
def test_views_do_not_wait_for_the_gpu(criterion: str, size: str, even_bin: Path) -> None:
    """What tests/criterions/test_gpu_waits.py derives on a CPU."""
    flags = ("--criterion", criterion, "--mlm-weight", "0", "--encode-chunk-size", size)
    trainer, dataset = build(even_bin, *COMMON, *flags, on_gpu=True)
    first, second = (dataset.collater([dataset[4 * batch + k] for k in range(4)]) for batch in range(2))
    trainer.train_step([first])
    sample, _ = trainer._prepare_sample(second)
    with no_waiting():
        loss, *_ = trainer.criterion(trainer.model, sample)
        loss.backward()
    with pytest.raises(RuntimeError, match="synchronizing"), no_waiting():
        loss.item()


def test_figures_are_read_at_once(even_bin: Path) -> None:
    trainer, dataset = build(even_bin, *COMMON, on_gpu=True)
    sample, _ = trainer._prepare_sample(dataset.collater([dataset[0], dataset[1]]))
    *_, log = trainer.criterion(trainer.model, sample)
    read = read_figures([log])
    with no_waiting(), metrics.aggregate():
        trainer.criterion.reduce_metrics(read)
    with pytest.raises(RuntimeError, match="synchronizing"), no_waiting(), metrics.aggregate():
        trainer.criterion.reduce_metrics([log])


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "first-last", "wk", "layer:1"])
def test_vectors_are_those_of_the_cpu(pooling: str, request: pytest.FixtureRequest, data_bin: Path) -> None:
    texts = ["", *sentences(300, seed=9)]
    path = request.getfixturevalue("checkpoint")
    cpu, gpu = (
        SentenceEncoder.from_pretrained(path, data_bin, tokenizer=WhitespaceTokenizer(), pooling=pooling, device=device)
        for device in ("cpu", None)
    )
    assert next(gpu.model.parameters()).is_cuda, "a GPU is the default"
    torch.testing.assert_close(torch.tensor(gpu.encode(texts)), torch.tensor(cpu.encode(texts)), rtol=1e-4, atol=1e-5)


def test_translations_are_those_of_the_cpu(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    toys = train_toys(tmp_path_factory)
    (tmp_path / "text").write_text("\n".join((toys / "text.txt").read_text().split("\n")[:60]) + "\n")
    found = {}
    for name, others in {"cpu": {"device": "cpu"}, "gpu": {}, "half": {"fp16": True}}.items():
        files = {"input": tmp_path / "text", "output": tmp_path / name}
        translate_file(OneDirection(**files, model=str(toys / "english-gerlan"), **others))
        found[name] = (tmp_path / name).read_text().split("\n")
    assert found["gpu"] == found["cpu"]
    same_lines = sum(one == other for one, other in zip(found["half"], found["cpu"], strict=True))
    assert same_lines > 0.9 * len(found["cpu"])
