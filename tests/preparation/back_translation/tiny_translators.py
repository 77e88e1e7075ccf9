"""Tiny random translation models of transformers, whole with tokenizer, and the same weights converted for CTranslate2."""

import contextlib
import io
import json
import random
import warnings
from pathlib import Path
from typing import Any

import sentencepiece
import torch

from fairseq_clear.libraries import quiet_transformers
from tests.conftest import WORDS

SIZES: dict[str, Any] = {
    **dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    "max_position_embeddings": 64,
    "scale_embedding": True,
    "init_std": 0.6,
}


def texts(count: int, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 6))) for _ in range(count)]


def _subwords(folder: Path, name: str) -> list[str]:
    """Train a sentencepiece model FOLDER/NAME; return its pieces."""
    corpus = folder / "corpus"
    corpus.write_text("\n".join(texts(200)) + "\n")
    sentencepiece.SentencePieceTrainer.Train(
        input=str(corpus), model_prefix=str(folder / "made"), vocab_size=60, model_type="bpe", minloglevel=2
    )
    (folder / "made.model").rename(folder / name)
    (folder / "made.vocab").unlink()
    corpus.unlink()
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
    return [model.id_to_piece(index) for index in range(3, model.get_piece_size())]


def make_marian(folder: Path, ends: float) -> None:
    """An OPUS-MT model as Hugging Face distributes it. ``ends`` is added to the logit of ``</s>``."""
    folder.mkdir()
    pieces = _subwords(folder, "source.spm")
    (folder / "target.spm").write_bytes((folder / "source.spm").read_bytes())
    vocabulary = {token: index for index, token in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    with quiet_transformers() as transformers:
        files = (str(folder / name) for name in ("source.spm", "target.spm", "vocab.json"))
        transformers.MarianTokenizer(*files, source_lang="en", target_lang="pt").save_pretrained(folder)
        pad = vocabulary["<pad>"]
        symbols = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": 0}
        config = transformers.MarianConfig(vocab_size=len(vocabulary), **SIZES, **symbols)
        torch.manual_seed(0)
        model = transformers.MarianMTModel(config)
        # a trained model gives them no probability
        model.final_logits_bias[0, [vocabulary["<unk>"], pad]] = -1e4
        model.final_logits_bias[0, 0] = ends
        model.save_pretrained(folder)


def make_m2m100(folder: Path) -> None:
    """A multilingual model whose tokenizer knows the 100 languages of M2M100; the converter counts on as many made-up words."""
    folder.mkdir()
    pieces = _subwords(folder, "sentencepiece.bpe.model")
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    with quiet_transformers() as transformers:
        tokenizer = transformers.M2M100Tokenizer(
            str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"), num_madeup_words=100
        )
        tokenizer.save_pretrained(folder)
        symbols = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
        config = transformers.M2M100Config(vocab_size=len(tokens) + len(tokenizer.lang_token_to_id), **SIZES, **symbols)
        torch.manual_seed(0)
        transformers.M2M100ForConditionalGeneration(config).save_pretrained(folder)


def convert(source: Path, folder: Path, *tokenizer_files: str) -> None:
    """Convert a folder of transformers with the converter of CTranslate2.

    With transformers 5 the converter replaces the languages of M2M100 by madeupword0 ...; they are put back in their order.
    """
    from ctranslate2.converters import TransformersConverter

    with warnings.catch_warnings(), quiet_transformers() as transformers, contextlib.redirect_stderr(io.StringIO()):
        TransformersConverter(str(source), copy_files=list(tokenizer_files)).convert(str(folder))
        languages = getattr(transformers.AutoTokenizer.from_pretrained(str(source)), "lang_token_to_id", {})
    tokens = json.loads((folder / "shared_vocabulary.json").read_text())
    if languages:
        tokens[-len(languages) :] = languages
        (folder / "shared_vocabulary.json").write_text(json.dumps(tokens))
