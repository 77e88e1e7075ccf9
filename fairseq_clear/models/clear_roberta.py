"""RoBERTa with a pooling and a projection head: the encoder of every point of the grid."""

import argparse
import logging
from typing import Any

import torch
from fairseq import modules as fairseq_modules
from fairseq.models import register_model
from fairseq.models.roberta import RobertaModel
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor, nn

from fairseq_clear.errors import UserError
from fairseq_clear.models.loading import complete_copies, fit_state_dict
from fairseq_clear.models.segments import adapt_encoder
from fairseq_clear.modules.chunking import map_chunks, row_chunks, trim_padding
from fairseq_clear.modules.frozen_encoder import FrozenEncoder, squared_distance
from fairseq_clear.modules.hidden_states import hidden_states
from fairseq_clear.modules.pooling import needs_all_layers, parse_pooling, pool
from fairseq_clear.modules.projection import ACTIVATIONS, ProjectionHead

logger = logging.getLogger(__name__)

KEY_ENCODERS = ("shared", "momentum", "frozen")


@register_model("clear_roberta")
class ClearRobertaModel(RobertaModel):
    """RobertaModel that also maps texts to vectors z = g(pool(f(text))), CLEAR section 3.1.

    Without ``views`` it is RobertaModel, so that masked_lm, sentence_prediction and hub code use it as they use RoBERTa.
    """

    def __init__(self, args: Any, encoder: nn.Module) -> None:
        super().__init__(args, encoder)
        self.padding_idx = encoder.dictionary.pad()
        adapt_encoder(encoder, args.layer_norm_eps, args.segments)
        parse_pooling(args.pooling, args.encoder_layers)
        if args.pooling == "wk":
            raise UserError("--pooling wk: SBERT-WK is for inference; train with another pooling")
        self.projection_head = ProjectionHead(
            args.encoder_embed_dim,
            args.projection_hidden_dim or args.encoder_embed_dim,
            args.projection_dim or args.encoder_embed_dim,
            args.projection_layers,
            args.projection_activation,
            args.projection_activate_last,
        )
        self.projection_head.apply(init_bert_params)
        # Added by the criterion that needs one, before the weights are loaded.
        self.guide: FrozenEncoder | None = None

    @staticmethod
    def add_args(parser: argparse.ArgumentParser) -> None:
        """RoBERTa's flags and ours; their defaults are set by the architectures."""
        RobertaModel.add_args(parser)
        parser.add_argument(
            "--pooling",
            metavar="NAME",
            help="text vector: cls, mean, max, first-last (mean of block 1 and the last), last2, or layer:N (default: cls, "
            "as CLEAR; short pretraining from scratch learns with mean and hardly with cls)",
        )
        parser.add_argument(
            "--projection-layers", type=int, metavar="N", help="linear layers of the projection head, 0 for none (2)"
        )
        parser.add_argument(
            "--projection-hidden-dim", type=int, metavar="D", help="width between them (0: that of the encoder)"
        )
        parser.add_argument("--projection-dim", type=int, metavar="D", help="width of z (128; 0: that of the encoder)")
        parser.add_argument("--projection-activation", choices=sorted(ACTIVATIONS), help="between the layers (relu)")
        parser.add_argument(
            "--projection-activate-last", action="store_true", help="activation after the last layer too (SimCSE: tanh)"
        )
        parser.add_argument(
            "--key-encoder",
            choices=KEY_ENCODERS,
            help="what encodes the positives; the criterion decides, another value than its own is an error",
        )
        parser.add_argument("--layer-norm-eps", type=float, metavar="EPS", help="of LayerNorm (1e-5; BERT's: 1e-12)")
        parser.add_argument("--segments", type=int, metavar="N", help="2: BERT's embeddings of two segments (1: none)")
        parser.add_argument(
            "--encode-chunk-size",
            type=int,
            metavar="ROWS",
            help="encode this many rows at a time and recompute them in the backward pass: memory is bounded by one chunk "
            "while all rows of the batch are contrasted (0: all at once)",
        )

    def forward(
        self,
        src_tokens: Tensor | None = None,
        views: Tensor | None = None,
        target: Tensor | None = None,
        guided: Tensor | None = None,
        guide_draw: Tensor | None = None,
        with_distance: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """One call does everything a micro-batch needs, so that DistributedDataParallel sees one forward pass.

        Args:
            src_tokens: (B, T) for the MLM head or as RobertaModel takes them; None for none.
            views: (R, L) texts to embed, padded on the right by themselves; None for none.
            target: (B, T) MLM targets, padding where nothing is predicted; read with ``--encode-chunk-size`` alone, where
                the MLM loss must be computed chunk by chunk.
            guided: (G, T) texts for the guide, padded as views.
            guide_draw: (G,) in [0, 1), which of the guide's layers to take for each text; None takes all.
            with_distance: also measure how far the encoder is from the guide's weights.
            kwargs: as RobertaModel.forward.

        Returns:
            What RobertaModel returns for ``src_tokens`` (None without), and a dictionary with ``projections`` (R, D) if there
            are views, ``guides`` (G, L, D) if there are texts for the guide, ``distance`` (squared, a scalar) if asked for,
            and ``mlm_loss`` (sum in nats) if chunks were used.
        """
        chunk_size = self.args.encode_chunk_size
        extra: dict[str, Any] = {}
        x = None
        if src_tokens is not None and target is not None and chunk_size:
            losses = map_chunks(self._mlm_loss, src_tokens.shape[0], chunk_size, src_tokens, target)
            extra["mlm_loss"] = torch.stack(losses).sum()
        elif src_tokens is not None:
            x, extra = super().forward(src_tokens, **kwargs)
        if views is not None:
            size = chunk_size or max(views.shape[0], 1)
            vectors = map_chunks(self.embed, views.shape[0], size, views, recompute=bool(chunk_size))
            extra["projections"] = self.projection_head(torch.cat(vectors))
        if guided is not None:
            extra["guides"] = self._guide(guided, guide_draw, chunk_size)
        if with_distance:
            assert self.guide is not None
            encoder = self.encoder.sentence_encoder
            extra["distance"] = squared_distance(encoder.parameters(), self.guide.encoder.parameters())
        return x, extra

    def _guide(self, tokens: Tensor, draw: Tensor | None, chunk_size: int) -> Tensor:
        """f(h_{i,k}), with gradient for the projection head alone."""
        assert self.guide is not None
        size = chunk_size or max(tokens.shape[0], 1)
        chunks = [tokens[rows] for rows in row_chunks(tokens.shape[0], size)]
        views = torch.cat([self.guide(trim_padding(chunk, self.padding_idx), self.padding_idx) for chunk in chunks])
        if draw is not None:
            layer = (draw * views.shape[1]).long().clamp(max=views.shape[1] - 1)  # (G,)
            views = views.gather(1, layer.view(-1, 1, 1).expand(-1, 1, views.shape[2]))  # (G, 1, D)
        projected: Tensor = self.projection_head(views)
        return projected

    def add_guide(self, guide: FrozenEncoder) -> None:
        """Hold a copy of the encoder as it is when training begins."""
        self.guide = guide

    def begin_training(self) -> None:
        """What the encoder is now, after a checkpoint was read and before the first update, is where training starts from."""
        if self.guide is not None:
            self.guide.start_from(self.encoder.sentence_encoder)

    def embed(self, tokens: Tensor, pooling: str | None = None) -> Tensor:
        """Text vectors before the projection head, which is what inference uses.

        Args:
            tokens: (B, T), padded on the right.
            pooling: another one than the model's.

        Returns:
            (B, encoder_embed_dim).
        """
        name = pooling or self.args.pooling
        tokens = trim_padding(tokens, self.padding_idx)
        return pool(name, self.hidden_states(tokens, needs_all_layers(name)), tokens.ne(self.padding_idx))

    def hidden_states(self, tokens: Tensor, every_layer: bool = True) -> list[Tensor]:
        """Hidden states (B, T, D) of the embeddings and of each block, or of the last block alone."""
        return hidden_states(self.encoder.sentence_encoder, tokens, every_layer)

    def _mlm_loss(self, tokens: Tensor, target: Tensor) -> Tensor:
        tokens = trim_padding(tokens, self.padding_idx)
        target = target[:, : tokens.shape[1]]
        is_masked = target.ne(self.padding_idx)
        logits, _ = super().forward(tokens, masked_tokens=is_masked)
        loss: Tensor = fairseq_modules.cross_entropy(logits, target[is_masked], reduction="sum")
        return loss

    def freeze_unused(self, *, mlm: bool, views: bool) -> None:
        """Freeze what a recipe without this part leaves out of the loss: DistributedDataParallel waits for the rest."""
        unused: list[nn.Parameter] = []
        if not mlm:
            head = self.encoder.lm_head
            unused += [*head.dense.parameters(), *head.layer_norm.parameters(), head.bias]
            if self.args.pooling.startswith("layer:"):
                above = int(self.args.pooling.partition(":")[2])
                unused += [p for block in self.encoder.sentence_encoder.layers[above:] for p in block.parameters()]
        if not views:
            unused += list(self.projection_head.parameters())
        for parameter in unused:
            parameter.requires_grad_(False)

    def freeze_lowest(self, layers: int) -> None:
        """Freeze the lowest ``layers`` layers: 1 is layer 0, the embeddings; 2 also the first block, and so on.

        Raises:
            UserError: fewer than 0 or more than there are.
        """
        blocks = self.args.encoder_layers
        if not 0 <= layers <= blocks + 1:
            raise UserError(f"--frozen-layers {layers}: give 0 to {blocks + 1} (the embeddings and {blocks} blocks)")
        encoder = self.encoder.sentence_encoder
        above = {id(parameter) for block in encoder.layers[max(layers - 1, 0) :] for parameter in block.parameters()}
        for parameter in encoder.parameters() if layers else ():
            if id(parameter) not in above and not self._is_final_norm(parameter):
                parameter.requires_grad_(False)

    def _is_final_norm(self, parameter: nn.Parameter) -> bool:
        norm = self.encoder.sentence_encoder.layer_norm
        return norm is not None and any(parameter is own for own in norm.parameters())

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Accept checkpoints of stock RoBERTa and of every other point of the grid; see models.loading."""
        prefix = name + "." if name else ""
        complete_copies(state_dict, self.state_dict(), prefix)
        super().upgrade_state_dict_named(state_dict, name)
        fit_state_dict(state_dict, self.state_dict(), prefix)
