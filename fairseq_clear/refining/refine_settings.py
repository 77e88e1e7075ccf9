"""Recipes and settings of ``refine``; importable without fairseq."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.prepare_settings import SPLIT_MODES, DocumentSettings
from fairseq_clear.settings import check_settings, setting

AUTO, TITLES, CLOZE, SIMCSE, PAIRS = "auto", "titles", "cloze", "simcse", "pairs"
FREE = ("dest", "overwrite", "device")  # may differ between a run and the call that resumes it


@dataclass(frozen=True)
class RefineRecipe:
    """A way to train: what a positive pair is, and the flags of fairseq-train."""

    summary: str  # one line of help
    flags: str  # of fairseq-train
    needs_documents: bool = False  # whether pairs come from documents of several sentences
    asks: bool = False  # whether the first text of a pair is like a query, and the second like a passage


_NT_XENT = "--criterion clear_nt_xent --temperature 0.05 --projection-layers 0 --mlm-weight 0"
_SG_OPT = (
    "--criterion clear_self_guided --objective sg-opt --temperature 0.01 --mlm-weight 0 --projection-layers 2 "
    "--projection-hidden-dim 4096 --projection-dim 4096 --projection-activation gelu --projection-activate-last "
    "--regularizer-weight 0.1 --frozen-layers 1 --guide-pooling max --guide-layers all"
)
RECIPES: dict[str, RefineRecipe] = {
    TITLES: RefineRecipe("a document's title and its text", f"{_NT_XENT} --directions one --views titles", True, True),
    CLOZE: RefineRecipe("a sentence and its context (inverse cloze)", f"{_NT_XENT} --views cloze", True, True),
    "neighbor": RefineRecipe("two adjacent pairs of sentences", f"{_NT_XENT} --views neighbor:sentences=2", True),
    "span": RefineRecipe(
        "two spans of one document (DeCLUTR)",
        f"{_NT_XENT} --views span:anchors=1,positives=1,min=4,max={{max_span}}",
        True,
    ),
    SIMCSE: RefineRecipe("a sentence twice, with different dropout", f"{_NT_XENT} --directions one --views same"),
    "clear": RefineRecipe("a sentence twice, 70 % of tokens deleted", f"{_NT_XENT} --views same --augment del-word"),
    "sg-opt": RefineRecipe("a sentence and its own hidden layers", f"{_SG_OPT} --views same"),
}
PAIR_RECIPE = RefineRecipe(  # with --train-pairs; a pair has the identity of its passage
    "a query and its passage",
    f"{_NT_XENT} --directions one --views paraphrase:query,original "
    "--false-negatives guide:margin=0.0 --guide {encoder}",
    asks=True,
)
TRIALS = (TITLES, CLOZE, "neighbor", "span", SIMCSE)  # that auto compares


@dataclass(kw_only=True)
class RefineSettings(DocumentSettings):
    """Everything that determines a refined encoder."""

    texts: tuple[Path, ...] = setting(
        "text to train on, as prepare reads it: .txt with blank lines between documents, .jsonl with a document per record, "
        "also .gz and .xz, or folders of such files; may be left out with --train-pairs",
        (),
        metavar="TEXT",
        positional=True,
        nargs="*",
    )
    encoder: Path = setting(
        "pretrained encoder: a Hugging Face or sentence-transformers folder, a folder of import, or a checkpoint (.pt) with "
        "--data-bin",
        flag="--from",
        metavar="ENCODER",
    )
    dest: Path = setting("folder to create; FOLDER.partial holds what is finished so far", metavar="FOLDER")
    data_bin: Path | None = setting(
        "folder with the dict.txt and tokenizer of a checkpoint (default: the folder of the checkpoint)",
        None,
        metavar="DIR",
    )
    split_sentences: str = setting(
        "how to split the text into sentences with sentencex: `lines` splits each line by itself, `paragraphs` first joins "
        "hard-wrapped lines, `none` keeps one sentence per line",
        SPLIT_MODES[0],
        choices=(*SPLIT_MODES, "none"),
        group="text",
    )
    recipe: str | None = setting(
        "; ".join(f"{name}: {recipe.summary}" for name, recipe in RECIPES.items())
        + f"; {AUTO}: a short trial of {', '.join(TRIALS)}; the best is trained further (default: titles if most "
        "documents have one, else cloze, or simcse if they have one sentence)",
        None,
        choices=(*RECIPES, AUTO),
        metavar="RECIPE",
        group="training",
    )
    train_pairs: Path | None = setting(
        "train on queries and the passages that answer them: lines of query, tab, passage and, after further tabs, hard "
        "negatives; or .jsonl records with query, passage and, in a list, negatives; also .gz and .xz. The titles of TEXT and "
        "what follows them are further pairs. Without --pairs, --held-out of the passages compare the encoders",
        None,
        group="training",
    )
    negatives: int | None = setting(
        "hard negatives of each pair of --train-pairs: first from the file, then texts that the untouched encoder finds "
        "near to the query (default: as many as the pair with the fewest has in the file)",
        None,
        least=0,
        group="training",
    )
    margin: float = setting(
        "a text found for --negatives is less near to the query than its passage, by more than this cosine",
        0.05,
        least=-2,
        most=2,
        group="training",
    )
    batch_size: int = setting("pairs per update", 64, least=2, group="training")
    max_length: int = setting(
        "tokens of the longest text of a pair; longer ones are cut", 128, least=8, group="training"
    )
    learning_rate: float = setting("highest learning rate", 5e-5, above=0, flag="--lr", group="training")
    seed: int = setting(
        "seed of the held-out documents, of batches, views and dropout", 1, least=0, most=2**31 - 1, group="training"
    )
    device: str | None = setting("cpu, or cuda for one GPU (default: cuda if available)", None, group="training")
    updates: int = setting("number of updates", 40, least=1, group="training")
    held_out: float = setting(
        "share of the documents to hold out, at most 1,300 or half of them: encoders are compared by how well the first "
        "sentence of such a document finds the text after it among those of all documents, or of 5,000 others; with "
        "--train-pairs, share of the passages",
        0.1,
        metavar="SHARE",
        group="comparison",
    )
    pairs: Path | None = setting(
        "recommended: compare by these queries and passages of your own, as for retrieval --pairs; documents with one of the "
        "queries as a sentence are not trained on, and at most 30 others are held out, for the validation loss",
        None,
        group="comparison",
    )
    sts: Path | None = setting("also compare by STS: the folder of sts --data", None, metavar="DIR", group="comparison")
    keep_best: bool = setting(
        "export the refined encoder as it was trained: not merged with the untouched one, and even if that is better in the "
        "comparison",
        True,
        group="comparison",
    )
    overwrite: bool = setting("replace FOLDER if it is a refined encoder or an export", False)
    training_flags: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise UserError for values that are out of range or contradict each other; no file is read."""
        check_settings(self)
        if not self.dest.name:
            raise UserError(f"--dest {self.dest}: give the name of a folder")
        if not 0 < self.held_out < 1:
            raise UserError(f"--held-out {self.held_out:g}: must be a share of the documents, above 0 and below 1")
        if self.train_pairs is not None and self.recipe is not None:
            raise UserError(f"--recipe {self.recipe}: --train-pairs trains on pairs; leave one of the two out")
        if self.train_pairs is None and self.negatives is not None:
            raise UserError(f"--negatives {self.negatives}: belongs to --train-pairs, the pairs that get them")
        if not self.negatives and self.margin != RefineSettings.margin:
            raise UserError(f"--margin {self.margin:g}: belongs to --negatives 1 or more, which it chooses; add them")
        if self.pairs is not None and self.held_out != RefineSettings.held_out:
            raise UserError(f"--held-out {self.held_out:g}: has no effect, as --pairs compares; leave one of them out")

    @property
    def work(self) -> Path:
        """The folder for what is finished so far."""
        return self.dest.with_name(f"{self.dest.name}.partial")

    @property
    def asks_given_pairs(self) -> bool:
        """Whether the queries and passages of the comparison are given, not made of documents."""
        return self.pairs is not None or self.train_pairs is not None

    def as_json(self) -> dict[str, Any]:
        """Return the settings that determine the result, paths as text."""
        settings = {name: value for name, value in asdict(self).items() if name not in FREE}
        return dict(json.loads(json.dumps(settings, default=str)))
