"""``fairseq-clear embed``: encodes the lines of a text file as vectors; ``flow``: fits BERT-flow to such vectors."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fairseq_clear.cli.flags import (
    Command,
    OneEncoderFlags,
    VectorFlags,
    choose_tokenizer,
    quiet_logs,
    read_text_sentences,
)
from fairseq_clear.errors import UserError, one_line
from fairseq_clear.files import check_output_file, hash_file, versions
from fairseq_clear.settings import setting
from fairseq_clear.text.data_folders import CLEAR_JSON, data_folders, read_clear_json

if TYPE_CHECKING:
    from fairseq_clear.evaluation.embedding_files import EmbedReport, Sentences, Shard, Writer
    from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder

POLL_SECONDS = 0.5


@dataclass(kw_only=True)
class Embed(Command, VectorFlags):
    """Encode each line of a text file with a trained encoder. The vectors are those before the projection head, in float32.

    Each line is one sentence. A blank line is embedded as an empty text, so row i of the output belongs to line i of the input.
    In .jsonl each line is a JSON object, whose text is the field --text-field. Memory does not grow with the file. If the
    command fails, no output is written.

    For several GPUs of one machine, give --devices. For several machines, embed one part per job with --shard, and join the
    parts with --join. On devices of one kind, the output has the same bytes as without parts.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear embed sentences.txt --checkpoint checkpoints/checkpoint_best.pt --data-bin data-bin --output out.npy
