"""The model ``clear_roberta``: RoBERTa with pooling, a projection head and, if the criterion needs one, a key encoder."""

import argparse
from typing import Any

from fairseq.models import register_model
from fairseq.models.roberta import RobertaModel
from torch import Tensor, nn

from fairseq_clear.errors import UserError
from fairseq_clear.lifecycle import Needs
from fairseq_clear.models.architectures import add_model_flags, register_architectures
from fairseq_clear.models.encoder_stack import adapt_encoder
from fairseq_clear.models.pretrained_encoder import start_from_encoder
from fairseq_clear.models.text_model import STOCK_TASKS, TextModel
from fairseq_clear.modules.pooling import needs_all_layers


@register_model("clear_roberta")
class ClearRobertaModel(TextModel, RobertaModel):
    """RobertaModel that also maps texts to vectors; sentence_prediction and hub code can use it as RobertaModel."""

    def __init__(self, args: Any, encoder: Any) -> None:
        super().__init__(args, encoder)
        adapt_encoder(encoder, eps=args.layer_norm_eps, segments=args.segments, window=args.attention_window)
        self.add_parts(encoder.dictionary.pad())

    @property
    def backbone(self) -> nn.Module:
        """See TextModel."""
        return self.encoder.sentence_encoder

    def mlm_logits(self, states: Tensor) -> Tensor:
        """See TextModel."""
        return self.encoder.output_layer(states)

    def stock_forward(self, tokens: Tensor, **options: Any) -> tuple[Tensor, dict[str, Any]]:
        """See TextModel."""
        return RobertaModel.forward(self, tokens, **options)

    @staticmethod
    def add_args(parser: argparse.ArgumentParser) -> None:
        """Declare RoBERTa's flags and this model's."""
        RobertaModel.add_args(parser)
        add_model_flags(parser)

    @classmethod
    def check_run(cls, cfg: Any) -> None:
        """Resolve ``encoder_from`` of a hydra configuration; on a command line ``set_defaults`` has done so.

        Raises:
            UserError: see ``start_from_encoder``; or stock fairseq's task or criterion does not train such models.
        """
        task, criterion = cfg.task._name, cfg.criterion._name
        if task == "language_modeling":
            raise UserError(f"--task {task}: {cfg.model._name} reads a text in both directions; give --task masked_lm")
        for flag in ("compile", "encode_chunk_size"):
            if getattr(cfg.model, flag, False) and task in STOCK_TASKS:
                raise UserError(f"--{flag.replace('_', '-')}: has no effect with --task {task}; leave it out")
        for flag in ("quant_noise_pq", "quant_noise_scalar"):  # it changes the weights before each pass of the encoder
            if getattr(cfg.model, flag, 0) and task not in STOCK_TASKS:
                what = "makes wrong gradients if the encoder reads several batches in an update"
                raise UserError(f"--{flag.replace('_', '-')}: {what}; leave it out, or give --task masked_lm")
        if criterion.startswith("sentence_") and not task.startswith("sentence_"):
            raise UserError(f"--criterion {criterion}: --task {task} reads no labels; give --task {criterion}")
        allowed = getattr(cfg.task, "allow_change", None) or ""
        start_from_encoder(cfg.model, cfg.checkpoint, allowed)
        # layer drop removes layers from the hidden states while training
        pooling = str(getattr(cfg.model, "pooling", "cls"))
        if getattr(cfg.model, "encoder_layerdrop", 0) and needs_all_layers(pooling):
            raise UserError(f"--pooling {pooling}: --encoder-layerdrop may drop its layers; leave one of the two out")
        if getattr(cfg.model, "encoder_layerdrop", 0):  # or pytorch_ddp waits for layers that another worker left out
            cfg.distributed_training.find_unused_parameters = True

    def unused(self, needs: Needs) -> list[nn.Parameter]:
        """See TextModel."""
        if needs.mlm:
            return []
        head = self.encoder.lm_head
        encoder = self.encoder.sentence_encoder
        found = [*head.dense.parameters(), *head.layer_norm.parameters(), head.bias]
        found += [head.weight] * (head.weight is not encoder.embed_tokens.weight)
        if self.args.pooling.startswith("layer:"):
            above = int(self.args.pooling.partition(":")[2])
            # the last state is behind the last LayerNorm
            norm = [encoder.layer_norm] * (encoder.layer_norm is not None and above < self.args.encoder_layers)
            found += [p for part in (*[*encoder.layers.children()][above:], *norm) for p in part.parameters()]
        return found

    def lowest(self, layers: int) -> list[nn.Parameter]:
        """See TextModel."""
        encoder = self.encoder.sentence_encoder
        # children: an index of the list of --encoder-layerdrop finds nothing
        above = [*encoder.layers.children()][layers - 1 :] + [encoder.layer_norm] * (encoder.layer_norm is not None)
        trained = {id(parameter) for module in above for parameter in module.parameters()}
        return [parameter for parameter in self.backbone.parameters() if id(parameter) not in trained]


register_architectures()
