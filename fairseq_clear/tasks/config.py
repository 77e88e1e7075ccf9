"""The settings of the clear_lm task."""

from dataclasses import dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.tasks.masked_lm import MaskedLMConfig
from omegaconf import II

from fairseq_clear.settings import setting
from fairseq_clear.spec import AUGMENT_TEXTS, BOUNDARIES, MIX_BATCHES, SAME_DOCUMENT_NEGATIVES, SHORT_DOCUMENTS


@dataclass
class ClearLMConfig(MaskedLMConfig):
    """Settings of ``masked_lm``, of the views and of their augmentation."""

    tokens_per_sample: int = setting(
        "maximum number of tokens of a text, <s> and </s> included; longer texts are split (CLEAR: 512)", 512
    )
    views: str = setting(
        "which texts form a positive pair, as name:knob=value,...; same: the text, twice; "
        "paraphrase:original,de: the text and its line in DATA/paraphrase/de; titles: the title of a document, its first "
        "line, and the text below it; neighbor: adjacent sentences of a document; "
        "cloze:before=2,after=4,keep=0.1: a sentence of a document and the sentences around it; "
        "span:anchors=2,positives=2,min=32,max=512,strategy=any|adjacent|subsumed|overlapping: spans of a document "
        "(DeCLUTR). The last four read whole documents and ignore --sample-break-mode",
        "same",
    )
    document_boundary: ChoiceEnum(BOUNDARIES) = setting(  # type: ignore[valid-type]
        "what separates documents, for views of documents: blank lines; or line, if each line is a document", "blank"
    )
    short_documents: ChoiceEnum(SHORT_DOCUMENTS) = setting(  # type: ignore[valid-type]
        "documents too short for the longest spans of --views span (2 anchors of up to 512 tokens need 3 x 512 = "
        "1,536 tokens): clip shortens their spans, skip leaves them out, error stops at the first one",
        "clip",
    )
    same_document_negatives: ChoiceEnum(SAME_DOCUMENT_NEGATIVES) = setting(  # type: ignore[valid-type]
        "with --views span, whether spans of the same document are negatives of each other (DeCLUTR: include)",
        "include",
    )
    hard_negatives: Optional[str] = setting(  # noqa: UP045
        "texts that differ in meaning from the data, aligned line by line: names in DATA/paraphrase, or data "
        "folders, joined by commas; all of a batch are further negatives of every text (clear_nt_xent; SimCSE's "
        "supervised setting). fairseq-clear mine finds some. With hydra quote several twice: "
        "'task.hard_negatives=\"negative1,negative2\"'",
        None,
    )
    augment: str = setting(
        "augmentation of each view: none, del-word, del-span, reorder, subs, slice, mask-span, eda, with knobs as "
        "in 'subs:ratio=0.3+del-span:spans=5,ratio=0.05'; a+b applies a, then b; a/b applies one of them at random per "
        "view. On the hydra command line: 'task.augment=\"del-span:spans=5,ratio=0.05\"'",
        "none",
    )
    prompts: str = setting(
        "names of prompts of the sentence-transformers folder that the encoder comes from, such as query,passage: the first is "
        "put before each anchor (the title of titles, the sentence of cloze, the query of a pair), the second before each "
        "positive and hard negative; one name is for all, an empty name (query,) means no prompt. Prompts are neither "
        "augmented nor masked",
        "",
    )
    augment_texts: ChoiceEnum(AUGMENT_TEXTS) = setting(  # type: ignore[valid-type]
        "which texts of a pair --augment changes: all; or positives, which leaves anchors and hard negatives as "
        "they are (Mirror-BERT)",
        "all",
    )
    synonyms: Optional[str] = setting(  # noqa: UP045  (fairseq makes no flag of "str | None")
        "synonym table for subs and eda (eda's ops rs and rd need none), made by fairseq-clear synonyms (default: "
        "synonyms.npz in the data folder)",
        None,
    )
    mlm_copies: int = setting("masked copies of each text; 2 is the Double MLM baseline of CLEAR section 5.1", 1)
    mix: str = setting(
        "train on several data folders with the same dictionary, as FOLDER:WEIGHT,FOLDER:WEIGHT; DATA is one of "
        "them. Weights set the share of each folder in an epoch, which reads DATA once. On the hydra command line: "
        "'task.mix=\"own:0.8,general:0.2\"'",
        "",
    )
    mix_batches: ChoiceEnum(MIX_BATCHES) = setting(  # type: ignore[valid-type]
        "with --mix: any mixes the corpora in each batch; with one, all texts of a batch are from one corpus, and "
        "so are the negatives of a text",
        "any",
    )
    train_subset: str = II("dataset.train_subset")
    eval_sts: Optional[str] = setting(  # noqa: UP045
        "at each validation, log as sts_spearman the Spearman correlation (x 100) on the dev split of STSBenchmark "
        "in this folder, or on this file (text, text, score; or in the format of STS-B, SICK or SemEval); with "
        "--best-checkpoint-metric sts_spearman --maximize-best-checkpoint-metric it chooses the checkpoint",
        None,
    )
    eval_retrieval: Optional[str] = setting(  # noqa: UP045
        "at each validation, log as retrieval_mrr the MRR@10 (x 100) of finding the passage of each query of "
        "this file among all its passages (lines of query, tab, passage; or .jsonl records with query and passage); with "
        "--best-checkpoint-metric retrieval_mrr --maximize-best-checkpoint-metric it chooses the checkpoint",
        None,
    )
    persistent_workers: bool = setting("leave this off: loaders that outlive an epoch keep its masks and views", False)
    allow_change: str = setting(
        "settings, joined by commas, that may differ from the checkpoint that the run resumes from, such "
        "as lr,batch-size; saving, logging and the number of workers may always differ, and so may --max-update unless the "
        "schedule depends on it",
        "",
    )
