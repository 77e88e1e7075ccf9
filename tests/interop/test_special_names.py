"""The name of a special token in a text is plain text: in prepare, in our encoder and in every exported folder."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
from fairseq_clear.files import hash_file
from fairseq_clear.interop.exporting import export
from fairseq_clear.interop.importing import import_hf
from fairseq_clear.interop.stock import build_model, settings_of, write_checkpoint
from fairseq_clear.libraries import quiet_transformers
from fairseq_clear.models.encoding import read_tokens
from fairseq_clear.preparation.binarize import Encoder
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.tokenizers import (
    SPECIAL_SYMBOLS,
    Gpt2Tokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    WhitespaceTokenizer,
)
from fairseq_clear.text.vocabulary import build_dictionary
from tests.interop.folders import NEEDS_ST, make_folder, read_sentence_transformer
from tests.preparation.corpora import gpt2_files, sentencepiece_model

pytestmark = [pytest.mark.slow, NEEDS_ST]

HF = ("bert", "roberta", "xlm-roberta")
SENTENCEPIECE = {
    "unigram": {"byte_fallback": False, "vocab_size": 60},
    "unigram-bytes": {},
    "bpe": {"model_type": "bpe", "byte_fallback": False, "vocab_size": 60},
    "bpe-bytes": {"model_type": "bpe"},
    "unigram-html": {"byte_fallback": False, "vocab_size": 60, "required_chars": "<>/"},
    "unigram-folded": {"normalization_rule_name": "nmt_nfkc_cf"},
    "unigram-phrases": {"split_by_whitespace": False},
    "bpe-phrases": {"model_type": "bpe", "split_by_whitespace": False},
}
NAMES = {
    "<s>", "</s>", "<pad>", "<unk>", "<mask>", "<del>", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "<|endoftext|>",
}  # fmt: skip


def texts_with(name: str) -> list[str]:
    return [
        text
        for word in (name, name.lower(), name.upper())
        for text in (word, f"the {word} cat", f"the{word}cat", f"{word}{word} the", f"the {word}", f"< {word[1:]}")
    ]


TRAPS = [
    *(
        "tie\u0302\u0301ng Vie\u0323\u0302t E\u0301",
        "\uff76\uff9e\uff72\uff84\uff9e",
        "\u304b\u3099",
        "\u1112\u1161\u11ab",
    ),
    *(
        "token <0x41> is a<0x0A>b",
        "<0x41",
        "the cat x\x85 the",
        "the cat\x85",
        "  two  spaces\tand a tab ",
        "\u3000wide",
    ),
    *("\U0001f600 \u2603\u2603 unknown", "Caf\u00e9 \ufb01n 00 000!"),
]
TEXTS = [text for name in sorted(NAMES) for text in texts_with(name)]


def rename_pieces(path: Path, pieces: list[str]) -> None:
    """Give long pieces these names, at which the names of special tokens cannot be cut."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    model = ModelProto()
    model.ParseFromString(path.read_bytes())
    long = [entry for entry in model.pieces if len(entry.piece) > 1 and entry.type == 1 and "the" not in entry.piece]
    for entry, piece in zip(long, pieces, strict=False):
        entry.piece = piece
    path.write_bytes(model.SerializeToString())


