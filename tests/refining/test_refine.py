"""``refine`` on a tiny encoder: what it writes, that it resumes after a kill in each stage, and its messages."""

import errno
import json
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from fairseq_clear import SentenceEncoder
from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.processes import locked
from fairseq_clear.refining import refining
from fairseq_clear.refining.holding_out import HARDER, QUESTION, HeldOut
from fairseq_clear.refining.refine_report import RefineReport, choose_share, reciprocal_ranks
from fairseq_clear.refining.refine_settings import RefineSettings
from fairseq_clear.refining.refine_steps import Steps, Training, training_flags
from fairseq_clear.refining.refining import _choose_question, _choose_recipe, refine, run_refine
from tests import zygote
from tests.conftest import ROOT, rejected, run, sentences
from tests.faults.commands import exit_code
from tests.interop.folders import make_folder, make_sentence_folder
from tests.models.test_clear_hf import make

pytestmark = pytest.mark.slow

CLEAR = [sys.executable, "-m", "fairseq_clear.cli"]
SHORT = ("--updates", "6", "--max-length", "36", "--device", "cpu", "--lr", "0.01", "--batch-size", "32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT as sentence-transformers has it, and a text of 80 documents."""
    folder = tmp_path_factory.mktemp("refine")
    make_sentence_folder(folder / "tiny", "bert")
    (folder / "text.txt").write_text("\n".join(sentences(560, seed=5)) + "\n")
    (folder / "sts/STSBenchmark").mkdir(parents=True)
    texts = [line for line in sentences(24, seed=3) if line]
    rows = [f"main\tnews\t2015\t{n}\t{n % 6}\t{texts[n]}\t{texts[-n]}" for n in range(1, 16)]
    (folder / "sts/STSBenchmark/sts-test.csv").write_text("\n".join(rows) + "\n")
    return folder


def call(folder: Path, dest: str | Path, *flags: object, check: bool = True) -> Any:
    words = ["refine", folder / "text.txt", "--from", folder / "tiny", "--dest", folder / dest, *SHORT, *flags]
    return run(*CLEAR, *map(str, words), check=check)


@pytest.fixture(scope="module")
def finished(folder: Path) -> Path:
    """A refined encoder, and the output of the command in output.txt."""
    done = call(folder, "finished", "--no-keep-best", "--sts", str(folder / "sts"), "--recipe", "auto")
    (folder / "output.txt").write_text(done.stdout)
    return folder / "finished"


TEXTS = [*sentences(12, seed=8), " ".join(sentences(40, seed=8))]  # the last is longer than the encoder reads


def their_vectors(folder: Path) -> tuple[Any, Any]:
    """Vectors of TEXTS by sentence-transformers, and its encoder."""
    import sentence_transformers

    encoder = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return encoder.encode(TEXTS), encoder


def test_the_folder_is_the_encoder(finished: Path, folder: Path) -> None:
    theirs, encoder = their_vectors(finished)
    place = finished / "checkpoint"
    ours = SentenceEncoder.from_pretrained(place / "model.pt", place, device="cpu").encode(TEXTS)
    assert np.abs(theirs - ours).max() < 1e-6
    before, start = their_vectors(folder / "tiny")
    assert [type(module) for module in encoder] == [type(module) for module in start]
    assert encoder.max_seq_length == start.max_seq_length == 20
    assert (encoder.prompts, encoder.similarity_fn_name) == (start.prompts, start.similarity_fn_name)
    assert np.abs(theirs - before).max() > 1e-3  # it was trained


def test_the_report_says_what_retrieval_says(finished: Path, folder: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    assert (report["exported"], report["share"], report["shares"]) == (1, 1, [])
    output = (folder / "output.txt").read_text()
    assert report["counts"]["dev"] < 10 and "auto did not compare recipes: fewer than 10 queries choose" in output
    assert report["recipe"] == "titles"
    rows = report["reports"]["retrieval"]["rows"]
    assert [row["label"] for row in rows] == ["TF-IDF", "BM25", "untouched", "refined"]
    ranks = [np.array(row["details"]["ranks"]) for row in rows[-2:]]
    means = [100 * np.where((r >= 1) & (r <= 10), 1 / np.maximum(r, 1), 0).mean() for r in ranks]
    assert means == pytest.approx([row["scores"]["MRR@10"] for row in rows[-2:]])
    assert report["change"]["MRR@10"] == pytest.approx(means[1] - means[0])
    before, after = (row["scores"]["STS-B"] for row in report["reports"]["sts"]["rows"])
    assert report["sts_change"] == pytest.approx(after - before)
    assert report["change"]["low"] <= report["change"]["MRR@10"] <= report["change"]["high"]
    text = (finished / "report.md").read_text()
    assert f"{rows[-1]['scores']['MRR@10']:.2f}" in text
    assert report["verdict"] in text
    assert "is a stand-in" in report["caveat"] and "--pairs" in report["caveat"]
    assert report["drift"] < 0.999 and f"a mean cosine of {report['drift']:.3f}" in text
    assert report["caveat"] in text
    assert report["prompts"] == {"query": "bada kefe: "} and "`{'query': 'bada kefe: '}`" in text
    assert "--prompts query, " in text  # passages have none in this folder
    assert "fairseq-train " in text
    assert (finished / "report.png").stat().st_size > 10_000


def test_a_merge_of_a_half_unless_another_is_clearly_better() -> None:
    rng = np.random.default_rng(1)
    half = rng.random(200)

    def chosen(others: dict[float, Any]) -> float:
        return choose_share({0.0: half - 0.5, 0.5: half, **others})

    noise = rng.standard_normal(200)
    noise -= noise.mean()
    error = noise.std(ddof=1) / 200**0.5
    for gain, share in ((1.9, 0.5), (2.1, 1.0)):  # in standard errors
        assert chosen({1.0: half + noise + gain * error}) == share
    assert chosen({0.25: half + 1, 1.0: half + 2}) == 1.0
    assert chosen({0.0: half + 1}) == 0.0  # the untouched encoder
    assert choose_share({0.0: half, 0.5: half}) == 0.5
    assert choose_share({0.0: half[:10] + 1, 0.5: half[:10]}) == 0.0
    assert choose_share({0.0: half[:9] + 1, 0.5: half[:9]}) == 0.5  # too few queries to tell
    assert reciprocal_ranks({"details": {"ranks": [1, 10, 11, 0]}}).tolist() == [100, 10, 0, 0]


def made_report(**fields: Any) -> Any:
    """A report of 40 queries that refine did not write."""
    report = RefineReport.__new__(RefineReport)
    reports = {"retrieval": {"protocol": {"queries": 40, "passages": 90}}}
    vars(report).update(reports=reports, settings=SimpleNamespace(seed=1, keep_best=True), **fields)
    return report


@pytest.mark.parametrize(
    ("ranks", "exported"),
    [([2, 2, *[1] * 38], 0.5), ([*[2] * 8, *[1] * 31, 2], 0.0), ([*[1] * 39, 2], 0.5)],  # noise; worse; as before
)
def test_the_untouched_encoder_is_exported_if_it_is_better(ranks, exported) -> None:
    rows = [{"details": {"ranks": one}, "scores": {"MRR@10": 97.4}} for one in ([*[1] * 39, 2], ranks)]
    for asks_given_pairs in (False, True):
        report = made_report(share=0.5, shares=[{"share": 0, "score": 97.4}], question="question")
        report.reports["retrieval"]["rows"] = rows
        report.settings.asks_given_pairs = asks_given_pairs
        assert report.exported_share == exported
        assert "saturated" in report.caveat()
        assert ("stand-in" in report.caveat()) is not asks_given_pairs


@pytest.mark.parametrize(("score", "question"), [(94.9, QUESTION), (95.0, HARDER)])
def test_a_saturated_question_is_replaced(score: float, question: str, capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps(RefineSettings(texts=(), encoder=Path("start"), dest=Path("dest")), "cpu")
    found = {"rows": [{"scores": {"MRR@10": score}}]}
    steps.search = lambda name, data, split, checkpoints: {"dev": found}[split]  # type: ignore[method-assign]
    for pairs, asked in ((None, question), (Path("pairs.tsv"), QUESTION)):  # given pairs are not replaced
        steps.settings.pairs, steps.question = pairs, QUESTION
        _choose_question(steps, SimpleNamespace(dev=10), Path("data"), Path("start"))
        assert steps.question == asked
        assert ("a harder one is asked" in capsys.readouterr().out) == (asked == HARDER)


def test_auto_leaves_out_a_recipe_that_the_text_does_not_fit(tmp_path, capsys) -> None:
    steps = Steps(RefineSettings(texts=(), encoder=Path("start"), dest=tmp_path / "dest", recipe="auto"), "cpu")

    def train(name: str, training: Any) -> Path:
        if training.recipe in failing:
            raise UserError("no document has 4 sentences")
        return Path(name)

    def search(name: str, data: Path, split: str, checkpoints: dict[str, Path]) -> Any:
        return {"rows": [{"label": name, "scores": {"MRR@10": float(n)}} for n, name in enumerate(checkpoints)]}

    steps.train, steps.search = train, search  # type: ignore[method-assign, assignment]
    base = Training("", Path("start"), Path("data"), Path("training"), 40)
    counts = HeldOut(documents=100, long_documents=100, titled=0, dev=20, test=20)
    failing = {"neighbor", "simcse"}
    recipe, trials = _choose_recipe(steps, counts, base)
    assert (recipe, [trial["recipe"] for trial in trials]) == ("span", ["cloze", "span"])
    assert "# neighbor is left out: no document has 4 sentences" in capsys.readouterr().out
    failing = {"cloze", "neighbor", "span", "simcse"}
    with pytest.raises(UserError, match="4 sentences"):
        _choose_recipe(steps, counts, base)


def test_a_training_that_saves_nothing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairseq_clear.refining.refine_steps.train", lambda *_: [])
    settings = RefineSettings(texts=(), encoder=tmp_path, dest=tmp_path / "out", training_flags=("--no-save",))
    training = Training("cloze", tmp_path, tmp_path, tmp_path / "training", 4)
    with pytest.raises(UserError, match=r"wrote no .*checkpoint_last.pt; leave --save-dir, --no-save .* after --"):
        Steps(settings, "cpu").train("train", training)


@pytest.mark.parametrize(
    ("given", "kept"), [((), 1), (("--optimizer", "sgd"), 0), (("--optimizer=sgd",), 0), (("--clip-norm", "2"), 1)]
)
def test_another_optimizer_replaces_all_flags_of_adamw(given: tuple[str, ...], kept: int, tmp_path: Path) -> None:
    settings = RefineSettings(texts=(), encoder=tmp_path, dest=tmp_path / "out", training_flags=given)
    flags = training_flags(Training("cloze", tmp_path, tmp_path, tmp_path / "training", 4), settings, "cpu")
    optimizers = [flag for flag in flags if flag.partition("=")[0] == "--optimizer"]
    assert (len(optimizers), flags.count("clear_adamw"), flags.count("--decay-vectors")) == (1, kept, kept)


def test_a_printed_training_is_the_training(finished: Path, folder: Path) -> None:
    """The row of commands is no second code path: typed one by one, they give the same weights."""
    commands = [line for line in (folder / "output.txt").read_text().splitlines() if line.startswith("fairseq-")]
    names = [" ".join(command.split()[: 1 + command.startswith("fairseq-clear")]) for command in commands]
    rest = ["fairseq-train", *(f"fairseq-clear {name}" for name in ("retrieval", "sts", "export"))]
    before = ("import", "prepare", "prepare", "export", "retrieval")
    assert names == [*(f"fairseq-clear {name}" for name in before), *rest]
    assert not (folder / "finished.partial").exists()
    old, new = str(folder / "finished.partial"), str(folder / "typed")
    (folder / "typed").mkdir()
    for number, command in enumerate([*commands[:4], commands[5]]):
        words = command.replace(old, new).replace("'", "").split()
        if number == 2:  # what was held out is the only step that is not a command
            from fairseq_clear.refining.holding_out import hold_out

            hold_out(folder / "typed/text.txt", folder / "typed", 0.1, 1)
        start = CLEAR if words[0] == "fairseq-clear" else [sys.executable, "-m", "fairseq_cli.train"]
        run(*start, *words[1:])
    saved = next(p for p in (folder / "typed/training").glob("checkpoint_last.pt"))
    typed, ours = (torch.load(p, weights_only=False)["model"] for p in (saved, finished / "checkpoint/model.pt"))
    assert typed.keys() == ours.keys()
    assert all(torch.equal(typed[name], ours[name]) for name in typed)


def weights(dest: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(dest / "checkpoint/model.pt", weights_only=False)["model"]
    return found


# What is in the work folder when the process is killed, in the order of the stages.
KILLS: dict[str, Callable[[Path], bool]] = {
    "importing": lambda work: (work / "settings.json").exists(),
    "preparing": lambda work: (work / "text.txt").exists(),
    "exporting the untouched encoder": lambda work: (work / "data-bin").exists(),
    "starting the training": lambda work: (work / "training/train.log").exists(),
    "training": lambda work: any(work.glob("training/checkpoint_1_2.pt")),
    "comparing": lambda work: (work / "training.pt").exists(),
    "exporting": lambda work: (work / "compare-the-encoders.json").exists(),
}


def test_a_run_that_is_killed_in_every_stage_goes_on(folder: Path, finished: Path, tmp_path: Path) -> None:
    dest, work = tmp_path / "out", tmp_path / "out.partial"
    words = [folder / "text.txt", "--from", folder / "tiny", "--dest", dest, *SHORT, "--no-keep-best"]
    command = [*CLEAR, "refine", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    killed = 0
    for reached in KILLS.values():
        with open(tmp_path / "log", "w") as log:
            process = zygote.start(command, cwd=ROOT, env=environment, stdout=log.fileno(), stderr=log.fileno())
            while process.poll() is None and not reached(work):
                select.select([], [], [], 0.005)
            killed += process.poll() is None
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # refine alone: a training that it has started ends with it
            process.wait()
        assert not dest.exists(), (tmp_path / "log").read_text()
    assert killed == len(KILLS)
    done = run(*command)
    assert "# import the encoder: done already" in done.stdout and "# train: done already" in done.stdout
    ours, theirs = weights(dest), weights(finished)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not work.exists()


def test_a_checkpoint_of_another_vocabulary(folder: Path, finished: Path, tmp_path: Path) -> None:
    make_folder(tmp_path / "roberta", "roberta")
    run(*CLEAR, "import", tmp_path / "roberta", "--dest", tmp_path / "other")
    alone = shutil.copy(finished / "checkpoint/model.pt", tmp_path / "alone.pt")  # whose folder has no tokenizer
    for flags, said in (
        (("--data-bin", tmp_path / "other"), "vocabulary"),
        ((), "no tokenizer of raw text; give --data-bin"),
    ):
        done = call(folder, tmp_path / "out", "--from", alone, *flags, check=False)
        assert done.returncode == 2 and said in done.stderr.strip().splitlines()[-1]
        assert not (tmp_path / "out").exists()


def test_another_run_is_rejected(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A work folder belongs to one set of settings, texts and encoder; flags of the training are settings too."""
    text, tiny, work = tmp_path / "text.txt", tmp_path / "tiny", tmp_path / "out.partial"
    shutil.copy(folder / "text.txt", text)
    shutil.copytree(folder / "tiny", tiny)
    monkeypatch.setattr(sys, "executable", zygote.forked_python())
    places: dict[str, Any] = {"texts": (text,), "encoder": tiny, "dest": tmp_path / "out"}
    made = RefineSettings(**places, device="cpu", max_length=20, training_flags=("--no-flag",))
    with pytest.raises(UserError, match="--no-flag: no such flag of this command"):
        run_refine(made)
    done = {path.name for path in work.iterdir()}
    assert "data-bin" in done and not (tmp_path / "out").exists()
    for change, message in (
        ({"learning_rate": 1.0}, "--lr 5e-05"),
        ({"keep_best": False}, "without --no-keep-best"),
        ({"recipe": "cloze"}, "without --recipe"),
        (text, "another texts"),
        (next(tiny.glob("*.safetensors")), "another content of --from"),
        (tiny / "config.json", "another content of --from"),
    ):
        before = change.read_bytes() if isinstance(change, Path) else b""
        if isinstance(change, Path):
            change.write_bytes(before + b" ")
        with pytest.raises(UserError, match=f"out.partial: was started with {message}.*remove the folder"):
            run_refine(made if isinstance(change, Path) else replace(made, **change))
        if isinstance(change, Path):
            change.write_bytes(before)
    with pytest.raises(UserError, match="--other: no such flag"):  # nothing is trained yet
        run_refine(replace(made, training_flags=("--other",)))
    for trained in (work / "training/checkpoint_last.pt", work / "training.pt", work / "trials/titles.pt"):
        trained.parent.mkdir(exist_ok=True)
        trained.touch()
        with pytest.raises(UserError, match="out.partial: was started with other flags after --"):
            run_refine(made)
        trained.unlink()
    (work / "trials").rmdir()
    assert {path.name for path in work.iterdir()} == done


def test_an_error_before_the_training_leaves_no_folder(folder: Path, tmp_path: Path) -> None:
    """Else the settings that the message asks for would be another run's."""
    (tmp_path / "one.txt").write_text("bada kefe.\nligi moho.\n")
    made = RefineSettings(texts=(tmp_path / "one.txt",), encoder=folder / "tiny", dest=tmp_path / "out", device="cpu")
    with pytest.raises(UserError, match=r"one document of 2 sentences.*add --document-start \."):
        run_refine(made)
    assert not made.work.exists()
    made.work.mkdir()
    (made.work / "texts.jsonl").write_text("of a call that was killed before it wrote its settings")
    with pytest.raises(UserError, match=r"one document of 2 sentences"):
        run_refine(made)
    assert not made.work.exists()
    full = OSError(errno.ENOSPC, "No space left on device")

    def fill(steps: Any) -> None:
        (steps.work / "encoder").mkdir()
        raise UserError("the disk is full") from full

    with mock.patch.object(refining, "_refine", fill), pytest.raises(UserError, match="full"):
        run_refine(made)
    assert (made.work / "encoder").exists()  # the same command goes on
    made.dest = folder / "tiny/out"  # an interrupted run would change the weights below the encoder's folder
    with pytest.raises(UserError, match="out: is in .*tiny, whose files are read; give a folder outside it"):
        run_refine(made)


def test_auto_compares_recipes_on_a_modernbert_of_random_weights(tmp_path: Path) -> None:
    make(tmp_path / "tiny", "modernbert")
    (tmp_path / "long.txt").write_text("\n".join(sentences(350, seed=6)) + "\n")
    flags = "--recipe auto --held-out 0.5 --updates 2 --max-length 36 --device cpu".split()
    texts, tiny = tmp_path / "long.txt", tmp_path / "tiny"
    run(*CLEAR, "refine", texts, "--from", tiny, "--dest", tmp_path / "trial", *flags)
    report = json.loads((tmp_path / "trial/report.json").read_text())
    scores = {trial["recipe"]: trial["score"] for trial in report["trials"]}
    assert list(scores) == ["titles", "cloze", "neighbor", "span", "simcse"]
    assert scores[report["recipe"]] == max(scores.values())
    shares = {one["share"]: one["score"] for one in report["shares"]}
    assert list(shares) == [0, 0.25, 0.5, 0.75, 1] and shares[report["share"]] in (shares[0.5], max(shares.values()))
    assert report["exported"] in (0, report["share"])
    assert report["verdict"] in (tmp_path / "trial/report.md").read_text() and report["prompts"] == {}
    assert json.loads((tmp_path / "trial/config.json").read_text())["model_type"] == "modernbert"


def test_python_and_documents_of_one_sentence(folder, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "executable", zygote.forked_python())
    texts = [line for line in sentences(60, seed=7) if line]
    for path in (str(folder / "tiny"), ["a text", str(folder / "tiny")]):
        with pytest.raises(UserError, match=r"tiny: a str is the text of a document; give Path\("):
            refine(path, folder / "tiny", tmp_path / "out")
    with pytest.raises(UserError, match="--pairs gone.tsv: does not exist"):
        refine(texts, folder / "tiny", tmp_path / "out", pairs="gone.tsv", device="cpu")
    refined = refine(texts, folder / "tiny", tmp_path / "out", updates=3, max_length=36, device="cpu")
    assert refined.report["recipe"] == "simcse"
    assert refined.report["change"] is None
    said, _, held = refined.report["verdict"].partition(" The folder holds ")
    assert said.startswith("Not compared: there are too few queries.") and held.startswith(
        "a merge, 0.5 of the refined"
    )
    assert refined.report["exported"] == 0.5
    assert refined.report["caveat"] == ""
    before = capsys.readouterr().out.partition("# train\n")[0]  # said while there is still time
    assert before.count(f"# {said}\n") == 1
    assert refined.encoder.encode(texts[:2]).shape == (2, 24)


def test_a_worse_encoder_is_not_exported(folder: Path, tmp_path: Path) -> None:
    pairs = [f"{line}\t{line} {line}\n" for line in sentences(60, seed=9) if line]
    (tmp_path / "pairs.tsv").write_text("".join(pairs))
    done = call(folder, tmp_path / "out", "--pairs", tmp_path / "pairs.tsv", "--", "--lr", "3")
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["change"]["MRR@10"] < 0 and report["exported"] == 0
    assert "stand-in" not in report["caveat"] and "# Not compared" not in done.stdout
    assert "The folder holds the untouched encoder" in done.stdout
    run(*CLEAR, "import", folder / "tiny", "--dest", tmp_path / "imported", "--arch", "clear_hf")
    before = torch.load(tmp_path / "imported/model.pt", weights_only=False)["model"]
    assert all(torch.equal(before[name], value) for name, value in weights(tmp_path / "out").items())
    assert np.abs(their_vectors(tmp_path / "out")[0] - their_vectors(folder / "tiny")[0]).max() < 1e-6


# With a folder that holds the text, an export that holds it, a file of pairs, and an empty one.
MISTAKES = {
    "{texts} --from nowhere": "nowhere: no such folder",
    "{texts} --recipe clozes": "argument --recipe: invalid choice: 'clozes'",
    "{texts} --held-out 1.5": "--held-out 1.5: must be a share",
    "{texts} --pairs gone.tsv --held-out 0.2": "--held-out 0.2: has no effect",
    "{texts} --margin 0.2": "--margin 0.2: belongs to --negatives",
    "{texts} --pairs nowhere.tsv": "--pairs nowhere.tsv: does not exist",
    "{texts} --sts nowhere": "--sts nowhere: does not exist",
    "{texts} --sts {texts}": "has none of STS12",
    "{texts} --dest .": "--dest .: give the name of a folder",
    "{texts} --dest 10:30/out": "--dest 10:30/out: fairseq separates data folders by",
    "{texts} --dest {texts} --overwrite": "texts: has no fairseq_clear.json",
    "{export}/text.txt --dest {export} --overwrite": "export/text.txt: is in --dest ",
    "{texts} --from {export}/own.partial --dest {export} --overwrite": "own.partial: is in --dest ",
    "{texts} --dest {texts}/new/out": "new/out: is in ",
    "{texts} --seed 2147483648": "--seed 2147483648: must be",
    "{texts} --max-length 9999": "--max-length 9999: the encoder reads at most",
    "{texts} --dest {export}/own": "own.partial: is not a folder of refine",
    "{texts} --negatives 1": "--negatives 1: belongs to --train-pairs",
    "--train-pairs {pairs} --recipe cloze": "--recipe cloze: --train-pairs trains on pairs",
    "--train-pairs {pairs} --negatives -1": "--negatives -1: must be 0 or more",
    "{empty}": "holds no sentence",
}


@pytest.mark.parametrize("flags", MISTAKES)
def test_mistakes_are_one_line(flags, folder, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", zygote.forked_python())
    (tmp_path / "texts").mkdir()
    shutil.copy(folder / "text.txt", tmp_path / "texts")
    shutil.copytree(tmp_path / "texts", tmp_path / "export")
    (tmp_path / "export/fairseq_clear.json").touch()
    (tmp_path / "export/own.partial").mkdir()
    (tmp_path / "export/own.partial/notes.txt").write_text("kept")
    for name, content in (("pairs", "one\ttwo\n" * 50), ("empty.txt", "")):
        (tmp_path / name).write_text(content)
    places = {"texts": "texts", "export": "export", "pairs": "pairs", "empty": "empty.txt"}
    words = flags.format(**{name: tmp_path / place for name, place in places.items()}).split()
    start = ["refine", "--from", str(folder / "tiny"), "--dest", str(tmp_path / "out"), *SHORT]
    status, said = exit_code(lambda: main([*start, *words])), capsys.readouterr().err
    assert status == 2 and MISTAKES[flags] in said.splitlines()[-1] and "Traceback" not in said
    assert not (tmp_path / "out").exists() and not (tmp_path / "texts/new").exists()
    assert (tmp_path / "export/own.partial/notes.txt").read_text() == "kept"


def test_matplotlib_is_missing(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["refine", tmp_path / "text.txt", "--from", "nowhere", "--dest", tmp_path / "out"]
    rejected(capsys, words, "matplotlib cannot be imported")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("device", "is_told"), [("cuda", True), (None, True), ("cpu", False)])
def test_one_of_several_gpus(device, is_told, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU no. {index}")
    (tmp_path / "texts").mkdir()  # nothing in it, which is found before any training
    settings = {"texts": (tmp_path / "texts",), "encoder": tmp_path, "dest": tmp_path / "out"}
    with pytest.raises(UserError, match="there is no .txt or .jsonl file"):
        run_refine(RefineSettings(**settings, device=device))
    assert ("one of 4 GPUs is used: cuda:0 (GPU no. 0)" in capsys.readouterr().out) == is_told
    with pytest.raises(UserError, match=r"^--device cuda:2: .*CUDA_VISIBLE_DEVICES=2 and --device cuda$"):
        run_refine(RefineSettings(**settings, device="cuda:2"))


def test_two_processes_do_not_share_a_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    with locked(tmp_path / "out.partial/lock", "busy"):
        done = call(folder, tmp_path / "out", check=False)
    assert done.returncode == 2 and "another refine" in done.stderr


@pytest.mark.parametrize(
    ("change", "word"), [((1, 0.5, 2), "helped"), ((-1, -2, -0.5), "hurt"), ((0, -1, 1), "made no clear difference")]
)
def test_the_verdict_follows_the_interval(change: tuple[float, float, float], word: str) -> None:
    report = made_report(share=1.0, change={"MRR@10": change[0], "low": change[1], "high": change[2], "error": 9.0})
    assert report.verdict().startswith(f"Refining {word}: MRR@10 changed by {change[0]:+.2f}")
