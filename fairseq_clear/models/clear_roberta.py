"""The model ``clear_roberta``: RoBERTa with pooling, a projection head and, if the criterion needs one, a key encoder."""

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
from fairseq_clear.lifecycle import Needs
from fairseq_clear.models.architectures import add_model_flags, register_architectures
from fairseq_clear.models.encoder_stack import adapt_encoder, exclude_from_compiling
from fairseq_clear.models.pretrained_encoder import start_from_encoder
from fairseq_clear.models.state_dicts import complete_copies, fit_state_dict
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

    Without ``views`` it behaves as RobertaModel, so masked_lm, sentence_prediction and hub code can use it.
    """

    def __init__(self, args: Any, encoder: nn.Module) -> None:
        super().__init__(args, encoder)
        self.padding_idx = encoder.dictionary.pad()
        adapt_encoder(encoder, eps=args.layer_norm_eps, segments=args.segments, window=args.attention_window)
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
        # A criterion that needs one of these attaches it before the weights are loaded; begin_training fills it.
        self.frozen_encoder: FrozenEncoder | None = None
        self.key_encoder: MomentumEncoder | None = None
        self.key_queue: KeyQueue | None = None

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
        if criterion.startswith("sentence_") and not task.startswith("sentence_"):
            raise UserError(f"--criterion {criterion}: --task {task} reads no labels; give --task {criterion}")
        allowed = getattr(cfg.task, "allow_change", None) or ""
        start_from_encoder(cfg.model, cfg.checkpoint, allowed)

    def forward(
        self,
        src_tokens: Tensor | None = None,
        views: Tensor | None = None,
        target: Tensor | None = None,
        view_target: Tensor | None = None,
        frozen_texts: Tensor | None = None,
        layer_draw: Tensor | None = None,
        key_texts: Tensor | None = None,
        text_lengths: Sequence[int] | None = None,
        view_lengths: Sequence[int] | None = None,
        frozen_lengths: Sequence[int] | None = None,
        key_lengths: Sequence[int] | None = None,
        with_distance: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """Compute all outputs for a micro-batch in one call, so that DistributedDataParallel sees one forward pass.

        Args:
            src_tokens: (B, T) input of the MLM head, or any input of RobertaModel; None for none.
            views: (R, L) texts to embed, padded on the right to the longest of them; None for none.
            target: (B, T) MLM targets, padding where nothing is predicted. With it the MLM loss is computed part by part,
                which ``--encode-chunk-size`` needs and which is faster for texts of mixed length.
            view_target: (N, T) MLM targets of the first N views, which are masked: one pass predicts and embeds them.
            frozen_texts: (F, T) texts for the frozen encoder, padded as views.
            layer_draw: (F,) in [0, 1), selects one of its layers for each text; None takes all layers.
            key_texts: (K, T) texts for the momentum encoder, padded as views.
            text_lengths, view_lengths, frozen_lengths, key_lengths: number of tokens of each row (``text_lengths``, of
                ``src_tokens``, is read with ``target`` only). With lengths, texts of similar length are encoded together,
                and the CPU does not synchronise with the GPU to look for padding.
            with_distance: also compute the squared distance between the encoder's and the frozen encoder's weights.
            kwargs: further arguments of RobertaModel.forward.

        Returns:
            The output of RobertaModel for ``src_tokens`` (None without), and a dictionary: ``projections`` (R, D) with
            ``views``, ``layers`` (F, L, D) with ``frozen_texts``, ``keys`` (K, D) with ``key_texts``, ``distance`` (squared, a
            scalar) with ``with_distance``, ``mlm_loss`` (sum in nats) with ``target`` or ``view_target``.
        """
        x, extra = self._predict(src_tokens, target, text_lengths, kwargs)
        if views is not None:
            extra |= self._embed_views(views, view_lengths, view_target)
        if frozen_texts is not None:
            extra["layers"] = self._frozen_layers(frozen_texts, frozen_lengths, layer_draw)
        if key_texts is not None:
            extra["keys"] = self._keys(key_texts, key_lengths)
        if with_distance:
            assert self.frozen_encoder is not None
            encoder = self.encoder.sentence_encoder
            extra["distance"] = squared_distance(encoder.parameters(), self.frozen_encoder.encoder.parameters())
        return x, extra

    def _predict(
        self, tokens: Tensor | None, target: Tensor | None, lengths: Sequence[int] | None, options: dict[str, Any]
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """The MLM head's output, or its loss if there is a target; (None, {}) without tokens."""
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
        """Projections of the views, and the MLM loss of the masked ones."""
        parts = self._parts(views, lengths)
        if target is None:
            return {"projections": self.projection_head(parts.in_order(parts.map(self._pooled)))}
        # the remaining views have nothing to predict
        missing = (0, views.shape[1] - target.shape[1], 0, views.shape[0] - target.shape[0])
        both = parts.map(self._embed_and_predict, F.pad(target, missing, value=self.padding_idx))
        return {
            "projections": self.projection_head(parts.in_order([vectors for vectors, _ in both])),
            "mlm_loss": torch.stack([loss for _, loss in both]).sum(),
        }

    def _frozen_layers(self, tokens: Tensor, lengths: Sequence[int] | None, draw: Tensor | None) -> Tensor:
        """Projected states f(h_{i,k}) of the frozen encoder; only the projection head gets a gradient."""
        assert self.frozen_encoder is not None
        parts = self._parts(tokens, lengths, trained=False)
        states = parts.in_order(parts.map(partial(self.frozen_encoder, padding=self.padding_idx)))  # (F, L, D)
        if draw is not None:
            layer = (draw * states.shape[1]).long().clamp(max=states.shape[1] - 1)  # (F,)
            states = states.gather(1, layer.view(-1, 1, 1).expand(-1, 1, states.shape[2]))  # (F, 1, D)
        projected: Tensor = self.projection_head(states)
        return projected

    def _keys(self, tokens: Tensor, lengths: Sequence[int] | None) -> Tensor:
        """Keys without gradient, computed in the precision of the query encoder."""
        assert self.key_encoder is not None
        dtype = self.encoder.sentence_encoder.embed_tokens.weight.dtype
        parts = self._parts(tokens, lengths, trained=False)
        return parts.in_order(parts.map(partial(self.key_encoder, padding=self.padding_idx, dtype=dtype)))

    def after_update(self, *, overflowed: bool = False) -> None:
        """Update the key encoder towards the encoder; call once per optimizer update.

        Args:
            overflowed: the optimizer made no step. Then the key encoder does not change, and the queue may drop the keys of
                this update (see KeyQueue.undo).
        """
        if self.key_encoder is None or self.key_queue is None:
            return
        if overflowed:
            self.key_queue.undo()
            return
        self.key_queue.confirm()
        self.key_encoder.step(self.encoder.sentence_encoder, self.projection_head)

    def compile_encoders(self, **options: Any) -> None:
        """``torch.compile`` the blocks of every encoder of the model; ``options`` go to ``torch.compile``."""
        if getattr(self.args, "checkpoint_activations", False):
            raise UserError("--compile: leave out --checkpoint-activations; --encode-chunk-size saves memory too")
        exclude_from_compiling()
        compile_blocks(self.encoder.sentence_encoder, **options)
        if self.frozen_encoder is not None:
            compile_blocks(self.frozen_encoder.encoder, **options)
        if self.key_encoder is not None:
            self.key_encoder.compile_blocks(**options)

    def begin_training(self) -> None:
        """Copy the encoder's weights to the frozen and the key encoder; call after loading and before the first update."""
        if self.frozen_encoder is not None:
            self.frozen_encoder.start_from(self.encoder.sentence_encoder)
        if self.key_encoder is not None and self.key_queue is not None:
            self.key_encoder.start_from(self.encoder.sentence_encoder, self.projection_head)
            self.key_queue.clear()

    def embed(self, tokens: Tensor, pooling: str | None = None) -> Tensor:
        """Text vectors before the projection head, as inference uses them.

        Args:
            tokens: (B, T), padded on the right.
            pooling: name of a pooling (default: the model's).

        Returns:
            (B, encoder_embed_dim).
        """
        return self._pooled(trim_padding(tokens, self.padding_idx), pooling)

    def embed_parts(self, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
        """As ``embed``, with the lengths of the rows known: texts of similar length are encoded together, as in training."""
        parts = self._parts(tokens, lengths, trained=False)
        return parts.in_order(parts.map(self._pooled))

    def _pooled(self, tokens: Tensor, pooling: str | None = None, lengths: Sequence[int] = ()) -> Tensor:
        name = pooling or self.args.pooling
        states = self.hidden_states(tokens, needs_all_layers(name), lengths)
        return pool(name, states, tokens.ne(self.padding_idx))

    def hidden_states(self, tokens: Tensor, every_layer: bool = True, lengths: Sequence[int] = ()) -> list[Tensor]:
        """Hidden states (B, T, D) of the embeddings and of each block, or only of the last block.

        Args:
            tokens: (B, T), padded on the right.
            every_layer: False for only the last block.
            lengths: number of tokens of each row; avoids a synchronisation with the GPU.
        """
        return hidden_states(self.encoder.sentence_encoder, tokens, every_layer, lengths)

    def _mlm_loss(self, tokens: Tensor, target: Tensor, lengths: Sequence[int]) -> Tensor:
        return self._prediction_loss(self.hidden_states(tokens, every_layer=False, lengths=lengths)[-1], target)

    def _embed_and_predict(self, tokens: Tensor, target: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Text vectors and summed MLM loss from one pass."""
        states = self.hidden_states(tokens, needs_all_layers(self.args.pooling), lengths)
        loss = self._prediction_loss(states[-1], target)
        return pool(self.args.pooling, states, tokens.ne(self.padding_idx)), loss

    def _prediction_loss(self, states: Tensor, target: Tensor) -> Tensor:
        """MLM loss of hidden states (B, T, D), in nats, summed over the masked tokens."""
        is_masked = target.ne(self.padding_idx)
        logits = self.encoder.output_layer(states, masked_tokens=is_masked)
        loss: Tensor = fairseq_modules.cross_entropy(logits, target[is_masked], reduction="sum")
        return loss

    def complete(self, needs: Needs) -> None:
        """Compile the blocks with ``--compile``, and freeze parameters that the recipe's loss does not use.

        DistributedDataParallel would wait for their gradients.
        """
        unused: list[nn.Parameter] = []
        if not needs.mlm:
            head = self.encoder.lm_head
            unused += [*head.dense.parameters(), *head.layer_norm.parameters(), head.bias]
            if self.args.pooling.startswith("layer:"):
                above = int(self.args.pooling.partition(":")[2])
                unused += [p for block in self.encoder.sentence_encoder.layers[above:] for p in block.parameters()]
        if not needs.views:
            unused += list(self.projection_head.parameters())
        nn.ParameterList(unused).requires_grad_(False)
        if self.args.compile:
            self.compile_encoders()

    def freeze_lowest(self, layers: int) -> None:
        """Freeze the lowest layers of the encoder: 1 freezes the embeddings (layer 0), 2 also the first block, and so on.

        Raises:
            UserError: ``layers`` is negative or greater than the number of layers.
        """
        blocks = self.args.encoder_layers
        if not 0 <= layers <= blocks + 1:
            raise UserError(f"--frozen-layers {layers}: give 0 to {blocks + 1} (the embeddings and {blocks} blocks)")
        if not layers:
            return
        encoder = self.encoder.sentence_encoder
        above = [*encoder.layers[layers - 1 :]] + [encoder.layer_norm] * (encoder.layer_norm is not None)
        trained = {id(parameter) for module in above for parameter in module.parameters()}
        for parameter in encoder.parameters():
            if id(parameter) not in trained:
                parameter.requires_grad_(False)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Accept checkpoints of stock RoBERTa and of every other recipe, see ``state_dicts.fit_state_dict``."""
        prefix = name + "." if name else ""
        complete_copies(state_dict, self.state_dict(), prefix)
        super().upgrade_state_dict_named(state_dict, name)
        fit_state_dict(state_dict, self.state_dict(), prefix)


register_architectures("clear_roberta")
