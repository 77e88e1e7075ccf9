"""``fairseq-clear import``, ``export`` and ``merge``: convert encoders of other libraries, and average two."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fairseq_clear.cli.flags import TOKENIZER_HELP, Command, choose_tokenizer
from fairseq_clear.errors import UserError
from fairseq_clear.settings import setting
from fairseq_clear.text.data_folders import data_folders
from fairseq_clear.text.tokenizers import WhitespaceTokenizer


@dataclass(kw_only=True)
class Export(Command):
    """Write the encoder of a checkpoint in the format of another library.

    Projection head, queue, frozen encoder, key encoder and the row of <del> are left out.

      hf                     config.json, model.safetensors (with MLM head) and tokenizer: AutoModel, AutoTokenizer
      sentence-transformers  the same without MLM head; with the pooling, and with normalization, length of texts, prompts
                             and similarity function of the folder that was imported
      fairseq                stock roberta (model.pt, dict.txt), which needs no plugin

    The library of the format loads the result, which is compared with the checkpoint: hidden states of every layer,
    embeddings and, but for fairseq, tokens. If they differ by more than 1e-4, nothing is written. README.md is a model card.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear export checkpoint_best.pt --data-bin data-bin --format sentence-transformers --dest encoder
fairseq-clear sts --data DATA --encoder checkpoint_best.pt --data-bin data-bin --output sts.json
fairseq-clear export checkpoint_best.pt --data-bin data-bin --format hf --dest encoder --scores sts.json
fairseq-clear export checkpoint_best.pt --data-bin data-bin --format fairseq --dest roberta"""

    checkpoint: Path = setting(
        "checkpoint of clear_roberta, clear_hf or fairseq's roberta", metavar="CHECKPOINT", positional=True
    )
    data_bin: str = setting("folder with the dict.txt (and the tokenizer) of the checkpoint", metavar="DIR")
    format: str = setting("format to write, as described above", choices=("hf", "sentence-transformers", "fairseq"))
    dest: Path = setting("folder to create", metavar="DEST")
    pooling: str | None = setting(
        "pooling to write to the config; sentence-transformers has cls, mean and max (default: the checkpoint's)", None
    )
    normalize: bool = setting(
        "make sentence-transformers scale vectors to length 1, as it does anyway if the imported encoder did. Not with "
        "--dimension, because it would truncate the scaled vectors: call encode(..., normalize_embeddings=True)",
        False,
        exclusive="vectors",
    )
    dimension: int | None = setting(
        "make sentence-transformers keep only the first D dimensions (truncate_dim) of an encoder trained with --matryoshka",
        None,
        least=1,
        metavar="D",
        exclusive="vectors",
    )
    scores: Path | None = setting("report of an evaluation (its --output), to show in the model card", None)
    tokenizer: str | None = setting(TOKENIZER_HELP, None)
    overwrite: bool = setting("replace DEST if it is an export", False)

    def run(self) -> int:
        """Export the checkpoint and print the comparison."""
        for flag, is_given in (("--normalize", self.normalize), ("--dimension", self.dimension is not None)):
            if is_given and self.format != "sentence-transformers":
                raise UserError(f"{flag}: belongs to --format sentence-transformers; {self.format} cannot store it")
        from fairseq_clear.interop.exporting import export  # fairseq takes seconds to import

        folder = data_folders(self.data_bin)[0]
        # stock fairseq reads ids, so its format needs no tokenizer
        tokenizer = choose_tokenizer(self.tokenizer, folder, WhitespaceTokenizer if self.format == "fairseq" else None)
        parities = export(
            self.checkpoint, folder, self.dest, self.format, tokenizer,
            pooling=self.pooling, normalized=self.normalize, dimension=self.dimension, scores=self.scores,
            overwrite=self.overwrite,
        )  # fmt: skip
        print("\n".join([*(parity.summary() for parity in parities), f"wrote {self.dest}"]))
        return 0


@dataclass(kw_only=True)
class Import(Command):
    """Make a checkpoint of a local Hugging Face folder, or of a roberta archive of fairseq, in DEST.

    DEST holds a checkpoint (model.pt), dict.txt and the tokenizer: other commands take it as --data-bin and --tokenizer-dir.
    With --arch clear_hf the encoder stays as it is, of any family of encoders that transformers has. By default, BERT, RoBERTa,
    DistilRoBERTa, XLM-R or MiniLM is converted to clear_roberta, which --format fairseq exports as a stock RoBERTa; an archive
    (a .tar.gz or its folder) is copied unchanged. No code of the folder is run.

    SOURCE is a folder on this machine, not a name on the Hugging Face hub, because nothing is downloaded. On a machine with a
    network, get a folder with `hf download` (pip install huggingface_hub), and copy it to this one.

    Weights, LayerNorm's epsilon, activation and positions are kept exactly; of a sentence-transformers folder also pooling,
    normalization and the length of texts, which encoding applies, and prompts and similarity function, for its export. The
    result is compared with what transformers, or for an archive stock fairseq, computes (hidden states of every layer,
    embeddings, tokens); if they differ by more than 1e-4, nothing is written.
    """

    EXAMPLES: ClassVar[str] = """
