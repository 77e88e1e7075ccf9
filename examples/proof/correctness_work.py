"""What correctness.py measures, each in a process of its own: ``correctness_work.py JSON``."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT), str(ROOT / "scripts" / "bench")]

TEMPERATURE, WIDTH, QUEUE = 0.05, 128, 256
TEXTS, PADDING = 64, 1
BATCH, UPDATES, SAVED, KILLED = 8, 24, 5, 15  # of the run that is interrupted
COPY = TEXTS  # the line that repeats line 0
Compute = Callable[[Tensor, Sequence[int]], Tensor]  # tokens of anchors and positives, rows of the texts -> loss
FLAGS = (
    *("--arch", "clear_roberta_tiny", "--pooling", "mean", "--projection-layers", "0", "--augment", "del-word"),
    *("--dropout", "0", "--attention-dropout", "0", "--activation-dropout", "0", "--mlm-weight", "0"),
    *("--temperature", str(TEMPERATURE), "--optimizer", "sgd", "--lr", "0.1"),
)
NT_XENT = "fairseq_clear, clear_nt_xent"
OURS = {
    NT_XENT: ("--criterion", "clear_nt_xent"),
    "fairseq_clear, clear_moco": ("--criterion", "clear_moco", "--queue-size", str(QUEUE), "--key-momentum", "0.9"),
}


class Encoder(nn.Module):
    """The encoder, as a module of sentence-transformers is called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Embed padded texts (R, L)."""
        tokens = features["input_ids"]
        _, extra = self.model(views=tokens, view_lengths=tokens.ne(PADDING).sum(dim=1).tolist())
        return {"sentence_embedding": extra["projections"]}


class Vectors(nn.Module):
    """Stands in for an encoder: the features are the vectors."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the vectors (R, D)."""
        return {"sentence_embedding": features["input_ids"]}


def their_loss(
    encoder: nn.Module, wrapped: nn.Module, tau: float, cached: bool = False, gather: bool = False
) -> Compute:
    """MultipleNegativesRankingLoss, whose model is replaced by the wrapped one, as sentence-transformers' trainer does."""
    from sentence_transformers.sentence_transformer import losses

    further = {"mini_batch_size": 8} if cached else {}
    kind: Any = losses.CachedMultipleNegativesRankingLoss if cached else losses.MultipleNegativesRankingLoss
    loss = kind(encoder, scale=1 / tau, gather_across_devices=gather, **further)
    loss.model = wrapped

    def compute(tokens: Tensor, rows: Sequence[int]) -> Tensor:
        sides = [{"input_ids": half, "attention_mask": half.ne(PADDING).long()} for half in tokens.chunk(2)]
        found: Tensor = loss(sides, None)
        return found

    return compute


def simcse_loss(encoder: nn.Module, wrapped: nn.Module, tau: float) -> Compute:
    """SimCSE's formula: gathered without gradient, this worker's slice put back, and cross entropy over all texts."""

    def with_others(mine: Tensor) -> Tensor:
        parts = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine.contiguous())
        parts[dist.get_rank()] = mine
        return torch.cat(parts)

    def compute(tokens: Tensor, rows: Sequence[int]) -> Tensor:
        one, two = wrapped({"input_ids": tokens})["sentence_embedding"].chunk(2)
        if dist.is_initialized():
            one, two = with_others(one), with_others(two)
        scores = F.cosine_similarity(one.unsqueeze(1), two.unsqueeze(0), dim=-1) / tau
        return F.cross_entropy(scores, torch.arange(len(scores)))

    return compute


def metric_loss(
    encoder: nn.Module, wrapped: nn.Module, tau: float, queue: bool = False, by_text: bool = False
) -> Compute:
    """NTXentLoss, in CrossBatchMemory or not, in DistributedLossWrapper; a label for each row, or for each text."""
    from pytorch_metric_learning.losses import CrossBatchMemory, NTXentLoss
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    loss: Any = CrossBatchMemory(NTXentLoss(tau), WIDTH, memory_size=QUEUE) if queue else NTXentLoss(tau)
    call = DistributedLossWrapper(loss) if dist.is_initialized() else loss

    def compute(tokens: Tensor, rows: Sequence[int]) -> Tensor:
        labels = torch.tensor([0 if by_text and row == COPY else row for row in rows]).repeat(2)
        found: Tensor = call(wrapped({"input_ids": tokens})["sentence_embedding"], labels)
        return found

    compute.loss = loss  # type: ignore[attr-defined]
    return compute


ST, PML = "sentence-transformers, ", "pytorch-metric-learning, "
THEIRS: dict[str, Callable[..., Compute]] = {
    f"{ST}MultipleNegativesRankingLoss": their_loss,
    f"{ST}MultipleNegativesRankingLoss, gather_across_devices": partial(their_loss, gather=True),
    f"{ST}CachedMultipleNegativesRankingLoss": partial(their_loss, cached=True),
    f"{ST}CachedMultipleNegativesRankingLoss, gather_across_devices": partial(their_loss, cached=True, gather=True),
    "SimCSE's formula": simcse_loss,
    f"{PML}NTXentLoss": metric_loss,
    f"{PML}CrossBatchMemory": partial(metric_loss, queue=True),
}
BY_TEXT: dict[str, Callable[..., Compute]] = {
    f"{PML}NTXentLoss, equal texts labelled alike": partial(metric_loss, by_text=True)
}
QUEUES = ("fairseq_clear, clear_moco", f"{PML}CrossBatchMemory")


