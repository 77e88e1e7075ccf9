r"""Equal seconds of training on the same cores and text, scored by queries that people judged: ours and sentence-transformers.

    python examples/proof/measure.py --encoder all-MiniLM-L6-v2 --data SCIFACT CRANFIELD --sts SentEval/data --output proof \
        --seeds 1 2 3

All rows start from the same encoder and read the documents of a collection in BEIR's layout for ``--seconds``: batches of 64
pairs of at most 128 tokens, temperature 0.05, Adam(W) with the peak rate 5e-5 (TSDAE: 3e-5 and CLS pooling, as its authors
advise), a tenth of the time to warm up, then linear to 0. Ours are the recipes of ``refine``, and its training on pairs:
titles with the text below and one hard negative, which the untouched encoder mines before the time begins. As fairseq's
schedule counts updates, shorter trainings are timed before that of the first seed, and a training that is 10 % too short or too
long is repeated; its updates and seconds are kept with its scores. The queries of the split ``test`` search all documents, cut
to 256 tokens: nDCG@10 and MRR@10, x100, also for the merge of a half with the untouched encoder; "low" and "high" bound the
difference of nDCG@10 from the untouched encoder, by a paired bootstrap over queries. STS tasks are scored too, BM25 and TF-IDF
are the rows without training, and ``OUTPUT/proof.png`` is a picture of the changes. A run that is in ``--results`` is not
repeated.

``--same-batches UPDATES`` measures nothing but the distance of the weights after so many updates on titles, if
sentence-transformers trains on the batches of our training, with its learning rates, and neither uses dropout: the norm of the
difference, divided by the norm of the change.

``--updates`` makes all trainings equally long in updates, ``--split dev`` scores other queries, and ``--start`` names another
encoder; their runs have tables of their own.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from matplotlib import style
from matplotlib.figure import Figure
from torch.nn.utils.rnn import pad_sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measuring import (
    Untrained,
    clear,
    import_encoder,
    interval,
    make_parser,
    means,
    measure,
    parse_with_results,
    values_of,
)
from result_tables import difference_table, scores_of, table

from fairseq_clear import SentenceEncoder
from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.evaluation.plots import STYLE, WIDTH, save_figure
from fairseq_clear.evaluation.retrieval import score_baseline
from fairseq_clear.evaluation.retrieval_data import read_beir
from fairseq_clear.evaluation.sts import evaluate_sts, read_sts_tasks
from fairseq_clear.evaluation.sts_data import StsData
from fairseq_clear.files import read_json, write_json
from fairseq_clear.interop.merging import merge_checkpoints, merge_folders
from fairseq_clear.refining.holding_out import read_documents
from fairseq_clear.refining.refine_settings import PAIRS, RefineSettings
from fairseq_clear.refining.refine_steps import Training, train, training_flags
from fairseq_clear.views.view_table import find_view_source

UNTOUCHED, MINED = "untouched", "titles, mined negatives"
BATCH, LENGTH, RATE, TEMPERATURE = 64, 128, 5e-5, 0.05
TIMED, GROWTH, TOLERANCE, TRIALS = 10, 8, 0.1, 6  # of the search for the number of updates
TRAINED = "trained.json"  # in the folder of a training: its updates and seconds
STS = ("STS12", "STS14", "STS-B", "SICK-R-trial")
RATES: dict[str, float] = {}  # seconds of an update, by the last training of a recipe; the next seed begins with it
Pairs = list[tuple[str, str]]
Scores = dict[str, float]


@dataclass(frozen=True)
class Limit:
    """The length of a training: a number of updates or, without one, seconds."""

    seconds: float
    updates: int | None

    def about(self) -> dict[str, Any]:
        """The one that counts."""
        return {"updates": self.updates} if self.updates else {"seconds": self.seconds}

    def share(self, began: float, updates: int) -> float:
        """The share of the training that is over."""
        return updates / self.updates if self.updates else (time.monotonic() - began) / self.seconds


@dataclass(frozen=True)
class Ours:
    """A recipe of refine."""

    recipe: str
    encoder: Path
    data: Path  # the prepared collection
    limit: Limit
    negatives: int = 0  # hard negatives of each pair
    once: bool = False

    def train(self, seed: int, folder: Path) -> Path:
        """Train; if seconds count, repeat it with more or fewer updates until it takes as long."""
        limit = self.limit.seconds
        updates = self.limit.updates or max(TIMED, round(limit / RATES.get(self.recipe, limit)))
        for _ in range(TRIALS):
            shutil.rmtree(folder, ignore_errors=True)  # a finished training would not run again
            run = self._run(seed, folder, updates)
            rate = (run[-1]["read_at"] - run[0]["read_at"]) / (run[-1]["num_updates"] - run[0]["num_updates"])
            seconds = rate * updates
            RATES[self.recipe] = rate
            if self.limit.updates or abs(seconds / limit - 1) <= TOLERANCE:
                write_json(folder / TRAINED, {"updates": updates, "seconds": seconds})
                return folder / "checkpoint_last.pt"
            # a short run says little about a long one, as the lengths of the texts differ
            updates = max(TIMED, round(min(limit, GROWTH * seconds) / rate))
        raise SystemExit(f"{folder}: takes another time at every trial; is the machine idle?")

    def _run(self, seed: int, folder: Path, updates: int) -> list[dict[str, Any]]:
        settings = RefineSettings(
            texts=(), encoder=self.encoder, dest=folder, seed=seed, max_length=LENGTH, batch_size=BATCH, learning_rate=RATE,
        )  # fmt: skip
        run = Training(self.recipe, self.encoder, self.data, folder, updates, validations=0, negatives=self.negatives)
        return [one for one in train(run, training_flags(run, settings, "cpu"), folder.name) if "num_updates" in one]

    def about(self) -> dict[str, Any]:
        """Recipe and length."""
        return {"recipe": self.recipe, **self.limit.about()}


@dataclass(frozen=True)
class Theirs:
    """A loss of sentence-transformers."""

    kind: str
    encoder: Path  # the Hugging Face folder
    documents: Sequence[Sequence[str]]
    limit: Limit
    once: bool = False

    def train(self, seed: int, folder: Path) -> Path:
        """Train; return a folder of sentence-transformers."""
        from sentence_transformers import SentenceTransformer, losses

        torch.manual_seed(seed)
        model: Any = SentenceTransformer(str(self.encoder), device="cpu")
        longest, model.max_seq_length = model.max_seq_length, LENGTH
        rate, loss = RATE, None
        if self.kind == "TSDAE":
            model[1].pooling_mode, rate = "cls", 3e-5
            loss = losses.DenoisingAutoEncoderLoss(model, tie_encoder_decoder=True)
        else:
            loss = losses.MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
        optimizer = torch.optim.AdamW(loss.parameters(), lr=rate, weight_decay=0.01)
        model.train()
        began, updates = time.monotonic(), 0
        for pairs in batches(MAKERS[self.kind], self.documents, random.Random(seed)):
            done = self.limit.share(began, updates)
            if done >= 1:
                break
            optimizer.param_groups[0]["lr"] = rate * min(10 * max(done, 1e-3), (1 - done) / 0.9)
            features = [model.preprocess(list(side)) for side in zip(*pairs, strict=True)]
            optimizer.zero_grad()
            loss(features, None).backward()
            torch.nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
            optimizer.step()
            updates += 1
        seconds = time.monotonic() - began
        model.max_seq_length = longest
        model.save(str(folder))
        write_json(folder / TRAINED, {"updates": updates, "seconds": seconds})
        return folder

    def about(self) -> dict[str, Any]:
        """Loss and length."""
        return {"loss": self.kind, **self.limit.about()}


@dataclass(frozen=True)
class Terms:
    """A baseline that compares the words of queries and documents."""

    kind: str  # bm25 or tfidf
    once: bool = True

    def train(self, seed: int, folder: Path) -> Path:
        """Nothing to train."""
        return Path()

    def about(self) -> dict[str, Any]:
        """The name of the baseline."""
        return {"baseline": self.kind}


def batches(make: Callable[..., Pairs], documents: Sequence[Sequence[str]], rng: random.Random) -> Iterator[Pairs]:
    """Endless batches of pairs of similar length without equal texts; each epoch makes and shuffles the pairs anew."""
    while True:
        pairs, made = make(documents, rng), []
        rng.shuffle(pairs)
        batch: dict[str, tuple[str, str]] = {}
        for pair in sorted(pairs, key=lambda pair: sum(map(len, pair))):
            batch.setdefault(pair[1], pair)
            if len(batch) == BATCH:
                made.append(list(batch.values()))
                batch = {}
        if not made:
            raise SystemExit(
                f"{len(documents)} documents make fewer than {BATCH} different pairs; give a larger collection"
            )
        rng.shuffle(made)
        yield from made


def title_pairs(documents: Sequence[Sequence[str]], rng: random.Random) -> Pairs:
    """The first sentence of a document and the rest."""
    return [(d[0], " ".join(d[1:])) for d in documents if len(d) > 1]


def cloze_pairs(documents: Sequence[Sequence[str]], rng: random.Random) -> Pairs:
    """Each sentence and the sentences around it, as --views cloze pairs them; some contexts keep the sentence."""
    kind, step = find_view_source("cloze")
    knobs = kind.read_knobs(step)
    found = []
    for document in (one for one in documents if len(one) > 1):
        for place, sentence in enumerate(document):
            before = document[max(0, place - int(knobs["before"])) : place]
            kept = [sentence] if rng.random() < float(knobs["keep"]) else []
            after = document[place + 1 : place + 1 + int(knobs["after"])]
            found.append((sentence, " ".join([*before, *kept, *after])))
    return found


def equal_pairs(documents: Sequence[Sequence[str]], rng: random.Random) -> Pairs:
    """Each sentence twice."""
    return [(sentence, sentence) for document in documents for sentence in document]


def damaged_pairs(documents: Sequence[Sequence[str]], rng: random.Random) -> Pairs:
    """Each sentence with 60 % of its words deleted, at least one left, and whole."""
    found = []
    for _, sentence in equal_pairs(documents, rng):
        words = sentence.split()
        kept = [word for word in words if rng.random() > 0.6] or [rng.choice(words)]
        found.append((" ".join(kept), sentence))
    return found


MAKERS = {"titles": title_pairs, "cloze pairs": cloze_pairs, "SimCSE": equal_pairs, "TSDAE": damaged_pairs}
RECIPES = ("titles", "cloze", "neighbor", "span", "simcse", "clear")
NAMES = {
    **{f"ours: {name}": name for name in (*RECIPES, MINED)},
    **{f"sentence-transformers: {kind}": kind for kind in MAKERS},
}


def main() -> None:
    """Prepare, train, score, print."""
    arguments = parse()
    encoder = import_encoder(arguments.encoder, arguments.output)
    if arguments.same_batches:
        for path in arguments.data:
            prepare_text(path, arguments.output / path.name, encoder)
            print(f"{path.name}: {distance_on_same_batches(arguments, arguments.output / path.name, encoder):.2g}")
        return
    measured: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for seeds in [arguments.seeds[: n + 1] for n in range(len(arguments.seeds))]:
        for path in arguments.data:
            measured[path.name] = measure_collection(arguments, path, seeds, encoder)
    for name, runs in measured.items():
        print(f"\n{name}\n\n{table(scores_of(runs))}\n\n{difference_table(scores_of(runs), UNTOUCHED)}")
    draw(measured, arguments.output / "proof.png")


def measure_collection(
    arguments: argparse.Namespace, path: Path, seeds: list[int], encoder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Train and score every row with every seed."""
    folder = arguments.output / path.name
    split = "" if arguments.split == "test" else arguments.split
    updates = f"{arguments.updates}-updates" if arguments.updates else ""
    table_name = "-".join(filter(None, (path.name, split, updates, arguments.start)))
    prepare_text(path, folder, encoder)
    documents, limit = list(read_documents(folder / "text.txt")), Limit(arguments.seconds, arguments.updates)
    rows: dict[str, Any] = {"BM25": Terms("bm25"), "TF-IDF": Terms("tfidf"), UNTOUCHED: Untrained(encoder / "model.pt")}
    for name in arguments.rows:
        if NAMES[name] == MINED:
            data = prepare_mined(folder, documents, encoder)
            rows[name] = Ours(PAIRS, encoder, data, limit, negatives=1)
        elif name.startswith("ours"):
            rows[name] = Ours(NAMES[name], encoder, folder / "data-bin", limit)
        else:
            rows[name] = Theirs(NAMES[name], arguments.encoder, documents, limit)
    # a query is no copy of the document with the same id, which retrieval would leave out
    judged = replace(read_beir(path, arguments.split), identical=())
    similarities = read_sts_tasks(arguments.sts, STS) if arguments.sts else []
    start = CachedEncoder.of(SentenceEncoder.from_pretrained(encoder / "model.pt", encoder))
    untouched = values_of(start, judged)

    def score(checkpoint: Path, row: Any, seed: int) -> Scores:
        if isinstance(row, Terms):
            found = score_baseline(row.kind, judged).scores
            return {name: found[name] for name in ("nDCG@10", "MRR@10")}
        if isinstance(row, Untrained):
            return means(untouched) | sts_of(start, similarities)
        merged = checkpoint.with_name(f"merged.{seed}{checkpoint.suffix}")
        if isinstance(row, Theirs):
            # without its modules, TSDAE's pooling, another one than the encoder's, does not matter
            plain = checkpoint.with_name("plain")
            shutil.copytree(checkpoint, plain, ignore=shutil.ignore_patterns("modules.json"), dirs_exist_ok=True)
            merge_folders(arguments.encoder, plain, merged, 0.5, overwrite=True)
            load: Callable[[Path], Any] = load_theirs
        else:
            merge_checkpoints(encoder / "model.pt", checkpoint, merged, 0.5)
            load = partial(SentenceEncoder.from_pretrained, data_bin=encoder)
        folder = checkpoint if isinstance(row, Theirs) else checkpoint.parent
        found = {name: float(value) for name, value in read_json(folder / TRAINED).items()}
        for end, one in (("", checkpoint), (", merged", merged)):
            scored = CachedEncoder.of(load(one))
            values = values_of(scored, judged)
            low, high = interval(values, untouched)
            all_scores = means(values) | sts_of(scored, similarities)
            found |= {f"{name}{end}": value for name, value in all_scores.items()}
            found |= {f"low{end}": low, f"high{end}": high}
        return found

    return measure(rows, seeds, arguments.output / "runs" / table_name, score, arguments.results, table_name)


