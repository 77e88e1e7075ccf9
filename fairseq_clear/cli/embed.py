"""``fairseq-clear embed``: encodes the lines of a text file as vectors."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fairseq_clear.cli.flags import Command, ModelFlags, choose_tokenizer
from fairseq_clear.errors import UserError
from fairseq_clear.settings import setting
from fairseq_clear.text.data_folders import data_folders


@dataclass(kw_only=True)
class Embed(Command, ModelFlags):
    """Encode each line of a text file with a trained encoder. The vectors are those before the projection head, in float32.

    Each line is one sentence. A blank line is embedded as an empty text, so row i of the output belongs to line i of the input.
    In .jsonl each line is a JSON object, whose text is the field --text-field. Memory does not grow with the file. If the
    command fails, no output is written.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear embed sentences.txt --checkpoint checkpoints/checkpoint_best.pt --data-bin data-bin --output out.npy
zcat big.gz | fairseq-clear embed - --checkpoint ck.pt --data-bin data-bin --output out.jsonl --normalize
echo 'A film.' | fairseq-clear embed - --checkpoint ck.pt --data-bin data-bin --pooling mean"""

    input: str = setting(
        "UTF-8 text, or .jsonl, also .gz or .xz; - for text on standard input", metavar="INPUT", positional=True
    )
    checkpoint: Path = setting("checkpoint of clear_roberta, trained with any criterion, or of fairseq's roberta")
    data_bin: str = setting("folder with the dict.txt (and the tokenizer) of the checkpoint", metavar="DIR")
    text_field: str = setting("name of the field of a .jsonl record that holds its text", "text")
    output: Path | None = setting(
        '.npy: one (lines, dimension) float32 array; .jsonl: {"text": ..., "embedding": [...]} per line (default: JSON lines '
        "on standard output)",
        None,
    )
    overwrite: bool = setting("replace an existing output", False)
    pooling: str | None = setting(
        "cls, mean, max, first-last, last2 or layer:N (default: the checkpoint's own; mean for fairseq's roberta)", None
    )
    dimension: int | None = setting(
        "keep only the first D dimensions, scaled to length 1, of an encoder trained with --matryoshka (default: all)",
        None,
        least=1,
        metavar="D",
    )
    normalize: bool = setting("scale vectors to length 1", False)
    batch_size: int = setting(
        "texts per batch if all are as long as the longest; batches of shorter texts have more", 32, least=1
    )

    def run(self) -> int:
        """Embed the input and print one line of counts."""
        from fairseq_clear.evaluation.embedding_files import check_output  # fairseq takes seconds to import

        if self.output is not None:
            check_output(self.output, self.overwrite)
        with input_file(self.input) as path:
            try:
                self.embed(path)
            except UserError as error:
                shown = "standard input" if self.input == "-" else str(path)
                raise UserError(str(error).replace(str(path), shown)) from None
        return 0

    def embed(self, path: Path) -> None:
        """Embed the lines of ``path``."""
        from tqdm import tqdm

        from fairseq_clear.evaluation.embedding_files import count_lines, embed_lines, jsonl_writer, open_output
        from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder

        rows = count_lines(path, self.text_field)
        tokenizer = choose_tokenizer(self.tokenizer, data_folders(self.data_bin)[0])
        encoder = SentenceEncoder.from_pretrained(
            self.checkpoint, self.data_bin, tokenizer=tokenizer,
            pooling=self.pooling, dimension=self.dimension, device=self.device,
        )  # fmt: skip
        is_file = self.output is not None
        opened = (
            open_output(self.output, rows, encoder.dimension) if self.output else nullcontext(jsonl_writer(sys.stdout))
        )
        # disable=None hides the bar in a log file, where it would write a line for every batch
        with opened as write, tqdm(total=rows, unit="sentence", file=sys.stderr, disable=None) as bar:
            report = embed_lines(
                encoder, path, write,
                batch_size=self.batch_size, normalize=self.normalize, text_field=self.text_field, on_batch=bar.update,
            )  # fmt: skip
        closing = f"{report.summary()}; pooling {encoder.pooling}"
        print(closing + f"; wrote {self.output}" * is_file, file=sys.stdout if is_file else sys.stderr)


@contextmanager
def input_file(name: str) -> Iterator[Path]:
    """Yield the input as a file that can be read twice: once to count and check its lines, once to embed them."""
    if name != "-":
        yield Path(name)
        return
    with tempfile.NamedTemporaryFile(prefix="fairseq-clear-", suffix=".txt") as spooled:
        shutil.copyfileobj(sys.stdin.buffer, spooled)
        spooled.flush()
        yield Path(spooled.name)
