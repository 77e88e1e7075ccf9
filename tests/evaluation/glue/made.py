"""Made-up files of GLUE, every task in its own format."""

import random
from pathlib import Path

from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS
from tests.conftest import WORDS

_MNLI = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
    "sentence1 sentence2"
)
# columns by task and split; _ stands for a blank in MRPC
HEADERS = {
    "CoLA": "source label mark sentence",
    "SST-2": "sentence label",
    "MRPC": "Quality #1_ID #2_ID #1_String #2_String",
    "STS-B": "index genre filename year old_index source1 source2 sentence1 sentence2 score",
    "QQP": "id qid1 qid2 question1 question2 is_duplicate",
    "MNLI": f"{_MNLI} label1 gold_label",
    "MNLI valid": f"{_MNLI} label1 label2 label3 label4 label5 gold_label",
    "MNLI valid1": f"{_MNLI} label1 label2 label3 label4 label5 gold_label",
    "QNLI": "index question sentence label",
    "RTE": "index sentence1 sentence2 label",
    "WNLI": "index sentence1 sentence2 label",
}
ROWS = {"train": 24, "valid": 10, "valid1": 7}


def labels(task: str, split: str) -> list[str]:
    """What a made-up file has for labels: the classes in turn; for STS-B scores."""
    known, numbers = GLUE_TASKS[task].labels, range(len(split), ROWS[split] + len(split))
    return [known[number % len(known)] if known else f"{(1.7 * number) % 5:.3f}" for number in numbers]


def text(rng: random.Random, label: str, longest: int = 6) -> str:
    """Words that give the label away, so that there is something to learn."""
    marker = WORDS[sum(map(ord, label)) % 7]
    return " ".join([marker, *(rng.choice(WORDS) for _ in range(rng.randint(1, longest)))])


def write_glue(folder: Path, tasks: list[str] | None = None) -> Path:
    """The folder of GLUE as its zip files unpack; returned."""
    for name in tasks or list(GLUE_TASKS):
        task = GLUE_TASKS[name]
        (folder / name).mkdir(parents=True)
        for split, file in task.splits.items():
            rng = random.Random(f"{name} {split}")
            header = HEADERS.get(f"{name} {split}", HEADERS[name]).split()
            names = [column.replace("_", " ") if name == "MRPC" else column for column in header]
            lines = [] if task.header else ["\t".join(names)]
            for number, label in enumerate(labels(name, split)):
                cells = dict.fromkeys(names, str(number)) | {column: text(rng, label) for column in task.columns}
                lines.append("\t".join({**cells, task.label: label}[column] for column in names))
            (folder / name / file).write_text("\n".join(lines) + "\n")
    return folder
