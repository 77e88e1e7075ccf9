"""Augmenters of other libraries as functions ``text -> texts``: nlpaug's word augmenters, EDA, DeCLUTR's sampler."""

import importlib.util
import random
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Augment", "declutr", "eda", "hf_masks", "nlpaug"]

Augment = Callable[[str], list[str]]


def nlpaug(table: Mapping[str, list[str]], folder: Path) -> dict[str, Augment]:
    """RandomWordAug (by action) and SynonymAug of nlpaug, for 30 % of the words, without nlpaug's limit of ten words.

    SynonymAug reads our table from ``folder`` in the format of PPDB, where every word is a noun. It skips nltk's tagger, so it
    is faster than the real SynonymAug.
    """
    for name in ("gdown", "requests"):  # imported by nlpaug's downloader; nothing is downloaded
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)
    import nlpaug.augmenter.word as naw

    share: dict[str, Any] = {"aug_p": 0.3, "aug_min": 1, "aug_max": None}
    words = list(table)[:1000]
    made = {
        "delete": naw.RandomWordAug(action="delete", **share),
        "swap": naw.RandomWordAug(action="swap", **share),
        "substitute": naw.RandomWordAug(action="substitute", target_words=words, **share),
    }
    path = folder / "synonyms.ppdb"
    lines = [f"[NN] ||| {word} ||| {other}\n" for word, others in table.items() for other in others]
    path.write_text("".join(lines), encoding="utf-8")
    # force_reload, because nlpaug caches a table by its file name
    made["synonym"] = naw.SynonymAug(aug_src="ppdb", model_path=str(path), force_reload=True, **share)
    made["synonym"].model.pos_tag = lambda tokens: [(token, "NN") for token in tokens]
    return {name: augmenter.augment for name, augmenter in made.items()}


class _Synsets:
    """A table of synonyms with the interface of nltk's WordNet; a dictionary look-up, so faster than WordNet."""

    def __init__(self, table: Mapping[str, list[str]]) -> None:
        self._synsets = {
            word: [types.SimpleNamespace(lemmas=lambda others=others: [_Lemma(other) for other in others])]
            for word, others in table.items()
            if others
        }

    def synsets(self, word: str) -> list[Any]:
        return self._synsets.get(word, [])


class _Lemma:
    def __init__(self, text: str) -> None:
        self._text = text

    def name(self) -> str:
        return self._text


def eda(table: Mapping[str, list[str]], alpha: float = 0.1) -> Augment:
    """EDA of textaugment, which follows Wei and Zou's code, with our table instead of WordNet: one operation per text, drawn
    uniformly (CERT section 5.3).

    The file eda.py is loaded alone, because the package's ``__init__`` needs gensim and a translator.
    """
    package = importlib.util.find_spec("textaugment")
    assert package is not None and package.submodule_search_locations
    spec = importlib.util.spec_from_file_location("eda", Path(package.submodule_search_locations[0]) / "eda.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.nltk = types.SimpleNamespace(download=lambda name: True)
    module.wordnet = _Synsets(table)
    made = module.EDA(stop_words=[])
    counted = (made.synonym_replacement, made.random_insertion, made.random_swap)
    operations = [lambda text, f=f: f(text, n=max(1, int(alpha * len(text.split())))) for f in counted]
    operations.append(lambda text: made.random_deletion(text, p=alpha))
    return lambda text: [random.choice(operations)(text)]


def declutr(anchors: int = 2, positives: int = 2, low: int = 32, high: int = 512) -> Augment:
    """DeCLUTR's sampler, reimplemented from the paper (section 3.1.1) and the behaviour of the published code, which cannot be
    installed with a current PyTorch.

    Tokens are words between white space. Anchors start in cells of ``high`` words, never in neighbouring cells. Positives lie
    anywhere from the left of their anchor to its right. A text needs ``2 * anchors * high`` words. Returns each anchor and then
    its positives.
    """
    rng = np.random.RandomState(1)  # noqa: NPY002  (the generator of that code)

    def sample(text: str) -> list[str]:
        tokens = text.split()
        starts = list(range(0, len(tokens) - high + 1, high))
        spans = []
        for left in range(anchors, 0, -1):
            length = int(rng.beta(4, 2) * (high - low) + low)
            place = rng.choice((0, len(starts) - 1)) if len(starts) // left < left else rng.randint(len(starts))
            start = rng.randint(starts[place], starts[place] + high - length + 1)
            del starts[max(0, place - 1) : place + 2]
            spans.append((start, start + length))
            for _ in range(positives):
                size = int(rng.beta(2, 4) * (high - low) + low)
                first = rng.randint(max(0, start - size), min(start + length, len(tokens) - size) + 1)
                spans.append((first, first + size))
        return [" ".join(tokens[begin:end]) for begin, end in spans]

    return sample


def hf_masks(vocabulary: int) -> Callable[[list[list[int]]], Any]:
    """DataCollatorForLanguageModeling of transformers, which pads texts of ids and masks 15 % of their tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    known = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, **{f"w{number}": number for number in range(4, vocabulary)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({**known, "<mask>": vocabulary}, "<unk>")), bos_token="<s>",
        eos_token="</s>", pad_token="<pad>", unk_token="<unk>", mask_token="<mask>",
    )  # fmt: skip
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    return lambda rows: collate([{"input_ids": row} for row in rows])
