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
SIZES: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 40, "hidden_act": "gelu"}


def make_folder(folder: Path, kind: str, *, head: bool = True, seed: int = 1, **changes: Any) -> Path:
    """A folder of BERT, RoBERTa or XLM-R kind; weights are far from 0, so that nothing can hide."""
    import transformers

    family = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}[kind]
    tokenizer = {"bert": wordpiece, "roberta": byte_level, "xlm-roberta": unigram}[kind]()
    positions = 40 if kind == "bert" else 42
    settings = {
        **SIZES,
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": positions,
        "type_vocab_size": 2 if kind == "bert" else 1,
        "layer_norm_eps": 1e-12 if kind == "bert" else 1e-5,
        "pad_token_id": tokenizer.token_to_id("[PAD]" if kind == "bert" else "<pad>"),
        **changes,
    }
    config = getattr(transformers, f"{family}Config")(**settings)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForMaskedLM" if head else f"{family}Model")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    write_tokenizer(tokenizer, folder, kind)
    return folder


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
            "word_embedding_dimension": SIZES["hidden_size"],
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
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=special, show_progress=False)
    )
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
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=340, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer


def unigram() -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=150, special_tokens=special, unk_token="<unk>", show_progress=False)
    )
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


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
