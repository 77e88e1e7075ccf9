"""The settings of the clear_lm task."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.tasks.masked_lm import MaskedLMConfig

__all__ = ["ClearLMConfig"]


@dataclass
class ClearLMConfig(MaskedLMConfig):
    """masked_lm's settings, then which texts form pairs and how they are augmented."""

    tokens_per_sample: int = field(
        default=512, metadata={"help": "greatest number of tokens of a text, <s> and </s> included (CLEAR: 512)"}
    )
    views: str = field(
        default="same",
        metadata={
            "help": "which texts form a positive pair, as name:knob=value,...; same: the text, twice; "
            "paraphrase:original,de: the text and its line in DATA/paraphrase/de"
        },
    )
    hard_negatives: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "texts that differ in meaning from those of the data, line for line: a name in DATA/paraphrase or a data "
            "folder; all of them are further negatives of every text (clear_nt_xent; SimCSE's supervised setting)"
        },
    )
    augment: str = field(
        default="none",
        metadata={
            "help": "what is done to each view: none, del-word, del-span, reorder, subs, with knobs as in "
            "'subs:ratio=0.3+del-span:spans=5,ratio=0.05'; a+b is a then b, a/b one of them at random per view. "
            "On the hydra command line: 'task.augment=\"del-span:spans=5,ratio=0.05\"'"
        },
    )
    synonyms: Optional[str] = field(  # noqa: UP045  (fairseq makes no flag of "str | None")
        default=None,
        metadata={
            "help": "synonym table for subs (default: synonyms.npz in the data folder; make it with fairseq-clear synonyms)"
        },
    )
    mlm_copies: int = field(
        default=1,
        metadata={"help": "masked copies of each text: 2 is the Double MLM baseline of CLEAR section 5.1"},
    )
    eval_sts: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "at each validation, log as sts_spearman the Spearman correlation (x 100) on the dev split of STSBenchmark "
            "in this folder, or on this file (text, text, score; or as STS-B, SICK, SemEval have it); with "
            "--best-checkpoint-metric sts_spearman --maximize-best-checkpoint-metric it chooses the checkpoint"
        },
    )
    persistent_workers: bool = field(
        default=False,
        metadata={"help": "leave this off: data workers that outlive an epoch go on with its masks and views"},
    )