hf download google-bert/bert-base-uncased --local-dir bert-base-uncased
fairseq-clear import bert-base-uncased --dest bert
fairseq-clear sts --data DATA --encoder bert/model.pt --data-bin bert --pooling cls mean first-last
fairseq-clear prepare corpus.txt --dest data-bin --tokenizer-dir bert
fairseq-train data-bin --arch clear_roberta --encoder-from bert ...
fairseq-clear import mpnet-base --dest mpnet --arch clear_hf
fairseq-clear import roberta.base.tar.gz --dest roberta --gpt2-encoder-json encoder.json --gpt2-vocab-bpe vocab.bpe"""

    source: Path = setting(
        "local folder with config.json, weights and tokenizer, or an archive of fairseq's roberta",
        metavar="SOURCE",
        positional=True,
    )
    dest: Path = setting("folder to create", metavar="DEST")
    arch: str = setting("model of the checkpoint", "clear_roberta", choices=("clear_roberta", "clear_hf"))
    pooling: str | None = setting(
        "pooling of the checkpoint (default: the sentence-transformers folder's, else mean)", None
    )
    gpt2_encoder_json: Path | None = setting("GPT-2's encoder.json, for a roberta archive without it", None)
    gpt2_vocab_bpe: Path | None = setting("GPT-2's vocab.bpe, with --gpt2-encoder-json", None)
    overwrite: bool = setting("replace DEST if it is a folder of this command", False)

    def run(self) -> int:
        """Import the model; print notes and the comparison."""
        # fairseq takes seconds to import
        from fairseq_clear.interop.importing import import_archive, import_hf, is_archive

        gpt2 = (self.gpt2_encoder_json, self.gpt2_vocab_bpe) if self.gpt2_encoder_json and self.gpt2_vocab_bpe else None
        if gpt2 is None and (self.gpt2_encoder_json or self.gpt2_vocab_bpe):
            raise UserError("--gpt2-encoder-json and --gpt2-vocab-bpe belong together: give both")
        if is_archive(self.source):
            if self.arch == "clear_hf" or self.pooling is not None:
                what = "is an archive of fairseq, which is copied unchanged; leave --pooling and --arch clear_hf out"
                raise UserError(f"{self.source}: {what}")
            report = import_archive(self.source, self.dest, gpt2, overwrite=self.overwrite)
        elif gpt2 is not None:
            raise UserError("--gpt2-encoder-json: belongs to fairseq's archives; a Hugging Face folder has its own")
        else:
            report = import_hf(self.source, self.dest, arch=self.arch, pooling=self.pooling, overwrite=self.overwrite)
        print("\n".join(report))
        return 0


@dataclass(kw_only=True)
class Merge(Command):
    """Average the weights of two encoders of one architecture, such as one before and after refining.

    START and REFINED are local Hugging Face or sentence-transformers folders. DEST gets the weights
    (1 - alpha) * START + alpha * REFINED of the encoder, its MLM head and its pooler in float32 as model.safetensors, and every
    other file of START except weights in other formats and the card, report and checkpoint of export and refine. A merged
    encoder keeps part of what refining gained, and loses less on other text (Wortsman et al. 2022).
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear merge all-MiniLM-L6-v2 refined --dest merged --alpha 0.5"""

    start: Path = setting("folder of the first encoder", metavar="START", positional=True)
    refined: Path = setting("folder of the second encoder", metavar="REFINED", positional=True)
    dest: Path = setting("folder to create", metavar="DEST")
    alpha: float = setting("share of REFINED", 0.5, least=0, most=1)
    overwrite: bool = setting("replace DEST if it is a merged encoder or an export", False)

    def run(self) -> int:
        """Merge the folders and print what was written."""
        from fairseq_clear.interop.merging import merge_folders  # torch takes seconds to import

        count = merge_folders(self.start, self.refined, self.dest, self.alpha, overwrite=self.overwrite)
        print(
            f"merged {count} tensors, {1 - self.alpha:g} x {self.start} + {self.alpha:g} x {self.refined}; wrote {self.dest}"
        )
        return 0
