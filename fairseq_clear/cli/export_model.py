"""``fairseq-clear export``: writes trained weights for other libraries."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fairseq_clear.cli.flags import TOKENIZER_HELP, Command, choose_tokenizer
from fairseq_clear.errors import UserError
from fairseq_clear.settings import setting
from fairseq_clear.text.data_folders import data_folders

FORMATS = ("hf", "sentence-transformers", "fairseq")


@dataclass(kw_only=True)
class Export(Command):
    """Write the encoder of a checkpoint in the format of another library.

    Projection head, queue, guide, key encoder and the row of <del> are left out.

      hf                     config.json, model.safetensors (with MLM head) and tokenizer: AutoModel, AutoTokenizer
      sentence-transformers  the same without MLM head, and the pooling in its config
      fairseq                stock roberta (model.pt, dict.txt), which needs no plugin

    The library of the format loads the result, which is compared with the checkpoint: hidden states of every layer,
    embeddings, tokens. If they differ by more than 1e-4, nothing is written. README.md is a model card.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear export checkpoint_best.pt --data-bin data-bin --format sentence-transformers --dest encoder
fairseq-clear sts --data DATA --encoder checkpoint_best.pt --data-bin data-bin --output sts.json
fairseq-clear export checkpoint_best.pt --data-bin data-bin --format hf --dest encoder --scores sts.json
fairseq-clear export checkpoint_best.pt --data-bin data-bin --format fairseq --dest roberta"""

    checkpoint: Path = setting(
        "checkpoint of clear_roberta or of fairseq's roberta", metavar="CHECKPOINT", positional=True
    )
    data_bin: str = setting("folder with the dict.txt (and the tokenizer) of the checkpoint", metavar="DIR")
    format: str = setting("format to write, as described above", choices=FORMATS)
    dest: Path = setting("folder to create", metavar="DEST")
    pooling: str | None = setting(
        "pooling to write to the config; sentence-transformers has cls, mean and max (default: the checkpoint's)", None
    )
    encoder: str = setting(
        "encoder of a clear_moco checkpoint to export: query, the trained one; key, its moving average, which encoded the keys",
        "query",
        choices=("query", "key"),
    )
    normalize: bool = setting("make sentence-transformers scale vectors to length 1", False)
    dimension: int | None = setting(
        "make sentence-transformers keep only the first D dimensions (truncate_dim) of an encoder trained with --matryoshka",
        None,
        least=1,
        metavar="D",
    )
    scores: Path | None = setting("report of an evaluation (its --output), to show in the model card", None)
    tokenizer: str | None = setting(TOKENIZER_HELP, None)
    overwrite: bool = setting("replace DEST if it is an export", False)

    def run(self) -> int:
        """Export the checkpoint and print the comparison."""
        if self.normalize and self.format != "sentence-transformers":
            raise UserError(f"--normalize: belongs to --format sentence-transformers; {self.format} cannot store it")
        if self.dimension is not None and self.format != "sentence-transformers":
            raise UserError(f"--dimension: belongs to --format sentence-transformers; {self.format} cannot store it")
        if self.dimension is not None and self.normalize:
            raise UserError(
                "--normalize: sentence-transformers scales vectors before it truncates them to --dimension; leave one of the "
                "two out, and call encode(..., normalize_embeddings=True)"
            )
        from fairseq_clear.interop.exporting import export  # fairseq takes seconds to import

        folder = data_folders(self.data_bin)[0]
        report = export(
            self.checkpoint, folder, self.dest, self.format, choose_tokenizer(self.tokenizer, folder),
            pooling=self.pooling, normalized=self.normalize, dimension=self.dimension, scores=self.scores,
            key_encoder=self.encoder == "key", overwrite=self.overwrite,
        )  # fmt: skip
        print("\n".join(report.lines()))
        return 0
