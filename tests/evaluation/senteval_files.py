"""A small SentEval folder of random sentences whose labels their words give away."""

import numpy as np

from fairseq_clear.evaluation.senteval_data import ENTAILMENT, PROBING_TASKS, SNLI, TREC
from fairseq_clear.evaluation.sts_data import STS_YEARS

SPLITS = ("train", "dev", "test")


class Texts:
    """Draws sentences; ``label`` moves the words that they are drawn from."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def __call__(self, label=0):
        words = [
            f"w{self.rng.integers(0, 30) if self.rng.random() < 0.6 else 30 + label}"
            for _ in range(self.rng.integers(2, 7))
        ]
        return " ".join(words)


def write_senteval(root, rows=18):
    """Every task but image-caption retrieval, in SentEval's layout."""
    text = Texts()
    down = root / "downstream"
    binary = {"MR": "rt-polarity.", "CR": "custrev.", "MPQA": "mpqa."}
    for task, stem in binary.items():
        write(down / task / f"{stem}pos", [text(1) for _ in range(rows)])
        write(down / task / f"{stem}neg", [text(0) for _ in range(rows)])
    write(down / "SUBJ" / "subj.objective", [text(1) for _ in range(rows)])
    write(down / "SUBJ" / "subj.subjective", [text(0) for _ in range(rows)])
    for split in SPLITS:
        write(down / "SST/binary" / f"sentiment-{split}", [f"{text(i % 2)}\t{i % 2}" for i in range(rows)])
        write(down / "SST/fine" / f"sentiment-{split}", [f"{i % 5} {text(i % 5)}" for i in range(rows)])
        write(down / "SNLI" / f"s1.{split}", [text(0) for _ in range(rows)])
        write(down / "SNLI" / f"s2.{split}", [text(i % 3) for i in range(rows)])
        write(down / "SNLI" / f"labels.{split}", [SNLI[i % 3] for i in range(rows)])
    for name in ("train_5500", "TREC_10"):
        lines = [f"{TREC[i % 6]}:fine caf\u00e9 {text(i % 6)}" for i in range(rows)]
        write(down / "TREC" / f"{name}.label", lines, "latin-1")
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for split in ("train", "test"):
        lines = [f"{i % 2}\t1\t2\t{text()}\t{text(i % 2)}" for i in range(rows)]
        write(down / "MRPC" / f"msr_paraphrase_{split}.txt", ["\ufeff" + header, *lines])
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    for name in ("train", "trial", "test_annotated"):
        lines = [f"{i}\t{text()}\t{text(i % 3)}\t{1 + i % 5}.5\t{ENTAILMENT[i % 3]}" for i in range(rows)]
        write(down / "SICK" / f"SICK_{name}.txt", [header, *lines])
    for split in SPLITS:
        lines = [f"g\tf\ty\t{i}\t{i % 6}\t{text()}\t{text(i % 6)}" for i in range(rows)]
        write(down / "STS" / "STSBenchmark" / f"sts-{split}.csv", lines)
    for name in STS_YEARS["STS12"]:
        write(down / "STS" / "STS12-en-test" / f"STS.input.{name}.txt", [f"{text()}\t{text()}" for _ in range(rows)])
        write(down / "STS" / "STS12-en-test" / f"STS.gs.{name}.txt", [str(i % 5) for i in range(rows)])
    for file in PROBING_TASKS.values():
        marks = ("tr", "va", "te")
        write(root / "probing" / file, [f"{mark}\tL{i % 3}\t{text(i % 3)}" for mark in marks for i in range(rows)])
    return root


def write(path, lines, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding=encoding)
