"""``fairseq-clear embed`` encodes the lines of a text file as vectors."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fairseq_clear.cli.flags import Command, VectorFlags, choose_tokenizer, hash_tokenizer
from fairseq_clear.errors import UserError
from fairseq_clear.files import CorpusFile, check_fields, hash_file, write_errors, write_whole
from fairseq_clear.output_folder import scratch_folder
from fairseq_clear.settings import setting
from fairseq_clear.shared_work import Workers, join_workers
from fairseq_clear.text.data_folders import data_folders

if TYPE_CHECKING:
    from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder


@dataclass(kw_only=True)
class Embed(Command, VectorFlags):
    """Encode each line of a text file with a trained encoder, without the projection head.

    Each line is one sentence. A blank line is embedded as an empty text, so row i of the output belongs to line i of the input.
    In a .jsonl file, the field --text-field of each record holds the text; blank lines are skipped. Memory use does not grow
    with the file.

    To write an .npy file with several GPUs or machines, start the command with torchrun, or with srun and
    scripts/slurm/launch.sh. Each of n workers encodes every n-th block of 10,000 texts. The folder OUTPUT.partial keeps
    finished blocks until the file is complete. If the command is stopped, rerun it to resume.
    """

    SHARES_WORK: ClassVar[bool] = True
    EXAMPLES: ClassVar[str] = """
fairseq-clear embed sentences.txt --checkpoint checkpoints/checkpoint_best.pt --data-bin data-bin --output out.npy
zcat big.gz | fairseq-clear embed - --checkpoint ck.pt --data-bin data-bin --output out.jsonl --normalize
echo 'A film.' | fairseq-clear embed - --checkpoint ck.pt --data-bin data-bin --pooling mean
torchrun --nproc-per-node 8 -m fairseq_clear.cli embed big.txt --checkpoint ck.pt --data-bin data-bin --output out.npy"""

    input: str = setting(
        "UTF-8 text, or .jsonl, also .gz or .xz; - for text on standard input", metavar="INPUT", positional=True
    )
    checkpoint: Path = setting(
        "checkpoint of clear_roberta or clear_hf, trained with any criterion, or of fairseq's roberta"
    )
    data_bin: str = setting("folder with the dict.txt (and the tokenizer) of the checkpoint", metavar="DIR")
    text_field: str = setting("name of the field of a .jsonl record that holds its text", "text")
    output: Path | None = setting(
        '.npy: one (lines, dimension) array; .jsonl: {"text": ..., "embedding": [...]} per line (default: JSON lines '
        "on standard output)",
        None,
    )
    overwrite: bool = setting("replace an existing output, or finished blocks made with other settings", False)
    pooling: str | None = setting(
        "cls, mean, max, first-last, last2, wk (SBERT-WK) or layer:N (default: the checkpoint's own; mean for fairseq's "
        "roberta)",
        None,
    )
    normalize: bool = setting("scale vectors to length 1", False)
    prompt_name: str | None = setting(
        "name of a prompt of the sentence-transformers folder that was imported, such as query, which is put before each text",
        None,
        exclusive="prompt",
    )
    prompt: str | None = setting(
        "text to put before each text (default: the folder's default prompt, if it has one)", None, exclusive="prompt"
    )
    batch_size: int = setting("texts per batch for the longest texts; batches of shorter texts are larger", 32, least=1)

    def run(self) -> int:
        """Embed the input and print one line of counts."""
        from fairseq_clear.evaluation.embedding_files import check_output  # fairseq takes seconds to import

        workers = join_workers()
        if self.output is not None:
            check_output(self.output, self.overwrite)
        is_array = self.output is not None and self.output.suffix == ".npy"
        if workers.size > 1 and not (is_array and self.input != "-"):
            raise UserError("several workers need an input file and --output FILE.npy; otherwise start one process")
        with input_file(self.input) as path:
            self.embed(path, workers, is_array=is_array)
        return 0

    def embed(self, path: Path, workers: Workers, *, is_array: bool) -> None:
        """Embed the lines of ``path`` and print one line of counts."""
        from tqdm import tqdm

        from fairseq_clear.evaluation.embedding_files import scan_sentences, write_array, write_jsonl
        from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder

        check_fields([CorpusFile(path)], {"--text-field": self.text_field})
        sentences = scan_sentences(path, self.text_field)
        encoder = SentenceEncoder.from_pretrained(
            self.checkpoint, self.data_bin, tokenizer=choose_tokenizer(self.tokenizer, data_folders(self.data_bin)[0]),
            pooling=self.pooling, dimension=self.dimension, flow=self.flow, device=self.device,
        )  # fmt: skip
        prompt = encoder.find_prompt(self.prompt_name, self.prompt)
        hidden = True if workers.rank else None  # None: tqdm hides the bar if stderr is not a terminal
        with tqdm(total=-(-sentences.count // workers.size), unit="sentence", file=sys.stderr, disable=hidden) as bar:

            def encode(texts: list[str]) -> Any:
                vectors = encoder.encode_block(
                    texts, self.batch_size, normalize=self.normalize, on_batch=bar.update, prompt=prompt
                )
                return vectors, encoder.last

            if is_array and self.output is not None:
                counts = write_array(
                    self.output, sentences, encode, encoder.dimension, self.settings(encoder),
                    workers=workers, overwrite=self.overwrite,
                )  # fmt: skip
            else:
                opened = nullcontext(sys.stdout.buffer) if self.output is None else write_whole(self.output)
                place = ("standard output", "") if self.output is None else (self.output, "--output")
                with write_errors(*place), opened as stream:
                    counts = write_jsonl(stream, sentences, encode)
                    stream.flush()  # so that a full disk is found here
        shown = f", prompt {prompt!r}" if prompt else ""
        where = f"; wrote {self.output}" if self.output is not None else ""
        print(
            f"{counts.sentences:,} sentences, dimension {encoder.dimension}; {counts.truncated:,} cut at the model's length; "
            f"{counts.unknown_share:.2%} unknown tokens; {counts.padding_share:.1%} padding; "
            f"pooling {encoder.pooling}{shown}{where}",
            file=sys.stdout if where else sys.stderr,
        )

    def settings(self, encoder: "SentenceEncoder") -> dict[str, Any]:
        """Return everything that determines the vectors of a text: hashes of the encoder's files, and the settings."""
        return {
            "checkpoint": hash_file(self.checkpoint),
            "vocabulary": encoder.describe().get("vocabulary_hash"),
            "tokenizer": hash_tokenizer(self.tokenizer, data_folders(self.data_bin)[0]),
            "pooling": encoder.pooling,
            "normalize": self.normalize,
            "batch size": self.batch_size,
            "flow": self.flow and hash_file(self.flow),
            "prompt": encoder.find_prompt(self.prompt_name, self.prompt),
        }


@contextmanager
def input_file(name: str) -> Iterator[Path]:
    """Yield the input as a file that can be read twice: once to count and check its lines, once to embed them."""
    if name != "-":
        if Path(name).is_fifo():
            raise UserError(
                f"{name}: is a pipe, which can be read only once; give it as standard input: COMMAND | ... embed -"
            )
        yield Path(name)
        return
    if sys.stdin is None:
        raise UserError("-: standard input is closed; give text to it, or name a file")
    with scratch_folder() as folder:
        copied = folder / "standard-input.txt"
        with write_errors(copied, ""), copied.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield copied
