"""An archive as fairseq distributes its WMT19 models: settings as a Namespace, codes, dictionaries."""

from argparse import Namespace
from pathlib import Path

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.tasks.translation import TranslationConfig, TranslationTask

CODES = "t h 9\nth e</w> 8\nc a 7\nca t</w> 6\ns a 5\nsa t</w> 4\nh e</w> 4\n"
SENTENCE = 'The cat\'s & sat "he" sat!'
# by hand: the Moses tokenizer's words, escaped, and the merges of CODES
_WORDS = "T@@ he | cat | &@@ a@@ p@@ o@@ s@@ ;@@ s | &@@ a@@ m@@ p@@ ; | sat"
_QUOTE = "&@@ q@@ u@@ o@@ t@@ ;"
PIECES = f"{_WORDS} | {_QUOTE} | he | {_QUOTE} | sat | !".replace("| ", "").split()


def make_archive(folder: Path, source: str, target: str, seed: int = 0) -> Path:
    """``model.pt`` with random weights, in the format of fairseq 0.8, which has ``args`` and no ``cfg``."""
    folder.mkdir()
    (folder / "bpecodes").write_text(CODES)
    symbols = sorted({*PIECES, *"abcdefghijklmnopqrstuvwxyz", "the", "he@@", ".", ",", "?"})
    for language in (source, target):
        (folder / f"dict.{language}.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols))
    sizes = ("encoder_embed_dim", "encoder_ffn_embed_dim", "decoder_ffn_embed_dim")
    args = Namespace(
        **dict.fromkeys(sizes, 16),
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
        **dict.fromkeys(("max_source_positions", "max_target_positions"), 48),
        arch="transformer_wmt_en_de", task="translation", source_lang=source, target_lang=target, lr=[0.1],
        data="/data/of/someone/else", share_all_embeddings=True, raw_text=False, lazy_load=False, optimizer="adam",
        left_pad_source="True", left_pad_target="False", criterion="label_smoothed_cross_entropy",
        lr_scheduler="inverse_sqrt",
    )  # fmt: skip
    torch.manual_seed(seed)
    torch.save(_state(args, folder), folder / "model.pt")
    return folder


def _state(args: Namespace, folder: Path) -> dict[str, object]:
    filled = Namespace(**vars(args))
    base_architecture(filled)
    dictionary = Dictionary.load(str(folder / f"dict.{args.source_lang}.txt"))
    task = TranslationTask(TranslationConfig(), dictionary, dictionary)
    model = TransformerModel.build_model(filled, task)
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.4
    history = {"criterion_name": "LabelSmoothedCrossEntropyCriterion", "optimizer_name": "FairseqAdam"}
    return {
        "args": args,
        "model": model.state_dict(),
        "optimizer_history": [{**history, "lr_scheduler_state": {"best": 1.0}, "num_updates": 10}],
        "extra_state": {"train_iterator": {"epoch": 3, "iterations_in_epoch": 0}, "val_loss": 1.0},
        "last_optimizer_state": None,
    }
