"""RoBERTa with a pooling and a projection head: the encoder of every point of the grid."""

import argparse
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from fairseq import modules as fairseq_modules
from fairseq.models import register_model
from fairseq.models.roberta import RobertaModel
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor, nn

from fairseq_clear.errors import UserError
from fairseq_clear.models.flags import add_model_flags
from fairseq_clear.models.loading import complete_copies, fit_state_dict
from fairseq_clear.models.longformer import exclude_from_compiling, limit_attention
from fairseq_clear.models.segments import adapt_encoder
from fairseq_clear.models.stack import ask_once
from fairseq_clear.modules.chunking import Parts, check_chunk_size, trim_padding
from fairseq_clear.modules.frozen_encoder import FrozenEncoder, squared_distance
from fairseq_clear.modules.hidden_states import compile_blocks, hidden_states
from fairseq_clear.modules.key_queue import KeyQueue
from fairseq_clear.modules.momentum_encoder import MomentumEncoder
from fairseq_clear.modules.pooling import needs_all_layers, parse_pooling, pool
from fairseq_clear.modules.projection import ProjectionHead

logger = logging.getLogger(__name__)


@register_model("clear_roberta")
class ClearRobertaModel(RobertaModel):
    """RobertaModel that also maps texts to vectors z = g(pool(f(text))), CLEAR section 3.1.

    Without ``views`` it is RobertaModel, so that masked_lm, sentence_prediction and hub code use it as they use RoBERTa.
    """

    def __init__(self, args: Any, encoder: nn.Module) -> None:
        super().__init__(args, encoder)
        self.padding_idx = encoder.dictionary.pad()
        adapt_encoder(encoder, args.layer_norm_eps, args.segments)
        limit_attention(encoder, args.attention_window)
        ask_once(encoder)
        check_chunk_size(args.encode_chunk_size)
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
        self.key_encoder: MomentumEncoder | None = None
        self.key_queue: KeyQueue | None = None

    @staticmethod
    def add_args(parser: argparse.ArgumentParser) -> None:
        """RoBERTa's flags and ours."""
        RobertaModel.add_args(parser)
        add_model_flags(parser)

    def forward(
        self,
        src_tokens: Tensor | None = None,
        views: Tensor | None = None,
        target: Tensor | None = None,
        view_target: Tensor | None = None,
        guided: Tensor | None = None,
        guide_draw: Tensor | None = None,
        key_texts: Tensor | None = None,
        text_lengths: Sequence[int] | None = None,
        view_lengths: Sequence[int] | None = None,
        guided_lengths: Sequence[int] | None = None,
        key_lengths: Sequence[int] | None = None,
        with_distance: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """One call does everything a micro-batch needs, so that DistributedDataParallel sees one forward pass.

        Args:
            src_tokens: (B, T) for the MLM head or as RobertaModel takes them; None for none.
            views: (R, L) texts to embed, padded on the right by themselves; None for none.
            target: (B, T) MLM targets, padding where nothing is predicted: the MLM loss is computed part by part, as it must
                be with ``--encode-chunk-size`` and is better with texts of mixed length.
            view_target: (N, T) MLM targets of the first N views, which are masked: one pass predicts and embeds them.
            guided: (G, T) texts for the guide, padded as views.
            guide_draw: (G,) in [0, 1), which of the guide's layers to take for each text; None takes all.
            key_texts: (K, T) texts for the momentum encoder, padded as views.
            text_lengths, view_lengths, guided_lengths, key_lengths: numbers of tokens of each of them (of ``src_tokens``:
                read with ``target``), which lets texts of like length be encoded together, and spares the host the wait for
                the device to look for padding.
            with_distance: also measure how far the encoder is from the guide's weights.
            kwargs: as RobertaModel.forward.

        Returns:
            What RobertaModel returns for ``src_tokens`` (None without), and a dictionary with ``projections`` (R, D) if there
            are views, ``guides`` (G, L, D) and ``keys`` (K, D) if there are texts for them, ``distance`` (squared, a scalar)
            if asked for, and ``mlm_loss`` (sum in nats) if there is a ``target`` or ``view_target``.
        """
        x, extra = self._predict(src_tokens, target, text_lengths, kwargs)
        if views is not None:
            extra |= self._embed_views(views, view_lengths, view_target)
        if guided is not None:
            extra["guides"] = self._guide(guided, guided_lengths, guide_draw)
        if key_texts is not None:
            extra["keys"] = self._keys(key_texts, key_lengths)
        if with_distance:
            assert self.guide is not None
            encoder = self.encoder.sentence_encoder
            extra["distance"] = squared_distance(encoder.parameters(), self.guide.encoder.parameters())
        return x, extra

    def _predict(
        self, tokens: Tensor | None, target: Tensor | None, lengths: Sequence[int] | None, options: dict[str, Any]
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """The MLM head's output, or its loss where there is a target; nothing of no tokens."""
        if tokens is None:
            return None, {}
        if target is None:
            output: tuple[Tensor, dict[str, Any]] = super().forward(tokens, **options)
            return output
        losses = self._parts(tokens, lengths).map(self._mlm_loss, target)
        return None, {"mlm_loss": torch.stack(losses).sum()}

    def _parts(self, tokens: Tensor, lengths: Sequence[int] | None, *, trained: bool = True) -> Parts:
        return Parts(tokens, self.padding_idx, lengths, self.args.encode_chunk_size, recompute=trained)

    def _embed_views(self, views: Tensor, lengths: Sequence[int] | None, target: Tensor | None) -> dict[str, Any]:
        """Projections of the views, and the MLM loss of those that are masked."""
        parts = self._parts(views, lengths)
        if target is None:
            return {"projections": self.projection_head(parts.in_order(parts.map(self._pooled)))}
        # the other views have nothing to predict
        missing = (0, views.shape[1] - target.shape[1], 0, views.shape[0] - target.shape[0])
        both = parts.map(self._embed_and_predict, F.pad(target, missing, value=self.padding_idx))
        return {
            "projections": self.projection_head(parts.in_order([vectors for vectors, _ in both])),
            "mlm_loss": torch.stack([loss for _, loss in both]).sum(),
        }

    def _guide(self, tokens: Tensor, lengths: Sequence[int] | None, draw: Tensor | None) -> Tensor:
        """f(h_{i,k}), with gradient for the projection head alone."""
        assert self.guide is not None
        parts = self._parts(tokens, lengths, trained=False)
        views = parts.in_order(parts.map(partial(self.guide, padding=self.padding_idx)))  # (G, L, D)
        if draw is not None:
            layer = (draw * views.shape[1]).long().clamp(max=views.shape[1] - 1)  # (G,)
            views = views.gather(1, layer.view(-1, 1, 1).expand(-1, 1, views.shape[2]))  # (G, 1, D)
        projected: Tensor = self.projection_head(views)
        return projected

    def _keys(self, tokens: Tensor, lengths: Sequence[int] | None) -> Tensor:
        """Keys without gradient, computed in the precision of the query encoder."""
        assert self.key_encoder is not None
        dtype = self.encoder.sentence_encoder.embed_tokens.weight.dtype
        parts = self._parts(tokens, lengths, trained=False)
        return parts.in_order(parts.map(partial(self.key_encoder, padding=self.padding_idx, dtype=dtype)))

    def add_key_encoder(self, key_encoder: MomentumEncoder, key_queue: KeyQueue) -> None:
        """Hold MoCo's key encoder and the queue of its keys."""
        self.key_encoder, self.key_queue = key_encoder, key_queue

    def after_update(self, *, overflowed: bool = False) -> None:
        """Let the key encoder follow; call once per optimizer update.

        Args:
            overflowed: the optimizer made no step: the key encoder stays, and the queue gives back the keys of this update.
        """
        if self.key_encoder is None or self.key_queue is None:
            return
        if overflowed:
            self.key_queue.undo()
            return
        self.key_queue.confirm()
        self.key_encoder.step(self.encoder.sentence_encoder, self.projection_head)

    def add_guide(self, guide: FrozenEncoder) -> None:
        """Hold a copy of the encoder as it is when training begins."""
        self.guide = guide

    def compile_encoders(self, **options: Any) -> None:
        """``torch.compile`` the blocks of every encoder there is; options are its own."""
        if getattr(self.args, "checkpoint_activations", False):
            raise UserError("--compile: leave out --checkpoint-activations; --encode-chunk-size saves memory too")
        exclude_from_compiling()
        compile_blocks(self.encoder.sentence_encoder, **options)
        if self.guide is not None:
            compile_blocks(self.guide.encoder, **options)
        if self.key_encoder is not None:
            self.key_encoder.compile_blocks(**options)

    def begin_training(self) -> None:
        """What the encoder is now, after a checkpoint was read and before the first update, is where training starts from."""
        if self.guide is not None:
            self.guide.start_from(self.encoder.sentence_encoder)
        if self.key_encoder is not None and self.key_queue is not None:
            self.key_encoder.start_from(self.encoder.sentence_encoder, self.projection_head)
            self.key_queue.clear()

    def embed(self, tokens: Tensor, pooling: str | None = None) -> Tensor:
        """Text vectors before the projection head, which is what inference uses.

        Args:
            tokens: (B, T), padded on the right.
            pooling: another one than the model's.

        Returns:
            (B, encoder_embed_dim).
        """
        return self._pooled(trim_padding(tokens, self.padding_idx), pooling)

    def _pooled(self, tokens: Tensor, pooling: str | None = None, lengths: Sequence[int] = ()) -> Tensor:
        name = pooling or self.args.pooling
        states = self.hidden_states(tokens, needs_all_layers(name), lengths)
        return pool(name, states, tokens.ne(self.padding_idx))

    def hidden_states(self, tokens: Tensor, every_layer: bool = True, lengths: Sequence[int] = ()) -> list[Tensor]:
        """Hidden states (B, T, D) of the embeddings and of each block, or of the last block alone.

        Args:
            tokens: (B, T), padded on the right.
            every_layer: False for the last alone.
            lengths: of the rows, if the host knows them.
        """
        return hidden_states(self.encoder.sentence_encoder, tokens, every_layer, lengths)

    def _mlm_loss(self, tokens: Tensor, target: Tensor, lengths: Sequence[int]) -> Tensor:
        return self._prediction_loss(self.hidden_states(tokens, every_layer=False, lengths=lengths)[-1], target)

    def _embed_and_predict(self, tokens: Tensor, target: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Text vectors and summed MLM loss of one pass."""
        states = self.hidden_states(tokens, needs_all_layers(self.args.pooling), lengths)
        loss = self._prediction_loss(states[-1], target)
        return pool(self.args.pooling, states, tokens.ne(self.padding_idx)), loss

    def _prediction_loss(self, states: Tensor, target: Tensor) -> Tensor:
        """Of the MLM head on hidden states (B, T, D), in nats, summed over what is masked."""
        is_masked = target.ne(self.padding_idx)
        logits = self.encoder.output_layer(states, masked_tokens=is_masked)
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
        nn.ParameterList(unused).requires_grad_(False)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Accept checkpoints of stock RoBERTa and of every other point of the grid; see models.loading."""
        prefix = name + "." if name else ""
        complete_copies(state_dict, self.state_dict(), prefix)
        super().upgrade_state_dict_named(state_dict, name)
        fit_state_dict(state_dict, self.state_dict(), prefix)
