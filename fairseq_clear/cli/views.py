"""``fairseq-clear views``: prints the views of a recipe as text."""

import os
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fairseq_clear import register
from fairseq_clear.cli.flags import TOKENIZER_HELP, Command, choose_tokenizer
from fairseq_clear.errors import UserError
from fairseq_clear.settings import setting
from fairseq_clear.spec import AUGMENT_TEXTS, BOUNDARIES, SHORT_DOCUMENTS
from fairseq_clear.text.data_folders import data_folders
from fairseq_clear.text.tokenizers import Tokenizer, WhitespaceTokenizer

if TYPE_CHECKING:
    from fairseq_clear.tasks.clear_lm import ClearLMTask


@dataclass(kw_only=True)
class RecipeFlags:
    """The flags of --task clear_lm that determine the views, with the names of fairseq-train; and the epoch."""

    GROUP: ClassVar[str] = "recipe, as for fairseq-train"

    views: str = setting("which texts form a pair", "same", metavar="SPEC")
    augment: str = setting(
        "augmentation of each view, such as subs:ratio=0.3+del-span:spans=5,ratio=0.05", "none", metavar="SPEC"
    )
    augment_texts: str = setting("texts of a pair to augment: all, or only the positives", "all", choices=AUGMENT_TEXTS)
    synonyms: str | None = setting(
        "synonym table for subs and eda (eda's ops rs and rd need none; default: synonyms.npz in the data folder)",
        None,
        metavar="FILE",
    )
    seed: int = setting("seed of the run", 1, least=0)
    epoch: int = setting("epoch, counted from 1; each epoch has its own views", 1, least=1)
    sample_break_mode: str = setting(
        "eos: one sentence per sample; none, complete, complete_doc: blocks (default: eos; fairseq-train's default is none)",
        "eos",
        choices=("none", "complete", "complete_doc", "eos"),
    )
    tokens_per_sample: int = setting("maximum length of a text", 512, least=3)
    document_boundary: str = setting("what separates documents, for views of documents", "blank", choices=BOUNDARIES)
    short_documents: str = setting(
        "for documents shorter than the longest spans of --views span (2 anchors of up to 512 tokens need 3 x 512 = 1,536): "
        "clip shortens the spans, skip ignores the document, error stops",
        "clip",
        choices=SHORT_DOCUMENTS,
    )


@dataclass(kw_only=True)
class Views(Command, RecipeFlags):
    """Print texts and the views that training makes of them.

    With the same --seed, --epoch and other flags, fairseq-train --task clear_lm makes the same views, whatever its batches
    and workers. Deleted tokens are bracketed in the text; moved and substituted ones are marked in the view. For views of
    documents, the place of each span in its document is shown. With --augment none each view equals its text, and only
    the views are shown. On a terminal the marks are coloured, unless NO_COLOR is set.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear views --data-bin data-bin --augment del-span+reorder
fairseq-clear views --data-bin data-bin --augment subs:ratio=0.3+del-word/del-word --count 3 --epoch 2
fairseq-clear views --data-bin data-bin --views span:strategy=adjacent --count 1
fairseq-clear views --data-bin data-bin --augment del-word --text 'The film was better than the book.'"""

    data_bin: str = setting("data folder, or DIR1:DIR2 as for fairseq-train", metavar="DIR")
    split: str = setting("split of the data folder", "train", metavar=None)
    text: tuple[str, ...] | None = setting(
        "show these sentences, as if they were the data (index 0, 1, ...); for views of documents, the lines of one",
        None,
        metavar="TEXT",
    )
    count: int = setting("number of texts", 5, least=1)
    start: int = setting("index of the first text", 0, least=0)
    tokenizer: str | None = setting(f"{TOKENIZER_HELP} (default: words between spaces)", None)

    def run(self) -> int:
        """Print the views."""
        from fairseq_clear.views.inspection import ViewPrinter, draw_item  # takes seconds to import

        folders = data_folders(self.data_bin)
        tokenizer = choose_tokenizer(self.tokenizer, folders[0], WhitespaceTokenizer)
        task = self.build_task(folders)
        typed = self.text is not None
        sentences = self.typed_sentences(task, tokenizer) if typed else task.load_sentences(self.split, self.epoch)
        maker = task.build_view_maker(sentences)
        items = len(maker.source.text_lengths)
        if self.start >= items:
            raise UserError(f"--start {self.start}: there are {items} texts, with index 0 to {items - 1}")
        is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        printer = ViewPrinter(task.dictionary.symbols, tokenizer, colour=is_coloured)
        print(f"--views {self.views} --augment {task.chain.spec} --seed {self.seed} --epoch {self.epoch}")
        print(printer.legend())
        for index in range(self.start, min(self.start + self.count, items)):
            print(*draw_item(index, self.epoch, maker, printer), sep="\n")
        return 0

    def build_task(self, folders: list[Path]) -> "ClearLMTask":
        """Build the task as training does. Calls the constructor, because setup_task logs errors instead of raising them."""
        from fairseq_clear.tasks.clear_lm import ClearLMTask
        from fairseq_clear.tasks.config import ClearLMConfig

        register()
        settings = {item.name: getattr(self, item.name) for item in fields(RecipeFlags) if item.name != "epoch"}
        cfg = ClearLMConfig(data=os.pathsep.join(map(str, folders)), **settings)
        return ClearLMTask(cfg, ClearLMTask.load_dict(cfg))

    def typed_sentences(self, task: "ClearLMTask", tokenizer: Tokenizer) -> Any:
        """Return the sentences of --text as a data set: of documents for views of documents, else of sentences."""
        import torch
        from fairseq.data import ListDataset

        from fairseq_clear.models.encoding import read_tokens
        from fairseq_clear.text.documents import Documents, Lines
        from fairseq_clear.text.sentence_dataset import SentenceDataset
        from fairseq_clear.views.view_table import find_view_source

        known = task.dictionary
        # without <s>, which the data set adds
        lines = [torch.tensor(read_tokens(known, tokenizer, text)[1:]) for text in self.text or ()]
        kind, _ = find_view_source(self.views)
        if kind.values:
            raise UserError(
                f"--text: --views {self.views} reads texts aligned with the lines of --data-bin; leave --text out"
            )
        if kind.needs_documents:
            return Documents([Lines(lines)], known.bos(), known.eos(), boundary=self.document_boundary, name="--text")
        dataset = ListDataset(lines, [len(line) for line in lines])
        sentences = SentenceDataset(dataset, known.bos(), known.eos(), self.tokens_per_sample, name="--text")
        if not len(sentences):
            raise UserError("--text: only blank text; give a sentence")
        return sentences