def prepare_text(path: Path, folder: Path, encoder: Path) -> None:
    """Write the documents of a collection as text, and binarized."""
    text = folder / "text.txt"
    folder.mkdir(parents=True, exist_ok=True)
    if not text.exists():
        corpus = next(path.glob("corpus.jsonl*"))
        clear("prepare", corpus, "--dest", text, "--text-only", "--title-field", "title", "--split-sentences")
    if not (folder / "data-bin").exists():
        clear("prepare", text, "--dest", folder / "data-bin", "--tokenizer-dir", encoder)


def distance_on_same_batches(arguments: argparse.Namespace, folder: Path, encoder: Path) -> float:
    """Train on titles, then train the encoder with sentence-transformers on the same batches; return the distance."""
    from fairseq.trainer import Trainer
    from fairseq_cli.train import cli_main
    from sentence_transformers import SentenceTransformer, losses

    read, step = list[tuple[Any, float]](), Trainer.train_step

    def recorded(self: Any, samples: Any, **further: Any) -> Any:
        read.append((samples[0], self.get_lr()))
        return step(self, samples, **further)

    settings = RefineSettings(
        texts=(), encoder=encoder, dest=folder, seed=arguments.seeds[0], max_length=LENGTH, batch_size=BATCH,
        learning_rate=RATE, training_flags=("--dropout", "0", "--attention-dropout", "0", "--num-workers", "0"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        run = Training("titles", encoder, folder / "data-bin", Path(temporary), arguments.same_batches, validations=0)
        words = ["fairseq-train", *training_flags(run, settings, "cpu")]
        with patch.object(Trainer, "train_step", recorded), patch.object(sys, "argv", words):
            cli_main()
        ours = torch.load(Path(temporary) / "checkpoint_last.pt", weights_only=False)["model"]
    model: Any = SentenceTransformer(str(arguments.encoder), device="cpu")
    start = {name: value.clone() for name, value in model.state_dict().items()}
    loss = losses.MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    optimizer = torch.optim.AdamW(loss.parameters(), weight_decay=0.01)
    for batch, rate in read:
        rows = list(zip(batch["views"]["tokens"], batch["views"]["lengths"], strict=True))
        sides = []
        for side in (rows[: batch["nsentences"]], rows[batch["nsentences"] :]):
            ids = pad_sequence([ours["encoder.backbone.ids"][tokens[:length]] for tokens, length in side], True)
            mask = pad_sequence([torch.ones(int(length), dtype=torch.long) for _, length in side], True)
            sides.append({"input_ids": ids, "attention_mask": mask})
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss(sides, None).backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
        optimizer.step()
    apart = moved = 0.0
    for name, value in model.state_dict().items():
        own = ours.get(f"encoder.backbone.{name.removeprefix('0.')}")
        if own is not None and value.is_floating_point():
            apart += float((value - own).double().square().sum())
            moved += float((value - start[name]).double().square().sum())
    return float((apart / moved) ** 0.5)


def prepare_mined(folder: Path, documents: Sequence[Sequence[str]], encoder: Path) -> Path:
    """Write pairs of a title and the text below, mine a hard negative for each, and return the folder of the binarized rows."""
    data, pairs, mined = folder / "mined-bin", folder / "pairs.tsv", folder / "mined"
    if not data.exists():
        rows = title_pairs(documents, random.Random(0))
        pairs.write_text("".join(f"{title}\t{text}\n" for title, text in rows), encoding="utf-8")
        own = ("--encoder", encoder / "model.pt", "--data-bin", encoder)
        clear("mine", "--pairs", pairs, *own, "--margin", 0.05, "--dest", mined, "--overwrite")
        others = (f"query={mined}/query.txt", f"negative1={mined}/negative1.txt")
        lines = ("--document-start", ".", "--tokenizer-dir", encoder)
        clear("prepare", mined / "positive.txt", "--paraphrase", *others, *lines, "--dest", data)
    return data


def load_theirs(folder: Path) -> Any:
    """An encoder of sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def sts_of(encoder: CachedEncoder, similarities: Sequence[StsData]) -> Scores:
    """Spearman's correlation of each task, x100."""
    return {name: score.spearman for name, score in evaluate_sts(encoder, similarities).items()}


def draw(measured: dict[str, dict[str, list[dict[str, Any]]]], path: Path) -> None:
    """Draw the change in nDCG@10 of every training and of its merge, a panel for each collection; the lines are intervals."""
    drawn = {name for runs in measured.values() for name, (run, *_) in runs.items() if "low" in run["scores"]}
    names = [name for name in NAMES if name in drawn]  # of any collection
    with style.context((*STYLE, {"font.size": 6})):
        figure = Figure(figsize=(2 * WIDTH, 2.6))
        for axis, (collection, runs) in zip(
            np.atleast_1d(figure.subplots(1, len(measured), sharey=True)), measured.items(), strict=True
        ):
            scores = {name: [run["scores"] for run in found] for name, found in runs.items()}
            base = scores.pop(UNTOUCHED)[0]["nDCG@10"]
            scores = {name: found for name, found in scores.items() if "low" in found[0]}
            for offset, end, mark in ((-0.15, "", "o"), (0.15, ", merged", "s")):
                for name, found in scores.items():
                    place = names.index(name)
                    colour = "C0" if end else "C1"
                    low, high = (np.mean([one[f"{bound}{end}"] for one in found]) for bound in ("low", "high"))
                    axis.plot([low, high], [place + offset] * 2, color=colour, linewidth=0.8)
                    changes = [one[f"nDCG@10{end}"] - base for one in found]
                    label = f"trained{end}" if name == next(iter(scores)) else None
                    axis.plot(
                        changes,
                        [place + offset] * len(changes),
                        mark,
                        color=colour,
                        markersize=3,
                        linestyle="",
                        label=label,
                    )
            axis.axvline(0, color="grey", linewidth=0.6)
            axis.set(title=collection, xlabel="nDCG@10 minus untouched", yticks=range(len(names)), yticklabels=names)
        axis.invert_yaxis()
        axis.legend(loc="best", frameon=True)
    save_figure(figure, path)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--encoder", type=Path, required=True, help="sentence-transformers folder")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="folders in BEIR's layout")
    parser.add_argument("--sts", type=Path, help="folder of STS12, STS14, STS-B and SICK (default: not scored)")
    parser.add_argument("--rows", nargs="+", default=list(NAMES), choices=list(NAMES), help="default: all")
    parser.add_argument("--seconds", type=float, default=180, help="of each training")
    parser.add_argument("--updates", type=int, help="of each training, in place of --seconds")
    parser.add_argument("--same-batches", type=int, metavar="UPDATES", help="compare weights after these updates")
    parser.add_argument("--start", default="", help="names the tables, unless --encoder is MiniLM")
    parser.add_argument("--split", default="test", choices=("test", "dev"), help="queries to score")
    return parse_with_results(parser)


if __name__ == "__main__":
    main()
