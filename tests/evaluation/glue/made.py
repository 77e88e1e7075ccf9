"""Made-up files of GLUE, every task in its own format."""

import random
from pathlib import Path

from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS
from tests.conftest import WORDS

_MNLI = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
    "sentence1 sentence2"
)
_STS = "index genre filename year old_index source1 source2 sentence1 sentence2"
# columns by task and kind of split; _ stands for a blank
HEADERS = {
    ("CoLA", "train"): "source label mark sentence",
    ("CoLA", "test"): "index sentence",
    ("SST-2", "train"): "sentence label",
    ("SST-2", "test"): "index sentence",
    ("MRPC", "train"): "Quality #1_ID #2_ID #1_String #2_String",
    ("MRPC", "test"): "index #1_ID #2_ID #1_String #2_String",
    ("STS-B", "train"): f"{_STS} score",
    ("STS-B", "test"): _STS,
    ("QQP", "train"): "id qid1 qid2 question1 question2 is_duplicate",
    ("QQP", "test"): "id question1 question2",
    ("MNLI", "train"): f"{_MNLI} label1 gold_label",
    ("MNLI", "valid"): f"{_MNLI} label1 label2 label3 label4 label5 gold_label",
    ("MNLI", "test"): _MNLI,
    ("QNLI", "train"): "index question sentence label",
    ("QNLI", "test"): "index question sentence",
    ("RTE", "train"): "index sentence1 sentence2 label",
    ("RTE", "test"): "index sentence1 sentence2",
    ("WNLI", "train"): "index sentence1 sentence2 label",
    ("WNLI", "test"): "index sentence1 sentence2",
    ("AX", "test"): "index sentence1 sentence2",
}
ROWS = {"train": 24, "valid": 10, "valid1": 7, "test": 6, "test1": 5}


def header(task: str, split: str) -> list[str]:
    names = HEADERS.get((task, split.rstrip("1"))) or HEADERS[task, "train"]
    return [name.replace("_", " ") if task == "MRPC" else name for name in names.split()]


def labels(task: str, split: str, rows: int) -> list[str]:
    """What a made-up file has for labels: the classes in turn; for STS-B scores."""
    known = GLUE_TASKS[task].labels
    shift = len(split)
    if not known:
        return [f"{(1.7 * (number + shift)) % 5:.3f}" for number in range(rows)]
    return [known[(number + shift) % len(known)] for number in range(rows)]


def text(rng: random.Random, label: str, longest: int = 6) -> str:
    """Words that give the label away, so that there is something to learn."""
    marker = WORDS[sum(map(ord, label)) % 7]
    return " ".join([marker, *(rng.choice(WORDS) for _ in range(rng.randint(1, longest)))])


def write_glue(folder: Path, tasks: list[str] | None = None) -> Path:
    """The folder of GLUE as its zip files unpack; returned."""
    for name in tasks or list(GLUE_TASKS):
        task = GLUE_TASKS[name]
        home = folder / ("diagnostic" if name == "AX" else name)
        home.mkdir(parents=True)
        for split, file in task.splits.items():
            rng = random.Random(f"{name} {split}")
            rows = ROWS[split]
            names = header(name, split)
            lines = [] if split in task.headless else ["\t".join(names)]
            for number, label in enumerate(labels(name, split, rows)):
                cells = {column: str(number) for column in names}
                cells |= {column: text(rng, label) for column in task.texts}
                if not split.startswith("test"):
                    cells[task.label] = label
                lines.append("\t".join(cells[column] for column in names))
            (home / file).write_text("\n".join(lines) + "\n")
    return folder
