"""The model ``clear_hf``: any encoder of transformers with pooling, a projection head and the criterions' key encoders."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from fairseq.models import FairseqEncoderModel, register_model, register_model_architecture
from torch import Tensor, nn

from fairseq_clear.errors import UserError
from fairseq_clear.files import read_json
from fairseq_clear.lifecycle import Needs
from fairseq_clear.models.architectures import DEFAULTS, add_contrastive_flags
from fairseq_clear.models.hf_encoder import HfEncoder
from fairseq_clear.models.hf_source import CONFIG, build_source, read_source, transformers_for
from fairseq_clear.models.pretrained_encoder import STOCK_POOLING, assign, start_from_encoder
from fairseq_clear.models.state_dicts import HF_PARTS
from fairseq_clear.models.text_model import TextModel
from fairseq_clear.patches.compatibility import forget_tpu
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.sentence_folders import read_modules
from fairseq_clear.text.tokenizers import HfTokenizer, Tokenizer
from fairseq_clear.text.vocabulary import read_hf_tokenizer

SIZES = ("encoder_layers", "encoder_embed_dim", "encoder_attention_heads")
# Settings of the configuration of transformers that the vocabulary decides -> the symbol with that id.
IDS = {
    "pad_token_id": "<pad>",
    "bos_token_id": "<s>",
    "cls_token_id": "<s>",
    "eos_token_id": "</s>",
    "sep_token_id": "</s>",
}


@register_model("clear_hf")
class ClearHfModel(TextModel, FairseqEncoderModel):
    """A model of transformers that also maps texts to vectors, see TextModel.

    ``args.hf_encoder`` describes the encoder, so that a checkpoint is loaded without the folder that it started from.
    """

    stock_parts = HF_PARTS

    def __init__(self, args: Any, encoder: HfEncoder) -> None:
        super().__init__(encoder)
        self.args = args
        self.add_parts(encoder.dictionary.pad())

    @staticmethod
    def add_args(parser: argparse.ArgumentParser) -> None:
        """Declare the flags of this model."""
        add = parser.add_argument
        add(
            "--encoder-from",
            metavar="FOLDER_OR_CHECKPOINT",
            help="start from a local Hugging Face or sentence-transformers folder, or from a checkpoint of clear_hf: takes the "
            "architecture, the weights and the pooling from it",
        )
        add(
            "--encoder-config",
            metavar="FILE.json",
            help="start from random weights, with the architecture of a config.json of transformers",
        )
        add("--attn-implementation", metavar="NAME", help="of transformers: eager, sdpa, ... (default: its choice)")
        add("--dropout", type=float, metavar="P", help="of hidden states (default: the configuration's)")
        add("--attention-dropout", type=float, metavar="P", help="of attention weights (default: the configuration's)")
        add_contrastive_flags(parser)

    @classmethod
    def check_run(cls, cfg: Any) -> None:
        """Resolve ``encoder_from`` of a hydra configuration; on a command line the architecture has done so.

        Raises:
            UserError: no encoder is given, or it cannot be read; or the task or criterion does not train such models.
        """
        task, criterion = cfg.task._name, cfg.criterion._name
        if task != "clear_lm" or criterion.startswith("sentence_"):
            raise UserError(
                f"--arch clear_hf: is not trained by --task {task} --criterion {criterion}; give --task clear_lm, with "
                "--contrastive-weight 0 for masked language modelling alone"
            )
        if not str(backend := cfg.distributed_training.ddp_backend).endswith(("ddp", "no_c10d")):
            raise UserError(
                f"--ddp-backend {backend}: divides fairseq's own layers, which --arch clear_hf does not have; give pytorch_ddp"
            )
        resolve_encoder(cfg.model, cfg.checkpoint, getattr(cfg.task, "allow_change", None) or "")

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "ClearHfModel":
        """Load or build the encoder, and the parts around it.

        Raises:
            UserError: see ``read_source``; or the data have another tokenizer, or longer texts than the encoder reads.
        """
        dictionary, folder = task.source_dictionary, getattr(task, "folder", None)
        source_folder = getattr(args, "encoder_from", None)
        ids = torch.arange(len(dictionary))
        tokenizer = None if folder is None else load_tokenizer(Path(folder))
        if isinstance(tokenizer, HfTokenizer):
            ids = torch.tensor([tokenizer.ids().get(symbol, -1) for symbol in dictionary.symbols])
        settings = {name: getattr(args, name, None) for name in ("dropout", "attention_dropout", "attn_implementation")}
        if source_folder and not getattr(args, "hf_encoder", None):  # a checkpoint describes its encoder
            source = read_source(Path(source_folder), settings)
            _check_tokenizer(Path(source_folder), tokenizer)
        elif not getattr(args, "hf_encoder", None):
            raise UserError(
                "--arch clear_hf: give --encoder-from FOLDER, or --encoder-config FILE.json for random weights"
            )
        else:
            if getattr(args, "encoder_config", None):  # its file may not know the vocabulary
                own = {name: int(ids[dictionary.index(symbol)]) for name, symbol in IDS.items()}
                if "vocab_size" not in json.loads(args.hf_encoder)["config"]:
                    own["vocab_size"] = int(ids.max()) + 1
                settings["ids"] = own
            source = build_source(args.hf_encoder, settings)
        config = source.base.config
        assign(args, {"hf_encoder": source.describe()})
        deleted = getattr(args, "hf_deleted", None)
        if deleted is None:
            chain = getattr(task, "chain", None)
            deleted = chain is not None and chain.writes_deleted
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads")
        with transformers_for(config.model_type):
            encoder = HfEncoder(dictionary, source, None if folder is None else ids, bool(deleted))
            sizes = {ours: int(getattr(config, name)) for ours, name in zip(SIZES, names, strict=True)}
        assign(args, {**sizes, "hf_deleted": bool(deleted), "max_positions": encoder.max_positions()})
        longest = getattr(getattr(task, "cfg", None), "tokens_per_sample", 0) or 0
        if longest > encoder.max_positions():
            raise UserError(
                f"--tokens-per-sample {longest}: the encoder reads at most {encoder.max_positions()} tokens; give that or fewer"
            )
        return cls(args, encoder)

    @property
    def backbone(self) -> nn.Module:
        """See TextModel."""
        return self.encoder.backbone

    def mlm_logits(self, states: Tensor) -> Tensor:
        """See TextModel."""
        return self.encoder.mlm_logits(states)

    def complete(self, needs: Needs) -> None:
        """See TextModel; also check the encoder.

        Raises:
            UserError: the recipe has a masked language model and the encoder no head for it; or there is nothing for --compile
                to compile; or see ``HfEncoder.check``.
        """
        backbone: Any = self.backbone
        if self.args.compile and not len(backbone.layers):
            raise UserError(
                "--compile: the blocks of this encoder share their weights, and stay as they are; leave it out"
            )
        self.encoder.check()
        super().complete(needs)

    def unused(self, needs: Needs) -> list[nn.Parameter]:
        """Return what one backward pass does not reach: a pooler, separate weights for global attention, a last norm."""

        def outputs(states: list[Tensor], tokens: Tensor) -> list[Tensor]:
            return [self.pooled(states, tokens), *([self.mlm_logits(states[-1][0])] if needs.mlm else [])]

        reached = self._reached(outputs) | {id(parameter) for parameter in self.projection_head.parameters()}
        return [one for one in self.parameters() if one.requires_grad and id(one) not in reached]

    def lowest(self, layers: int) -> list[nn.Parameter]:
        """See TextModel; UserError if the blocks share their weights."""
        blocks = self.encoder.backbone.layers
        if layers > 1 and not len(blocks):
            raise UserError(f"--frozen-layers {layers}: the blocks of this encoder share their weights; give 0 or 1")
        # families differ in where parts outside of the blocks belong: a norm or a convolution, before or after them
        is_all = layers > len(blocks) > 0
        reached = self._reached(lambda states, _: [states[layers - 1 - is_all]])
        reached |= {id(parameter) for parameter in blocks[-1].parameters()} if is_all else set()
        return [parameter for parameter in self.backbone.parameters() if id(parameter) in reached]

    def _reached(self, outputs: Callable[[list[Tensor], Tensor], list[Tensor]]) -> set[int]:
        """Return the ids of the parameters of which outputs depend, computed from the hidden states and tokens of a text."""
        found, tokens = [one for one in self.parameters() if one.requires_grad], self.encoder.sample()
        was_training = self.training
        self.eval()
        with transformers_for(self.encoder.backbone.model.config.model_type):
            total = torch.stack(
                [one.float().square().sum() for one in outputs(self.hidden_states(tokens), tokens)]
            ).sum()
        self.train(was_training)
        if not total.requires_grad:  # --frozen-layers may freeze all
            return set()
        gradients = torch.autograd.grad(total, found, allow_unused=True)
        return {id(one) for one, gradient in zip(found, gradients, strict=True) if gradient is not None}


def _check_tokenizer(folder: Path, tokenizer: Tokenizer | None) -> None:
    """UserError unless the data have the tokenizer of the encoder; a folder without a tokenizer is not compared."""
    try:
        theirs = read_hf_tokenizer(folder).ids()
    except UserError:
        return
    ours = tokenizer.ids() if isinstance(tokenizer, HfTokenizer) else None
    if ours is None or not ours.items() <= theirs.items():
        raise UserError(
            f"--encoder-from {folder}: the data have another tokenizer; prepare the text with --tokenizer-dir {folder}"
        )


def resolve_encoder(model: Any, checkpoint: Any, allowed: str = "") -> None:
    """Resolve ``--encoder-from`` and ``--encoder-config``, in place.

    A checkpoint becomes ``--finetune-from-model``, see ``start_from_encoder``. Of a folder of transformers, the pooling and the
    settings of vectors are taken; ``build_model`` loads its weights.

    Raises:
        UserError: both are given, or one cannot be read.
    """
    source, config = getattr(model, "encoder_from", None), getattr(model, "encoder_config", None)
    if source and config:
        raise UserError(
            f"--encoder-config {config}: --encoder-from {source} has a configuration; leave one of the two out"
        )
    if config:
        described = json.dumps({"config": read_json(Path(config), kind=dict), "head": True, "pooler": False})
        assign(model, {"hf_encoder": described, "pooling": getattr(model, "pooling", None) or STOCK_POOLING})
    elif source and (Path(source) / CONFIG).is_file():
        given = getattr(model, "pooling", None)
        pooling, settings = read_modules(Path(source), ignore_mode=given is not None)
        assign(model, {"pooling": given or pooling or STOCK_POOLING, "sentence_settings": asdict(settings)})
    elif source:
        start_from_encoder(model, checkpoint, allowed)


@register_model_architecture("clear_hf", "clear_hf")
def set_hf_defaults(args: Any) -> None:
    """Set the default of every setting that ``args`` lacks, in place."""
    if isinstance(args, argparse.Namespace) and hasattr(args, "finetune_from_model"):  # a command line
        resolve_encoder(args, args, getattr(args, "allow_change", ""))
    for name, value in DEFAULTS.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    forget_tpu(args)