zcat big.gz | fairseq-clear embed - --checkpoint ck.pt --data-bin data-bin --output out.jsonl --normalize
echo 'A film.' | fairseq-clear embed - --checkpoint ck.pt --data-bin data-bin --pooling mean
fairseq-clear embed big.txt --checkpoint ck.pt --data-bin data-bin --output out.npy --devices 8
fairseq-clear embed big.txt --checkpoint ck.pt --data-bin data-bin --output out.npy --shard 1/16   # ... 16/16
fairseq-clear embed --join 16 --output out.npy"""

    input: str | None = setting(
        "UTF-8 text, or .jsonl, also .gz or .xz; - for text on standard input",
        None,
        metavar="INPUT",
        positional=True,
        nargs="?",
    )
    checkpoint: Path | None = setting(
        "checkpoint of clear_roberta, trained with any criterion, or of fairseq's roberta", None
    )
    data_bin: str | None = setting(
        "folder with the dict.txt (and the tokenizer) of the checkpoint", None, metavar="DIR"
    )
    text_field: str = setting("name of the field of a .jsonl record that holds its text", "text")
    output: Path | None = setting(
        '.npy: one (lines, dimension) float32 array; .jsonl: {"text": ..., "embedding": [...]} per line (default: JSON lines '
        "on standard output)",
        None,
    )
    overwrite: bool = setting("replace an existing output, or part", False)
    pooling: str | None = setting(
        "cls, mean, max, first-last, last2 or layer:N (default: the checkpoint's own; mean for fairseq's roberta)", None
    )
    normalize: bool = setting("scale vectors to length 1", False)
    batch_size: int = setting("texts per batch of the longest texts; batches of shorter texts have more", 32, least=1)
    devices: str | None = setting(
        "several devices of this machine, one process each: N for the first N GPUs, or names such as cuda:0,cuda:1 or cpu,cpu",
        None,
        metavar="DEVICES",
        group="parts",
        exclusive="parts",
    )
    shard: str | None = setting(
        "embed only part I of N contiguous parts, I from 1 to N, into OUTPUT.part-I-of-N.npy (or .jsonl) and .json. Parts are "
        "of equal size, up to 10,000 lines. A part that is finished already is not embedded again",
        None,
        metavar="I/N",
        group="parts",
        exclusive="parts",
    )
    join: int | None = setting(
        "join the N finished parts into OUTPUT and remove them; fails if a part is missing, or was made from another input or "
        "checkpoint or with other settings. Takes no other flags than --output and --overwrite",
        None,
        least=1,
        group="parts",
        exclusive="parts",
    )

    def run(self) -> int:
        """Embed the input, or join its parts, and print one line of counts."""
        # fairseq takes seconds to import
        from fairseq_clear.evaluation.embedding_files import check_output, join_parts

        self.check_flags()
        if self.output is not None:
            check_output(self.output, self.overwrite)
        if self.join is not None and self.output is not None:
            report = join_parts(self.output, self.join, overwrite=self.overwrite)
            print(f"{report.summary()} of the slowest part; joined {self.join} parts; wrote {self.output}")
            return 0
        with input_file(str(self.input)) as path:
            try:
                self.embed(path)
            except UserError as error:
                shown = "standard input" if self.input == "-" else str(self.input)
                raise UserError(str(error).replace(str(path), shown)) from None
        return 0

    def check_flags(self) -> None:
        """Raise UserError if a required flag is missing or two flags exclude each other."""
        required = {"INPUT": self.input, "--checkpoint": self.checkpoint, "--data-bin": self.data_bin}
        if self.join is not None:
            given = [name for name, value in required.items() if value is not None]
            if given:
                raise UserError(f"--join {self.join}: reads only the parts; leave out {', '.join(given)}")
        elif missing := [name for name, value in required.items() if value is None]:
            raise UserError(
                f"{', '.join(missing)}: missing; give the text to embed, the checkpoint and its data folder"
            )
        if self.devices is not None and self.device is not None:
            raise UserError(f"--devices {self.devices}: names the devices; leave out --device")
        for name in ("devices", "shard", "join"):
            if getattr(self, name) is not None and self.output is None:
                raise UserError(f"--{name} {getattr(self, name)}: writes no standard output; add --output FILE.npy")

    def embed(self, path: Path) -> None:
        """Embed the lines of ``path``, or one part of them, and print one line of counts."""
        from tqdm import tqdm

        from fairseq_clear.evaluation.embedding_files import Shard, scan_sentences

        shard = Shard.parse(self.shard) if self.shard is not None else None
        devices = read_devices(self.devices) if self.devices is not None else []
        sentences = scan_sentences(path, self.text_field)
        total = sentences.count if shard is None else len(shard.lines(sentences.count))
        # disable=None hides the bar in a log file, where it would write a line for every batch
        with tqdm(total=total, unit="sentence", file=sys.stderr, disable=None) as bar:
            if devices:
                closing = self.embed_on(devices, path, sentences, bar.update)
            elif shard is not None and self.output is not None:
                closing = self.embed_part(path, sentences, self.output, shard, self.device, bar.update)
            else:
                closing = self.embed_whole(path, sentences, bar.update)
        print(closing, file=sys.stdout if self.output is not None else sys.stderr)

    def embed_whole(self, path: Path, sentences: "Sentences", on_batch: Callable[[int], object]) -> str:
        """Embed all lines in this process; return the line to print."""
        from fairseq_clear.evaluation.embedding_files import jsonl_writer, open_output

        encoder = self.load_encoder(self.device)
        opened = (
            open_output(self.output, sentences.count, encoder.dimension)
            if self.output is not None
            else nullcontext(jsonl_writer(sys.stdout))
        )
        with opened as write:
            report = self.embedder(encoder, path, on_batch)(write)
        closing = f"{report.summary()}; pooling {encoder.pooling}"
        return closing if self.output is None else f"{closing}; wrote {self.output}"

    def embed_part(
        self,
        path: Path,
        sentences: "Sentences",
        output: Path,
        shard: "Shard",
        device: str | None,
        on_batch: Callable[[int], object],
    ) -> str:
        """Embed the lines of one part of ``output`` in this process; return the line to print."""
        from fairseq_clear.evaluation.embedding_files import write_part

        encoder = self.load_encoder(device)
        lines, part = shard.lines(sentences.count), f"part {shard.number}/{shard.count}"
        source, embed = self.source(encoder, sentences), self.embedder(encoder, path, on_batch, lines)
        shape = (len(lines), encoder.dimension)
        report = write_part(output, shard, source, shape, embed, overwrite=self.overwrite)
        if report is None:
            return f"{part}: is finished already, {shard.path(output)}"
        return f"{part}: {report.summary()}; pooling {encoder.pooling}; wrote {shard.path(output)}"

    def embed_on(
        self, devices: list[str], path: Path, sentences: "Sentences", on_batch: Callable[[int], object]
    ) -> str:
        """Embed one part on each device, in a process each, and join the parts; return the line to print.

        The parts are written to a hidden folder next to the output, which is removed, also after a failure.

        Raises:
            UserError: a worker failed.
        """
        import multiprocessing

        from fairseq_clear.evaluation.embedding_files import BLOCK, Shard, join_parts
        from fairseq_clear.preparation.workers import worker_pool

        assert self.output is not None  # check_flags
        used = devices[: -(-sentences.count // BLOCK)]
        done = multiprocessing.get_context("spawn").Value("q", 0)  # a forked process cannot use CUDA
        remedy = "rerun with fewer --devices or a smaller --batch-size"
        hidden = tempfile.TemporaryDirectory(dir=self.output.parent, prefix=f".{self.output.name}.parts.")
        with hidden as folder:
            named, shown = Path(folder) / self.output.name, 0
            with worker_pool(len(used), _start_worker, (done, len(used)), method="spawn", remedy=remedy) as pool:
                embed = partial(_embed_part, self, path, sentences, named)
                waiting = {
                    pool.submit(embed, Shard(number, len(used)), device) for number, device in enumerate(used, 1)
                }
                while waiting:
                    ready, waiting = wait(waiting, POLL_SECONDS, FIRST_EXCEPTION)
                    on_batch(done.value - shown)
                    shown = done.value
                    for future in ready:
                        future.result()
            report = join_parts(self.output, len(used), overwrite=self.overwrite, parts_of=named)
        return f"{report.summary()}; on {', '.join(used)}; wrote {self.output}"

    def load_encoder(self, device: str | None) -> "SentenceEncoder":
        """Load the checkpoint."""
        from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder

        assert self.checkpoint is not None and self.data_bin is not None  # check_flags
        tokenizer = choose_tokenizer(self.tokenizer, data_folders(self.data_bin)[0])
        return SentenceEncoder.from_pretrained(
            self.checkpoint, self.data_bin, tokenizer=tokenizer,
            pooling=self.pooling, dimension=self.dimension, flow=self.flow, device=device,
        )  # fmt: skip

    def embedder(
        self, encoder: "SentenceEncoder", path: Path, on_batch: Callable[[int], object], lines: range | None = None
    ) -> "Callable[[Writer], EmbedReport]":
        """A function that embeds lines of ``path`` (default: all), as the flags say, and passes the vectors to a writer."""
        from fairseq_clear.evaluation.embedding_files import embed_lines

        return partial(
            embed_lines, encoder, path, lines=lines, batch_size=self.batch_size,
            normalize=self.normalize, text_field=self.text_field, on_batch=on_batch,
        )  # fmt: skip

    def source(self, encoder: "SentenceEncoder", sentences: "Sentences") -> dict[str, Any]:
        """What determines the vectors: the text of the input, the files of the encoder, and the settings."""
        from fairseq_clear.evaluation.embedding_files import BLOCK

        assert self.checkpoint is not None and self.data_bin is not None  # check_flags
        return {
            "input": asdict(sentences),
            "checkpoint": hash_file(self.checkpoint),
            "vocabulary": encoder.describe().get("vocabulary_hash"),
            "tokenizer": _hash_tokenizer(self.tokenizer, data_folders(self.data_bin)[0]),
            "pooling": encoder.pooling,
            "dimension": encoder.dimension,
            "normalize": self.normalize,
            "batch size": self.batch_size,
            "block": BLOCK,
            **({"flow": hash_file(self.flow)} if self.flow is not None else {}),
        }


def _hash_tokenizer(name: str | None, folder: Path) -> dict[str, str]:
    """Names and SHA-256 of the files of the tokenizer that ``choose_tokenizer`` chooses."""
    if name == "whitespace":
        return {name: ""}
    if name is not None:
        paths = [Path(part) for part in (name.split(",") if name.count(",") == 1 else [name])]
    else:
        files = read_clear_json(folder).get("tokenizer", {}).get("files", [])
        paths = [folder / CLEAR_JSON, *(folder / file for file in files)]
    return {path.name: hash_file(path) for path in paths}


@contextmanager
def input_file(name: str) -> Iterator[Path]:
    """Yield the input as a file that can be read twice: once to count and check its lines, once to embed them."""
    path = Path(name)
    if name != "-" and (path.is_file() or path.is_dir() or not path.exists()):
        yield path
        return
    opened = nullcontext(sys.stdin.buffer) if name == "-" else path.open("rb")  # a pipe, such as <(zcat big.gz)
    with tempfile.NamedTemporaryFile(prefix="fairseq-clear-", suffix=".txt") as spooled:
        with opened as stream:
            shutil.copyfileobj(stream, spooled)
        spooled.flush()
        yield Path(spooled.name)


def read_devices(text: str) -> list[str]:
    """Read ``--devices``: N for the first N CUDA devices, or names with commas; UserError if a device does not exist."""
    from fairseq_clear.evaluation.sentence_encoder import choose_device

    names = [f"cuda:{index}" for index in range(int(text))] if text.isdecimal() else text.split(",")
    if not names:
        raise UserError(f"--devices {text}: give the number of CUDA devices, or names such as cuda:0,cuda:1 or cpu,cpu")
    for name in names:
        try:
            choose_device(name)
        except UserError as error:
            raise UserError(f"--devices {text}: {error}") from None
    return names


_done: Any  # in a worker process: number of texts done by all workers


def _start_worker(done: Any, workers: int) -> None:
    global _done
    import torch

    _done = done
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))


def _embed_part(command: Embed, path: Path, sentences: "Sentences", output: Path, shard: "Shard", device: str) -> None:
    """Embed a part in a worker process."""

    def add(texts: int) -> None:
        with _done.get_lock():
            _done.value += texts

    try:
        with quiet_logs():
            command.embed_part(path, sentences, output, shard, device, add)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"--devices: the worker of {device} failed ({one_line(error)}); nothing was written") from None


@dataclass(kw_only=True)
class FitFlow(Command, OneEncoderFlags):
    """Fit a flow that maps the vectors of an encoder to a standard normal distribution (BERT-flow, Li et al. 2020).

    Each line of the text is one sentence; no labels are needed. The encoder is not changed. The flow is only valid for this
    encoder and pooling. Apply it with --flow of embed, sts and the other evaluations.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear flow sentences.txt --encoder checkpoint_best.pt --data-bin data-bin --pooling cls --output flow.npz