# What is measured; ``rank`` is the worker's number


def updates(rank: int, system: str, data: str, several: Sequence[Any]) -> list[dict[str, Tensor]]:
    """``update`` for several lists of steps, in one process."""
    return [update(rank, system, data, steps) for steps in several]


def update(rank: int, system: str, data: str, steps: Sequence[Sequence[Sequence[int]]]) -> dict[str, Tensor]:
    """The gradient of the last of several updates, as the optimizer gets it, and the queue.

    Args:
        rank: of this worker.
        system: a name of OURS, THEIRS or BY_TEXT.
        data: the data folder.
        steps: the rows of the texts of each worker, for each update.
    """
    from steps import build

    ours = OURS.get(system)
    trainer, dataset = build(Path(data), *FLAGS, *(ours or OURS[NT_XENT]), workers=len(steps[0]) if ours else 1)
    model: Any = trainer.get_model()
    if not ours:
        encoder = nn.Sequential(Encoder(model))
        wrapped = nn.parallel.DistributedDataParallel(encoder) if dist.is_initialized() else encoder
        compute: Any = (THEIRS | BY_TEXT)[system](encoder, wrapped, TEMPERATURE)
    for shares in steps:
        batch = dataset.collater([dataset[row] for row in shares[rank]])
        if ours:
            trainer.train_step([batch])
        else:
            model.train().zero_grad()
            compute(batch["views"]["tokens"], shares[rank]).backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    found = {"gradient": torch.cat(gradients) if gradients else torch.zeros(1)}
    if model.key_queue is not None:
        found["queue"] = model.key_queue.keys[model.key_queue.is_written]
    elif system in QUEUES:
        memory = compute.loss
        found["queue"] = memory.embedding_memory[: memory.queue_idx]
    return found


def half(rank: int, system: str) -> list[dict[str, Any]]:
    """Loss and gradient of vectors in float16, of two lengths, and the distance of the gradient from that in float64."""
    from fairseq_clear.objectives import info_nce, nt_xent

    torch.manual_seed(1)
    count, tau = 32, 0.01
    centre = 3 * torch.randn(1, WIDTH)  # all vectors are in a cone, as those of an encoder
    texts = centre + torch.randn(count, WIDTH)
    sides = torch.cat([texts, texts + 2 * torch.randn(count, WIDTH)])
    queue = F.normalize(centre + 2 * torch.randn(QUEUE, WIDTH), dim=1)
    own = torch.arange(2 * count)

    def ours(vectors: Tensor) -> Tensor:
        if "moco" in system:
            return info_nce(vectors[:count], vectors[count:].detach(), queue, temperature=tau)[0] / count
        excluded = own.unsqueeze(1) == own
        return nt_xent(vectors, vectors, own.roll(count), temperature=tau, excluded=excluded)[0] / len(own)

    found = []
    for scale in (1, 100):
        gradients = []
        for dtype in (torch.float64, torch.float16):
            vectors = (scale * sides).half().to(dtype).requires_grad_()
            encoder = nn.Sequential(Vectors())
            loss = ours(vectors) if system in OURS else THEIRS[system](encoder, encoder, tau)(vectors, range(count))
            loss.backward()
            assert vectors.grad is not None
            gradients.append(vectors.grad.double())
        found.append({"length": float((scale * sides).norm(dim=1).mean()), "loss": bool(loss.isfinite())})
        found[-1] |= {"gradient": bool(gradients[1].isfinite().all()), "error": error(gradients[1], gradients[0])}
    return found


def record(folder: str, update: int, rows: Sequence[int], kill_before: int) -> None:
    """Note the texts of an update; at the update ``kill_before`` end this process instead, as kill -9 does."""
    if update == kill_before:
        os.kill(os.getpid(), signal.SIGKILL)
    with open(f"{folder}/texts.jsonl", "a", encoding="utf-8") as out:
        out.write(json.dumps([update, *rows]) + "\n")


def train_ours(rank: int, data: str, folder: str, kill_before: int) -> dict[str, Tensor]:
    """fairseq-train; it resumes if the folder has a checkpoint. Returns the weights."""
    from fairseq.trainer import Trainer
    from fairseq_cli.train import cli_main

    step = Trainer.train_step

    def recorded(self: Any, samples: Any, **further: Any) -> Any:
        rows = [int(row) for sample in samples for row in sample["id"]]
        record(folder, self.get_num_updates() + 1, rows, kill_before)
        return step(self, samples, **further)

    Trainer.train_step = recorded
    sys.argv = [
        *("fairseq-train", data, "--user-dir", str(ROOT / "fairseq_clear"), "--save-dir", folder, "--cpu", "--task"),
        *(
            "clear_lm",
            "--arch",
            "clear_roberta_tiny",
            "--criterion",
            "clear_nt_xent",
            "--augment",
            "del-word",
            "--pooling",
        ),
        *("mean", "--sample-break-mode", "eos", "--batch-size", str(BATCH), "--optimizer", "adam", "--lr", "1e-3"),
        *("--max-update", str(UPDATES), "--save-interval-updates", str(SAVED), "--num-workers", "0", "--seed", "1"),
        *("--disable-validation",),
    ]
    cli_main()
    weights: dict[str, Tensor] = torch.load(f"{folder}/checkpoint_last.pt", weights_only=False)["model"]
    return weights


