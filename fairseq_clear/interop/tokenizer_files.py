"""Writes the tokenizer of a data folder as Hugging Face's ``tokenizer.json``: copied if it came from there, else built."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.files import write_json
from fairseq_clear.libraries import import_library
from fairseq_clear.text.tokenizers import (
    HF_NAMES,
    ROLES,
    Gpt2Tokenizer,
    HfTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    WhitespaceTokenizer,
    split_names,
)

SPACE = "\u2581"
UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType
USER_DEFINED, BYTE = 4, 6  # SentencePiece.Type
NEVER = -1e6  # log probability of entries into which no text is split


def write_tokenizer(
    tokenizer: Tokenizer, symbols: list[str], folder: Path, positions: int, *, has_segments: bool = False
) -> None:
    """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json to ``folder``.

    Args:
        symbols: symbols of the vocabulary in the order of fairseq's ids, which a new tokenizer has too. A tokenizer that came
            from Hugging Face keeps its own ids.
        positions: maximum number of tokens of a text.
    """
    if isinstance(tokenizer, HfTokenizer):
        special = tokenizer.special
        content = json.loads(tokenizer.content)
        content["truncation"] = content["padding"] = None
    else:
        special = ROLES
        content = _build(tokenizer, symbols)
    if special["cls_token"] == "<s>":
        special = special | {"bos_token": special["cls_token"], "eos_token": special["sep_token"]}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
        # some versions of transformers give token types by default, which DistilBERT, for example, does not take
        "model_input_names": ["input_ids", *(["token_type_ids"] if has_segments else []), "attention_mask"],
        **special,
    }
    for name, value in ((HF_NAMES[0], content), (HF_NAMES[1], special), ("tokenizer_config.json", config)):
        write_json(folder / name, value)


def _build(tokenizer: Tokenizer, symbols: list[str]) -> dict[str, Any]:
    build = _BUILDERS.get(type(tokenizer))
    if build is None:
        raise UserError(f"a {type(tokenizer).__name__} cannot be exported; known: sentencepiece, GPT-2, white space")
    library = import_library("tokenizers")
    made = build(library, tokenizer, symbols)
    start, end = ("<s>", symbols.index("<s>")), ("</s>", symbols.index("</s>"))
    made.post_processor = library.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B:1 </s>:1", special_tokens=[start, end]
    )
    made.add_special_tokens([library.AddedToken(symbol, normalized=False) for symbol in ROLES.values()])
    return json.loads(split_names(made.to_str(), ROLES))


def _from_sentencepiece(library: Any, tokenizer: SentencePieceTokenizer, symbols: list[str]) -> Any:
    model = _read_model(Path(tokenizer.path))
    _check_pieces(tokenizer.path, tokenizer.symbols(), symbols, "`prepare` makes it")
    scores = {entry.piece: entry.score for entry in model.pieces}
    bytes_too = model.trainer_spec.byte_fallback and any(entry.type == BYTE for entry in model.pieces)
    if model.trainer_spec.model_type == UNIGRAM:
        entries = [(symbol, 0.0 if symbol in ROLES.values() else scores.get(symbol, NEVER)) for symbol in symbols]
        algorithm = library.models.Unigram(entries, unk_id=symbols.index("<unk>"), byte_fallback=bytes_too)
    else:
        numbers = {symbol: index for index, symbol in enumerate(symbols)}
        options = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": bytes_too}
        algorithm = library.models.BPE(numbers, _merges(scores), **options)
    made, spec = library.Tokenizer(algorithm), model.normalizer_spec
    normalizers, decoders = library.normalizers, library.decoders
    steps = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if steps and steps[0].normalize_str("e\u0301") == "\u00e9":
        # sentencepiece composes the longest sequence that its table has, Precompiled single characters and short sequences
        steps = [normalizers.NFC(), *steps, normalizers.NFC()]
    if spec.remove_extra_whitespaces:
        edges = normalizers.Replace(library.Regex("^ +| +$"), "")  # Strip also removes what is no space, such as U+0085
        steps += [edges, normalizers.Replace(library.Regex(" {2,}"), " ")]
    made.normalizer = normalizers.Sequence(steps)
    pre_tokenizers = library.pre_tokenizers
    joins_words = any(SPACE in entry.piece[1:] for entry in model.pieces)
    split = pre_tokenizers.Metaspace(
        replacement=SPACE, prepend_scheme="always" if spec.add_dummy_prefix else "never", split=not joins_words
    )
    made.pre_tokenizer = split
    if bytes_too and model.trainer_spec.model_type == UNIGRAM:
        # Unigram would read the name of a byte in a text as that byte
        names = pre_tokenizers.Split(library.Regex("<(?=0x[0-9A-F]{2}>)"), "merged_with_previous")
        made.pre_tokenizer = pre_tokenizers.Sequence([split, names])
    made.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def _check_pieces(path: object, pieces: Iterable[str], symbols: list[str], example: str) -> None:
    if missing := set(pieces) - set(symbols):
        raise UserError(
            f"{path}: {len(missing)} of its pieces, such as {min(missing)!r}, are not in dict.txt; only a dictionary with all "
            f"pieces, as {example}, can be exported"
        )


def _read_model(path: Path) -> Any:
    """Read the ``ModelProto`` of a sentencepiece ``.model`` file."""
    proto = import_library("sentencepiece.sentencepiece_model_pb2").ModelProto()
    proto.ParseFromString(path.read_bytes())
    trainer = proto.trainer_spec
    if trainer.model_type not in (UNIGRAM, BPE):
        raise UserError(f"{path}: is a word or char model; unigram and bpe can be exported")
    if trainer.treat_whitespace_as_suffix or any(piece.type == USER_DEFINED for piece in proto.pieces):
        raise UserError(f"{path}: has user-defined symbols or word-final space marks, which cannot be exported exactly")
    return proto


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Pairs of pieces whose concatenation is a piece, by descending score, the order in which sentencepiece merges."""
    found = []
    for piece, score in scores.items():
        pairs = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        found += [(-score, pair) for pair in pairs if pair[0] in scores and pair[1] in scores]
    return [pair for _, pair in sorted(found, key=lambda entry: entry[0])]


def _from_gpt2(library: Any, tokenizer: Gpt2Tokenizer, symbols: list[str]) -> Any:
    encoder: dict[str, int] = json.loads(Path(tokenizer.path).read_text(encoding="utf-8"))
    lines = Path(tokenizer.vocab_bpe).read_text(encoding="utf-8").split("\n")[1:-1]  # as fairseq reads it
    merges = [tuple(line.split()) for line in lines if line.strip()]
    names = {str(index): token for token, index in encoder.items()}
    _check_pieces(tokenizer.path, names, symbols, "roberta.base has it")
    vocabulary = {names.get(symbol, symbol): index for index, symbol in enumerate(symbols)}
    made = library.Tokenizer(library.models.BPE(vocabulary, merges))
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    return made


def _from_whitespace(library: Any, tokenizer: Tokenizer, symbols: list[str]) -> Any:
    vocabulary = {symbol: index for index, symbol in enumerate(symbols)}
    made = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token="<unk>"))
    names = "|".join(ROLES.values())
    made.normalizer = library.normalizers.Replace(library.Regex(rf"(?<!\S)(?:{names})(?!\S)"), "<unk>")
    made.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    return made


_BUILDERS: dict[type, Callable[[Any, Any, list[str]], Any]] = {
    SentencePieceTokenizer: _from_sentencepiece,
    Gpt2Tokenizer: _from_gpt2,
    WhitespaceTokenizer: _from_whitespace,
}