fairseq-clear sts --data SentEval/data --encoder checkpoint_best.pt --data-bin data-bin --pooling cls --flow flow.npz
fairseq-clear embed new.txt --checkpoint checkpoint_best.pt --data-bin data-bin --pooling cls --flow flow.npz --output o.npy"""

    text: Path = setting("UTF-8 text, one sentence per line", metavar="TEXT", positional=True)
    output: Path = setting("file to write", metavar="FILE.npz")
    overwrite: bool = setting("replace FILE.npz", False)
    steps: int = setting("number of flow steps; each is ActNorm, permutation, coupling", 9, least=1, group="flow")
    width: int = setting("width of the hidden layers of the couplings", 32, least=1, group="flow")
    epochs: int = setting("passes over the text", 1, least=1, group="flow")
    learning_rate: float = setting("learning rate of Adam", 1e-3, above=0, flag="--lr", group="flow")
    seed: int = setting(
        "seed of the permutations, the weights and the order of the sentences", 1, least=0, group="flow"
    )

    def run(self) -> int:
        """Encode the text, fit the flow, write it, and print one line."""
        from tqdm import tqdm

        from fairseq_clear.evaluation.postprocessing import fit_flow, save_flow  # takes seconds to import

        if self.output.suffix != ".npz":
            raise UserError(f"--output {self.output}: unknown suffix; give a name that ends in .npz")
        check_output_file(self.output, self.overwrite)
        sentences = read_text_sentences(self.text)
        cached = self.load()
        vectors = cached.encode(sentences)
        with tqdm(total=self.epochs * len(sentences), desc="flow", file=sys.stderr, disable=None, leave=False) as bar:
            flow = fit_flow(
                vectors, steps=self.steps, width=self.width, epochs=self.epochs, learning_rate=self.learning_rate,
                seed=self.seed, on_batch=bar.update,
            )  # fmt: skip
        text = {"file": str(self.text), "sha256": hash_file(self.text), "sentences": len(sentences)}
        settings = {"epochs": self.epochs, "lr": self.learning_rate, "seed": self.seed}
        origin = {"encoder": cached.describe(), "text": text, "settings": settings, "versions": versions()}
        save_flow(self.output, flow, origin)
        print(
            f"{cached.name}: {len(sentences):,} sentences, dimension {flow.dimension}, {self.steps} steps; wrote {self.output}"
        )
        return 0
