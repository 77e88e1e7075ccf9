"""Small corpora and tokenizers for the tests of preparation."""

import io
import json
import random
from pathlib import Path

COMMON = "the cat dog sat ran on under mat tree house quickly slowly because and then a of to in it was"
WORDS = COMMON.split()


def documents(count: int, seed: int = 0, longest: int = 6) -> list[list[str]]:
    """Random documents of one to ``longest`` sentences; some letters beyond ASCII, every document with its number."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        lines = [
            " ".join(rng.choices(WORDS, k=rng.randint(2, 12))) + rng.choice([" .", " !", " caf\u00e9", " \u6771\u4eac"])
            for _ in range(rng.randint(1, longest))
        ]
        made.append([f"document {number} " + lines[0], *lines[1:]])
    return made


def canonical(made: list[list[str]]) -> str:
    return "\n\n".join("\n".join(lines) for lines in made) + "\n"


def write_corpus(path: Path, count: int, seed: int = 0) -> Path:
    path.write_text(canonical(documents(count, seed)), encoding="utf-8")
    return path


def sentencepiece_model(path: Path, **options: object) -> Path:
    """A small sentencepiece model, unigram with byte fallback unless told otherwise."""
    from sentencepiece import SentencePieceTrainer

    written = io.BytesIO()
    lines = [line for lines in documents(80) for line in lines]
    defaults: dict[str, object] = {"vocab_size": 310, "byte_fallback": True, "num_threads": 1, "minloglevel": 2}
    SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=written, **{**defaults, **options})
    path.write_bytes(written.getvalue())
    return path


def gpt2_files(folder: Path) -> tuple[Path, Path]:
    """encoder.json and vocab.bpe in GPT-2's format: all bytes, and merges that make "the" and " the"."""
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

    merges = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("\u0120", "c")]
    symbols = [*bytes_to_unicode().values(), *("".join(pair) for pair in merges)]
    encoder, merge_file = folder / "encoder.json", folder / "vocab.bpe"
    encoder.write_text(json.dumps({symbol: index for index, symbol in enumerate(symbols)}))
    merge_file.write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    return encoder, merge_file