def train_theirs(rank: int, data: str, folder: str, kill_before: int) -> dict[str, Tensor]:
    """SentenceTransformerTrainer on a small BERT; it resumes if the folder has a checkpoint. Returns the weights."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer import losses, modules
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    lines = Path(data).with_name("train.txt").read_text(encoding="utf-8").splitlines()
    words = ["[PAD]", "[UNK]", *(f"row{row}" for row in range(len(lines)))]
    words += sorted({word for line in lines for word in line.split()})
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    start = Path(folder) / "start"
    torch.manual_seed(1)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(start)
    size: Any = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    BertModel(BertConfig(vocab_size=len(words), **size)).save_pretrained(start)
    model: Any = SentenceTransformer(modules=[modules.Transformer(str(start)), modules.Pooling(WIDTH)], device="cpu")

    class Recorded(losses.MultipleNegativesRankingLoss):
        """The loss, which sees the texts: the first word of each is its row."""

        def forward(self, features: Any, labels: Any) -> Tensor:
            rows = [int(number) - 2 for number in features[0]["input_ids"][:, 0]]
            record(folder, trainer.state.global_step + 1, rows, kill_before)
            return super().forward(features, labels)

    texts = [f"row{row} {line}" for row, line in enumerate(lines)]
    arguments = Arguments(
        folder, max_steps=UPDATES, save_steps=SAVED, per_device_train_batch_size=BATCH, seed=1, learning_rate=1e-3,
        use_cpu=True, report_to="none", disable_tqdm=True, dataloader_num_workers=0,
    )  # fmt: skip
    pairs = Dataset.from_dict({"anchor": texts, "positive": texts})
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=pairs, loss=Recorded(model))
    trainer.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")))
    weights: dict[str, Tensor] = model.state_dict()
    return weights


def sampler(rank: int, data: str) -> dict[str, int]:
    """How often NoDuplicatesBatchSampler puts two equal texts into a batch, and into an update of two workers."""
    from accelerate.data_loader import BatchSamplerShard
    from datasets import Dataset
    from sentence_transformers.base.sampler import NoDuplicatesBatchSampler

    lines = Path(data).with_name("train.txt").read_text(encoding="utf-8").splitlines()
    pairs = Dataset.from_dict({"anchor": lines, "positive": [f"{line} again" for line in lines]})
    epochs, in_batches, in_updates = 100, 0, 0
    one = NoDuplicatesBatchSampler(pairs, BATCH, drop_last=False, generator=torch.Generator(), seed=1)
    for epoch in range(epochs):
        one.set_epoch(epoch)
        in_batches += sum({0, COPY} <= set(batch) for batch in one)
        shards = [list(BatchSamplerShard(one, 2, worker)) for worker in range(2)]
        in_updates += sum({0, COPY} <= {*first, *second} for first, second in zip(*shards, strict=True))
    counts = {"batches with both copies": in_batches, "updates of two workers with both copies": in_updates}
    return {"epochs": epochs, "updates": epochs * len(shards[0]), **counts}


def error(found: Tensor, expected: Tensor) -> float:
    """Relative error: norm of the difference over norm."""
    return float((found - expected).norm() / expected.norm())


def make_data(folder: Path) -> str:
    """A data folder of TEXTS different sentences and a copy of the first."""
    rng = random.Random(1)
    lines = [" ".join(f"w{rng.randrange(200)}" for _ in range(rng.randint(5, 20))) for _ in range(TEXTS)]
    (folder / "train.txt").write_text("\n".join([*lines, lines[0]]) + "\n", encoding="utf-8")
    tool = "from fairseq_cli.preprocess import cli_main; cli_main()"
    command = [sys.executable, "-c", tool, "--only-source", "--trainpref", str(folder / "train.txt")]
    subprocess.run([*command, "--destdir", str(folder / "bin")], check=True, capture_output=True)
    return str(folder / "bin")


def work(rank: int, size: int, folder: str, function: str, arguments: Sequence[Any]) -> None:
    """A worker: call a function of this file and save what it returns."""
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    torch.save(globals()[function](rank, *arguments), f"{folder}/{rank}.pt")


def main() -> None:
    """Start the workers; the argument is the JSON of their number, the folder of their results, a function, its arguments."""
    size, folder, function, given = json.loads(sys.argv[1])
    if size == 1:
        return work(0, size, folder, function, given)
    import steps  # noqa: F401  (once, before the workers are forked)

    start_processes(work, (size, folder, function, given), nprocs=size, start_method="fork")
    return None


if __name__ == "__main__":
    main()