@pytest.fixture(scope="module", params=[*HF, *SENTENCEPIECE, "gpt2", "gpt2-cut", "whitespace"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tokenizer]:
    """(folder with a random model and its dict.txt, tokenizer)"""
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    if kind in HF:
        import_hf(make_folder(folder / "hf", kind), folder / "ours")
        return folder / "ours", load_tokenizer(folder / "ours")
    tokenizer: Tokenizer = WhitespaceTokenizer()
    dictionary = Dictionary()
    for word in ("the", "cat", "<", "s>"):
        dictionary.add_symbol(word)
    if kind.startswith("gpt2"):
        files = gpt2_files(folder)
        if kind == "gpt2-cut":  # without the last newline, fairseq does not read the last merge
            files[1].write_text(files[1].read_text().rstrip("\n"))
        tokenizer = Gpt2Tokenizer(*files)
        dictionary = build_dictionary(tokenizer)
    elif kind in SENTENCEPIECE:
        path = sentencepiece_model(folder / "m.model", **SENTENCEPIECE[kind])
        if kind == "unigram-html":
            rename_pieces(path, ["<s", "</", "k>"])
        tokenizer = SentencePieceTokenizer(path)
        dictionary = build_dictionary(tokenizer)
    dictionary.save(str(folder / "dict.txt"))
    for symbol in ("<mask>", "<del>"):
        dictionary.add_symbol(symbol)
    sizes = {"encoder-layers": 2, "encoder-embed-dim": 16, "encoder-ffn-embed-dim": 32, "encoder-attention-heads": 2}
    cfg = settings_of(folder, "clear_lm", "clear_roberta", {**sizes, "max-positions": 60, "projection-layers": 0})
    torch.manual_seed(1)
    weights = build_model(cfg, dictionary).state_dict()
    weights = {key: value + 0.1 * torch.randn_like(value) for key, value in weights.items()}
    write_checkpoint(folder / "model.pt", cfg, weights, hash_file(folder / "dict.txt"))
    return folder, tokenizer


@pytest.fixture(scope="module")
def encoder(source: tuple[Path, Tokenizer]) -> SentenceEncoder:
    folder, tokenizer = source
    return SentenceEncoder.from_pretrained(folder / "model.pt", folder, tokenizer=tokenizer, pooling="mean")


@pytest.fixture(scope="module")
def exported(source: tuple[Path, Tokenizer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "st"
    export(source[0] / "model.pt", source[0], folder, "sentence-transformers", source[1], pooling="mean")
    return folder


def their_vectors(folder: Path, texts: list[str]) -> np.ndarray:
    with quiet_transformers():
        return read_sentence_transformer(folder).encode(texts)


def test_vectors_are_equal(encoder: SentenceEncoder, exported: Path) -> None:
    # stripped, as sentence-transformers before version 6 does with every text
    texts = [text.strip() for text in ("the cat", *TRAPS, "x" * 300, *TEXTS)]
    np.testing.assert_allclose(their_vectors(exported, texts), encoder.encode(texts), atol=1e-5)
    rows = json.loads((exported / "config.json").read_text())["vocab_size"]
    assert rows == len(encoder.dictionary) - ("<del>" in encoder.dictionary.indices)


def test_vectors_differ_if_names_are_tokens(encoder: SentenceEncoder, exported: Path) -> None:
    path = exported / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "split_special_tokens": False}))
    try:
        texts = ["the cat", f"the {config['mask_token']} cat"]
        theirs, ours = their_vectors(exported, texts), encoder.encode(texts)
    finally:
        path.write_text(json.dumps(config))
    np.testing.assert_allclose(theirs[0], ours[0], atol=1e-5)
    assert np.abs(theirs[1] - ours[1]).max() > 1e-3


def test_names_are_plain_text_in_prepare_too(encoder: SentenceEncoder, source: tuple[Path, Tokenizer]) -> None:
    for text in TEXTS:
        assert not (SPECIAL_SYMBOLS - {"<unk>"}) & set(encoder.tokenizer.encode(text)), text
    dictionary = Dictionary.load(str(source[0] / "dict.txt"))
    sizes, ids = Encoder(encoder.tokenizer, dictionary).encode("".join(f"{text}\n" for text in TEXTS).encode())
    rows = [row.tolist() for row in np.split(ids, np.cumsum(sizes)[:-1])]
    assert rows == [read_tokens(encoder.dictionary, encoder.tokenizer, text)[1:] for text in TEXTS]


def test_an_exported_folder_comes_back(encoder: SentenceEncoder, exported: Path, tmp_path: Path) -> None:
    ours = tmp_path / "again"
    import_hf(exported, ours)
    again = SentenceEncoder.from_pretrained(ours / "model.pt", ours, pooling="mean")
    np.testing.assert_allclose(again.encode(TEXTS), encoder.encode(TEXTS), atol=1e-5)
    export(ours / "model.pt", ours, tmp_path / "hf", "hf", load_tokenizer(ours))
    name = "tokenizer.json"
    assert json.loads((tmp_path / "hf" / name).read_text()) == json.loads((exported / name).read_text())


def test_masks_are_ids_or_asked_for(exported: Path) -> None:
    with quiet_transformers() as transformers:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(exported))
    text = f"the {tokenizer.mask_token} cat"
    assert tokenizer.mask_token_id not in tokenizer(text)["input_ids"]
    assert tokenizer(text, split_special_tokens=False)["input_ids"].count(tokenizer.mask_token_id) == 1
    assert tokenizer.convert_tokens_to_ids(tokenizer.mask_token) == tokenizer.mask_token_id
    with quiet_transformers() as transformers:
        filling = transformers.AutoTokenizer.from_pretrained(str(exported), split_special_tokens=False)
    assert filling(text)["input_ids"].count(tokenizer.mask_token_id) == 1
