"""The table of augmentations: pure functions ``f(texts, draws, *, symbols, **knobs) -> (views, source)`` of a batch."""

from fairseq_clear.augmentations.base import Augmentation, Symbols
from fairseq_clear.augmentations.clear_edits import delete_spans, delete_words, reorder_spans
from fairseq_clear.augmentations.eda import OPERATIONS, apply_eda, draws_synonyms, grow_by_operations
from fairseq_clear.augmentations.span_masking import mask_slices, mask_span
from fairseq_clear.augmentations.substitution import grow_by_ratio, substitute_words
from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.spec import Knob

__all__ = ["AUGMENTATIONS", "Augmentation", "Symbols", "SynonymTable"]

_CLEAR = "CLEAR (Wu et al. 2020), sections 3.3 and 4.1"


def _ratio(default: float, of: str) -> Knob:
    return Knob(default, float, 0, 1, f"share of {of}")


AUGMENTATIONS: dict[str, Augmentation] = {
    "del-word": Augmentation(
        delete_words, "Replaces a share of the tokens by <del>.", _CLEAR, {"ratio": _ratio(0.7, "the tokens to delete")}
    ),
    "del-span": Augmentation(
        delete_spans,
        "Replaces disjoint spans, each a share of the text, by <del>.",
        _CLEAR,
        {"spans": Knob(5, int, 0, None, "number of spans"), "ratio": _ratio(0.05, "the text that each span covers")},
    ),
    "reorder": Augmentation(
        reorder_spans,
        "Swaps pairs of disjoint spans, each a share of the text.",
        _CLEAR,
        {"pairs": Knob(5, int, 0, None, "number of pairs"), "ratio": _ratio(0.05, "the text that each span covers")},
        writes_deleted=False,
    ),
    "subs": Augmentation(
        substitute_words,
        "Replaces a share of the words by synonyms.",
        _CLEAR,
        {"ratio": _ratio(0.3, "all words to replace")},
        needs_words=True,
        needs_synonyms=True,
        bound=grow_by_ratio,
        writes_deleted=False,
    ),
    "slice": Augmentation(
        mask_slices,
        "Replaces disjoint slices of the text by one <mask> each; slices that touch share one.",
        "Investigating Views (Nguyen), Methods",
        {"slices": Knob(2, int, 0, None, "number of slices"), "ratio": _ratio(0.2, "the text that each slice covers")},
        writes_deleted=False,
    ),
    "mask-span": Augmentation(
        mask_span,
        "Replaces one span of tokens by <mask>.",
        "Mirror-BERT (Liu et al. 2021), section 2.2",
        {"length": Knob(1, int, 0, None, "number of tokens of the span")},
        writes_deleted=False,
    ),
    "eda": Augmentation(
        apply_eda,
        "Replaces, inserts, swaps or deletes a share of the words.",
        "EDA (Wei and Zou 2019), in CERT (Fang et al. 2020), section 5.3",
        {
            "alpha": _ratio(0.1, "the words to change"),
            "ops": Knob(
                "-".join(OPERATIONS), str, help="operations to draw from", choices=tuple(OPERATIONS), several=True
            ),
            "draw": Knob(
                "one", str, help="one random operation per text, or all, one after the other", choices=("one", "all")
            ),
        },
        needs_words=True,
        needs_synonyms=draws_synonyms,
        bound=grow_by_operations,
        writes_deleted=False,
    ),
}
