"""Hugging Face folders of tiny random models, made by transformers itself."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import sentences


def needs(*libraries: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not all(map(find_spec, libraries)), reason="optional, extra hf")


NEEDS_HF = needs("transformers", "tokenizers", "safetensors")
NEEDS_ST = needs("transformers", "tokenizers", "safetensors", "sentence_transformers")

CORPUS = [
    *(line for line in sentences(200, seed=3) if line),
    "A man is playing a guitar, isn't he?",
    "Numbers such as 3.5% or 1,000 and CAPITALS",
]
SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
SMALL |= {"intermediate_size": 40, "max_position_embeddings": 40}
WIDTH = 24  # of make_folder
# Family -> (kind of its tokenizer, changes of its configuration).
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "roberta": ("roberta", {}),
    "xlm-roberta": ("unigram", {}),
    "camembert": ("unigram", {}),
    "distilbert": ("bert", {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 40}),
    "mpnet": ("mpnet", {}),
    "albert": ("bert", {"embedding_size": 16}),
    "electra": ("bert", {"embedding_size": 16}),
    "deberta-v2": (
        "bert",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "type_vocab_size": 0},
    ),
    "modernbert": ("bert", {"local_attention": 8, "pad_token_id": 0}),
    "longformer": ("roberta", {"attention_window": 8}),
    "roformer": ("bert", {"embedding_size": 16}),
    "ernie": ("bert", {}),
    "megatron-bert": ("bert", {}),
}


def make(
    folder: Path, family: str, *, head: bool = True, padded: int = 3, noise: float = 0.05, seed: int = 1, **changes: Any
) -> Path:
    """A Hugging Face folder of this family, with ``padded`` rows more than its tokenizer has tokens."""
    import transformers

    kind, own = FAMILIES[family]
    tokenizer = TOKENIZERS[kind]()
    pad = tokenizer.token_to_id("[PAD]" if kind == "bert" else "<pad>")
    values = {**SMALL, "vocab_size": tokenizer.get_vocab_size() + padded, "pad_token_id": pad, **own, **changes}
    if pad and family != "mpnet":
        values["max_position_embeddings"] += pad + 1
    config = transformers.AutoConfig.for_model(family, **values)
    torch.manual_seed(seed)
    loader = transformers.AutoModelForMaskedLM if head else transformers.AutoModel
    model = loader.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    model.save_pretrained(folder)
    write_tokenizer(tokenizer, folder, "bert" if kind == "bert" else "roberta")
    if kind == "mpnet":
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"unk_token": "[UNK]"}))
    return folder


def make_folder(folder: Path, kind: str, **changes: Any) -> Path:
    """A folder of BERT, RoBERTa or XLM-R kind; weights are far from 0, so that nothing can hide."""
    types, epsilon = (2, 1e-12) if kind == "bert" else (1, 1e-5)
    own = {"hidden_size": WIDTH, "type_vocab_size": types, "layer_norm_eps": epsilon}
    return make(folder, kind, padded=0, noise=0.1, **{**own, **changes})


def make_sentence_folder(folder: Path, kind: str, *, pooling: str = "mean", length: int = 20, **more: Any) -> Path:
    """A folder of sentence-transformers: normalized vectors of at most ``length`` tokens, a prompt, another similarity."""
    make_folder(folder, kind, **more)
    parts = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{name}"}
        for n, (name, path) in enumerate(parts.items())
    ]
    mode = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}[pooling]
    contents = {
        "modules.json": modules,
        "1_Pooling/config.json": {
            "word_embedding_dimension": WIDTH,
            **{f"pooling_mode_{name}": name == mode for name in ("cls_token", "mean_tokens", "max_tokens")},
            "include_prompt": False,
        },
        "sentence_bert_config.json": {"max_seq_length": length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {"query": "bada kefe: ", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "euclidean",
        },
    }
    for path in ("1_Pooling", "2_Normalize"):
        (folder / path).mkdir()
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def write_tokenizer(tokenizer: Any, folder: Path, kind: str) -> None:
    """tokenizer.json with the traps that real folders have: it cuts at 12 tokens and pads to as many."""
    tokenizer.enable_truncation(12)
    tokenizer.enable_padding(length=12)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = "[CLS] [SEP] [PAD] [UNK] [MASK]" if kind == "bert" else "<s> </s> <pad> <unk> <mask>"
    roles = zip(("cls_token", "sep_token", "pad_token", "unk_token", "mask_token"), names.split(), strict=True)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **dict(roles)}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def wordpiece() -> Any:
    """Lower-casing, with accents stripped, ids in BERT's order: [PAD] 0 ... [MASK] 103 are not at fairseq's places."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return tokenizer


def byte_level() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    own = {"special_tokens": special, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=340, show_progress=False, **own))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer


def unigram() -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    own = {"special_tokens": special, "unk_token": "<unk>"}
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=150, show_progress=False, **own))
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def mpnet() -> Any:
    """The tokenizer of MPNet: WordPiece with <s> 0, <pad> 1, </s> 2, and an <unk> besides [UNK], which is the unknown token."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    known = wordpiece().get_vocab()
    words = [word for word in sorted(known, key=known.__getitem__) if not word.startswith("[")]
    names = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", *words, "<mask>"]
    tokenizer = Tokenizer(models.WordPiece({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


TOKENIZERS = {"bert": wordpiece, "roberta": byte_level, "unigram": unigram, "mpnet": mpnet}


def their_states(
    folder: Path, texts: Sequence[str], longest: int = 40, *, marked: bool | None = None, **changes: Any
) -> list[torch.Tensor]:
    """Last hidden states (T, D) of each text by transformers: tokenizer and model as a user of theirs would have them.

    ``marked``: of a Longformer, whether <s> is marked for global attention; ``changes`` are of its configuration.
    """
    from fairseq_clear.libraries import quiet_transformers

    with quiet_transformers() as transformers:
        model = transformers.AutoModel.from_pretrained(str(folder), **changes).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    states = []
    for text in texts:
        inputs: Any = tokenizer(text, truncation=True, max_length=longest, return_tensors="pt")
        if marked is not None:
            inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
            inputs["global_attention_mask"][:, 0] = int(marked)
        with torch.no_grad():
            states.append(model(**inputs).last_hidden_state[0])
    return states


def read_sentence_transformer(folder: Path) -> Any:
    """Load a folder with sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)
