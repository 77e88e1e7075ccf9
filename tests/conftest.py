"""Shared fixtures: a tiny corpus, really binarized, and worker processes."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # forked processes can use the GPU after a look for one
import gc
import importlib.util
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

from tests import zygote

# Hundreds of processes import the package: it is compiled once, also where the environment says otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # a shell starts background commands so, and their children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples at every run, so that a commit passes or fails; HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("CLEAR_DATA", ROOT.parent / "shared" / "data"))

WORDS = [
    a + b
    for a in ("ba", "ke", "li", "mo", "nu", "pa", "re", "si")
    for b in ("da", "fe", "gi", "ho", "ju", "la", "me", "ni")
]


def pytest_configure(config: pytest.Config) -> None:
    """Import what most tests need; the process that only hands tests to others starts the server that forks commands."""
    if "not slow" in config.option.markexpr:
        zygote.LIBRARIES.clear()
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        os.environ[zygote.SOCKET] = zygote.server()
        return
    import torch
    import torch._dynamo  # what the first optimizer imports: once here rather than in each forked process

    torch.set_num_threads(1)
    zygote.quicken_hydra()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what is imported out of every later garbage collection, also in forked processes: a fifth of all time otherwise."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


collect_ignore = [] if importlib.util.find_spec("mteb") else ["evaluation/test_mteb.py"]  # make test-mteb


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests whose data, GPU or Slurm are absent. Files with slow tests go first, so that none is alone at the end."""
    import torch

    found = {"real": SHARED.is_dir(), "gpu": torch.cuda.is_available(), "slurm": "LOCAL_SLURM" in os.environ}
    absent = [name for name, is_there in found.items() if not is_there]
    left_out = [item for item in items if any(map(item.get_closest_marker, absent))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def sentences(count: int, seed: int, longest: int = 14) -> list[str]:
    """Random sentences over WORDS, with blank lines between documents."""
    rng = random.Random(seed)
    lines = []
    for number in range(count):
        if number and number % 7 == 0:
            lines.append("")
        lines.append(" ".join(rng.choice(WORDS) for _ in range(rng.randint(3, longest))))
    return lines


def load_file(path: Path, name: str = "") -> ModuleType:
    """A Python file that is in no package, as a module named like the file unless told otherwise."""
    spec = importlib.util.spec_from_file_location(name or path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


def run(
    *command: str | Path, check: bool = True, fresh: bool = False, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, from the project's root; its output is shown when it fails.

    Args:
        command: and its arguments. Python's ``-c`` and ``-m`` run in a process forked after the slow imports.
        check: fail the test if the command fails.
        fresh: start Python anew all the same, for tests of what is imported when.
        env: the environment (default: this process's).
        options: of ``subprocess.run``; with one, the command is not forked.
    """
    line = [str(part) for part in command]
    environment = {**(os.environ if env is None else env), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    cwd = options.pop("cwd", ROOT)
    if fresh or options or not zygote.can_fork(line):
        result = subprocess.run(line, cwd=cwd, capture_output=True, text=True, env=environment, **options)
    else:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = zygote.start(line, cwd=cwd, env=environment, stdout=out.fileno(), stderr=err.fileno())
            code = process.wait()
            out.seek(0), err.seek(0)
            result = subprocess.CompletedProcess(line, code, out.read(), err.read())
    if check and result.returncode:
        pytest.fail(f"{' '.join(line)}\nexit {result.returncode}\n{result.stdout[-4000:]}\n{result.stderr[-6000:]}")
    return result


def rejected(capsys: pytest.CaptureFixture[str], command: Sequence[object], said: str) -> None:
    """Check that ``fairseq-clear`` ends with status 2, and prints nothing but one line with ``said`` on standard error."""
    from fairseq_clear.cli.main import main

    capsys.readouterr()  # of what ran before
    try:
        status = main([str(word) for word in command])
    except SystemExit as left:
        status = int(str(left.code))
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1) and said in err, (command, status, out, err)
    assert ("unrecognized" in said) == ("unrecognized" in err), err  # which repeats what was typed


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as probe:
        return int(probe.getsockname()[1])


def run_workers(count: int, *command: str | Path, **options: Any) -> list[subprocess.CompletedProcess[str]]:
    """The results of a command on several workers, as torchrun starts them but forked; options are of ``run``."""
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    variables = {**os.environ, **place}
    with ThreadPoolExecutor() as pool:
        started = [pool.submit(run, *command, **options, env={**variables, "RANK": str(n)}) for n in range(count)]
        return [worker.result() for worker in started]


def tool(name: str) -> list[str]:
    """The command line of a fairseq tool by this interpreter."""
    return [sys.executable, "-c", f"from fairseq_cli.{name} import cli_main; cli_main()"]


def make_data_bin(folder: Path) -> Path:
    """A data folder as plain fairseq-preprocess makes it: 120 sentences to train, 20 to validate."""
    return binarize(folder / "bin", None, train=sentences(120, 1), valid=sentences(20, 2))


@pytest.fixture(autouse=True)
def _seed() -> None:
    """The same random weights and inputs at every run, also where a test draws before it sets a seed."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_bin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data_bin(tmp_path_factory.mktemp("data"))


def binarize(folder: Path, dictionary: Path | None, **texts: Sequence[str]) -> Path:
    """Lines of each split to a data folder, with an existing dictionary unless it is None; returns the folder."""
    folder.mkdir(parents=True)
    flags: list[str | Path] = ["--srcdict", dictionary] if dictionary else []
    for split, lines in texts.items():
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
        flags += [f"--{split}pref", folder / f"{split}.txt"]
    run(*tool("preprocess"), "--only-source", *flags, "--destdir", folder, "--workers", "1")
    return folder


@pytest.fixture(scope="session")
def even_bin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 texts of one length over 100 words."""
    from tests.training import make_data

    return make_data(tmp_path_factory.mktemp("even"), 100, 60)


@pytest.fixture(scope="session")
def other_bin(data_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 other sentences with the dictionary of ``data_bin``."""
    folder = tmp_path_factory.mktemp("other") / "bin"
    return binarize(folder, data_bin / "dict.txt", train=sentences(300, 5), valid=sentences(9, 6))


@pytest.fixture(scope="session")
def paired_bin(tmp_path_factory: pytest.TempPathFactory, data_bin: Path) -> Path:
    """``data_bin`` with two texts aligned to it: ``bt``, its words backwards, every fifth line blank; ``other``, other ones."""
    folder = tmp_path_factory.mktemp("paired") / "bin"
    shutil.copytree(data_bin, folder)
    lines = {split: sentences(count, seed) for split, count, seed in (("train", 120, 1), ("valid", 20, 2))}
    backwards = {
        split: ["" if n % 5 == 4 else " ".join(reversed(line.split())) for n, line in enumerate(own)]
        for split, own in lines.items()
    }
    other = {
        split: [line and WORDS[n % 64] + " " + WORDS[0] for n, line in enumerate(own)] for split, own in lines.items()
    }
    binarize(folder / "paraphrase" / "bt", folder / "dict.txt", **backwards)
    binarize(folder / "paraphrase" / "other", folder / "dict.txt", **other)
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, data_bin: Path) -> Path:
    """A clear_roberta checkpoint of 4 updates: 2 x 32, mean pooling, 24 positions; written by fairseq-train itself."""
    folder = tmp_path_factory.mktemp("checkpoint")
    run(
        *(*tool("train"), data_bin, "--user-dir", ROOT / "fairseq_clear", "--save-dir", folder, "--cpu"),
        *("--task", "clear_lm", "--criterion", "clear_nt_xent", "--augment", "del-word", "--max-update", "4"),
        *("--sample-break-mode", "eos", "--tokens-per-sample", "24", "--batch-size", "30", "--disable-validation"),
        *("--arch", "clear_roberta_tiny", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64"),
        *("--encoder-attention-heads", "2", "--pooling", "mean", "--optimizer", "adam", "--lr", "0.01"),
    )
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def encoder(checkpoint: Path, data_bin: Path) -> Any:
    """The encoder of ``checkpoint``."""
    from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
    from fairseq_clear.text.tokenizers import WhitespaceTokenizer

    return SentenceEncoder.from_pretrained(checkpoint, data_bin, tokenizer=WhitespaceTokenizer(), device="cpu")


@pytest.fixture(scope="session")
def guide(tmp_path_factory: pytest.TempPathFactory, data_bin: Path) -> Path:
    """A folder with model.pt as import writes it: random weights, other sizes than other models have, and no <del>."""
    from tests.models.test_pretrained_encoder import FLAGS, write

    return write(tmp_path_factory.mktemp("guide") / "encoder", data_bin, **FLAGS)


Ranks = Callable[..., list[object]]


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """``ranks(n, function, *args)``: n gloo processes each call function(rank, *args); their results in order.

    They meet over a file, so there is no port to be taken. The function must be importable (of a module's top level).
    """
    import torch

    folder = tmp_path_factory.mktemp("ranks")
    counter = iter(range(1_000_000))

    def spawn(size: int, function: Callable[..., object], *args: object) -> list[object]:
        store = folder / f"store{next(counter)}"
        results = [folder / f"{store.name}.{rank}.pt" for rank in range(size)]
        arguments = (size, str(store), list(map(str, results)), function, args)
        torch.multiprocessing.start_processes(_worker, arguments, nprocs=size, start_method="fork")
        return [torch.load(result, weights_only=False) for result in results]

    return spawn


def _worker(
    rank: int, size: int, store: str, results: list[str], function: Callable[..., object], args: tuple[object, ...]
) -> None:
    import torch

    warnings.simplefilter("ignore")  # pytest's filters are inherited
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    torch.save(function(rank, *args), results[rank])
    torch.distributed.destroy_process_group()
