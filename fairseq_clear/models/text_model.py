"""What every model of the plugin does: embed texts, predict masked tokens, and keep the frozen and the key encoder."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from fairseq import modules as fairseq_modules
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor, nn

from fairseq_clear.errors import UserError
from fairseq_clear.lifecycle import Needs
from fairseq_clear.models.encoder_stack import exclude_from_compiling
from fairseq_clear.models.state_dicts import BACKBONE, TRAINING_ONLY, complete_copies, fit_state_dict
from fairseq_clear.modules.chunking import Parts, trim_padding
from fairseq_clear.modules.frozen_encoder import FrozenEncoder, squared_distance
from fairseq_clear.modules.hidden_states import compile_blocks, hidden_states
from fairseq_clear.modules.key_queue import KeyQueue
from fairseq_clear.modules.momentum_encoder import MomentumEncoder
from fairseq_clear.modules.pooling import needs_all_layers, parse_pooling, pooled_tokens
from fairseq_clear.modules.projection import ProjectionHead

# Tasks of fairseq, which do not call ``TextModel.complete``
STOCK_TASKS = ("masked_lm", "sentence_prediction", "sentence_ranking")


class TextModel(nn.Module):
    """Base of the models, before fairseq's own base in their order of inheritance.

    It maps texts to vectors z = g(pool(f(text))), CLEAR section 3.1. Without ``views`` it behaves as a stock model, so
    masked_lm and hub code can use it. A subclass has the encoder f: ``backbone``, ``mlm_logits``, and ``args`` with
    ``encoder_layers`` and ``encoder_embed_dim``.

    Attributes:
        padding_idx: id of the padding.
        projection_head: g.
        frozen_encoder, key_encoder, key_queue: a criterion that needs one attaches it before the weights are loaded, and
            ``begin`` fills it.
        prompts: see ``leave_out``.
        lost_parts: whether the last checkpoint had one of these parts, and the model did not.
    """

    args: Any
    encoder: Any  # fairseq has no types
    max_positions: Callable[[], int]
    padding_idx: int
    projection_head: ProjectionHead
    frozen_encoder: FrozenEncoder | None
    key_encoder: MomentumEncoder | None
    key_queue: KeyQueue | None
    prompts: Sequence[Sequence[int]]
    lost_parts: bool
    stock_parts: tuple[str, ...] = BACKBONE  # see ``state_dicts.fit_state_dict``

    @property
    def backbone(self) -> nn.Module:
        """The encoder without MLM head, with the interface of fairseq's TransformerEncoder: what its copies are copies of."""
        raise NotImplementedError

    def mlm_logits(self, states: Tensor) -> Tensor:
        """Return the logits of the MLM head, (N, D) -> (N, V), the entries of the dictionary first."""
        raise NotImplementedError

    def stock_forward(self, tokens: Tensor, **options: Any) -> tuple[Tensor, dict[str, Any]]:
        """The forward pass of the stock model."""
        return self.encoder(tokens, **options)

    def add_parts(self, padding: int) -> None:
        """Add what a stock model lacks; called at the end of a subclass's ``__init__``."""
        args = self.args
        self.padding_idx = padding
        parse_pooling(args.pooling, args.encoder_layers)
        if args.pooling == "wk":
            raise UserError("--pooling wk: SBERT-WK is for inference; train with another pooling")
        width = args.encoder_embed_dim
        widths = width, args.projection_hidden_dim or width, args.projection_dim or width
        activation = args.projection_activation, args.projection_activate_last
        self.projection_head = ProjectionHead(*widths, args.projection_layers, *activation)
        self.projection_head.apply(init_bert_params)
        # A task of stock fairseq does not use it, so DistributedDataParallel would wait for its gradients; see ``complete``.
        self.projection_head.requires_grad_(False)
        self.frozen_encoder = self.key_encoder = self.key_queue = None
        self.prompts, self.lost_parts = (), False

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
            src_tokens: (B, T) input of the MLM head, or any input of the stock model; None without an MLM.
            views: (R, L) texts to embed, padded on the right to the longest of them; None without views.
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
            kwargs: further arguments of the stock model's forward.

        Returns:
            The output of the stock model for ``src_tokens`` (None without), and a dictionary: ``projections`` (R, D) with
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
            extra["distance"] = squared_distance(self.backbone.parameters(), self.frozen_encoder.encoder.parameters())
        return x, extra

    def _predict(
        self, tokens: Tensor | None, target: Tensor | None, lengths: Sequence[int] | None, options: dict[str, Any]
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """The MLM head's output, or its loss if there is a target; (None, {}) without tokens."""
        if tokens is None:
            return None, {}
        if target is None:
            return self.stock_forward(tokens, **options)
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
        return self.projection_head(states)

    def _keys(self, tokens: Tensor, lengths: Sequence[int] | None) -> Tensor:
        """Keys without gradient, computed in the precision of the query encoder."""
        assert self.key_encoder is not None
        dtype = next(self.backbone.parameters()).dtype
        parts = self._parts(tokens, lengths, trained=False)
        return parts.in_order(parts.map(partial(self.key_encoder, padding=self.padding_idx, dtype=dtype)))

    def after_update(self, *, overflowed: bool = False) -> None:
        """Update the key encoder towards the encoder; call once per optimizer update.

        If it ``overflowed``, the key encoder does not change, and the queue may drop its keys (see KeyQueue.undo).
        """
        if self.key_encoder is None or self.key_queue is None:
            return
        if overflowed:
            self.key_queue.undo()
            return
        self.key_queue.confirm()
        self.key_encoder.step(self.backbone, self.projection_head)

    def compile_encoders(self, **options: Any) -> None:
        """``torch.compile`` the blocks of every encoder of the model; ``options`` go to ``torch.compile``."""
        exclude_from_compiling()
        compile_blocks(self.backbone, **options)
        if self.frozen_encoder is not None:
            compile_blocks(self.frozen_encoder.encoder, **options)
        if self.key_encoder is not None:
            self.key_encoder.compile_blocks(**options)

    def begin(self) -> None:
        """Copy the encoder's weights to the frozen and the key encoder; call after loading and before the first update."""
        if self.frozen_encoder is not None:
            self.frozen_encoder.start_from(self.backbone)
        if self.key_encoder is not None and self.key_queue is not None:
            self.key_encoder.start_from(self.backbone, self.projection_head)
            self.key_queue.clear()

    def embed(self, tokens: Tensor, pooling: str | None = None, skipped: int = 0) -> Tensor:
        """Text vectors (B, encoder_embed_dim) before the projection head, as inference uses them.

        Args:
            tokens: (B, T), padded on the right.
            pooling: name of a pooling (default: the model's).
            skipped: number of first tokens of each text, of a prompt, that are not pooled.
        """
        return self._pooled(trim_padding(tokens, self.padding_idx), pooling, skipped=skipped)

    def embed_parts(self, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
        """As ``embed``, with the lengths of the rows known: texts of similar length are encoded together, as in training."""
        parts = self._parts(tokens, lengths, trained=False)
        return parts.in_order(parts.map(self._pooled))

    def _pooled(
        self, tokens: Tensor, pooling: str | None = None, lengths: Sequence[int] = (), skipped: int = 0
    ) -> Tensor:
        states = self.hidden_states(tokens, needs_all_layers(pooling or self.args.pooling), lengths)
        return self.pooled(states, tokens, pooling, skipped)

    def leave_out(self, prompts: Sequence[Sequence[int]]) -> None:
        """Do not pool ``<s>`` and these prompts, as ids, in texts that begin with one (``include_prompt: false``)."""
        for part in (self, self.frozen_encoder, self.key_encoder):
            if part is not None:
                part.prompts = prompts

    def pooled(self, states: list[Tensor], tokens: Tensor, pooling: str | None = None, skipped: int = 0) -> Tensor:
        """Pool hidden states of tokens (B, T): (B, encoder_embed_dim); ``pooling`` and ``skipped`` as for ``embed``."""
        is_token = pooled_tokens(tokens, self.padding_idx, self.prompts)
        is_token[:, :skipped] = False
        return parse_pooling(pooling or self.args.pooling)(states, is_token)

    def hidden_states(self, tokens: Tensor, every_layer: bool = True, lengths: Sequence[int] = ()) -> list[Tensor]:
        """Hidden states (B, T, D) of tokens (B, T): of the embeddings and of each block, or only of the last block."""
        return hidden_states(self.backbone, tokens, every_layer, lengths)

    def _mlm_loss(self, tokens: Tensor, target: Tensor, lengths: Sequence[int]) -> Tensor:
        return self._prediction_loss(self.hidden_states(tokens, every_layer=False, lengths=lengths)[-1], target)

    def _embed_and_predict(self, tokens: Tensor, target: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Text vectors and summed MLM loss from one pass."""
        states = self.hidden_states(tokens, needs_all_layers(self.args.pooling), lengths)
        loss = self._prediction_loss(states[-1], target)
        return self.pooled(states, tokens), loss

    def _prediction_loss(self, states: Tensor, target: Tensor) -> Tensor:
        """MLM loss of hidden states (B, T, D), in nats, summed over the masked tokens."""
        is_masked = target.ne(self.padding_idx)
        logits = self.mlm_logits(states[is_masked])
        return fairseq_modules.cross_entropy(logits, target[is_masked], reduction="sum")

    def freeze_lowest(self, layers: int) -> None:
        """Freeze the lowest layers of the encoder: 1 freezes the embeddings (layer 0), 2 also the first block, and so on.

        Raises:
            UserError: ``layers`` is negative or greater than the number of layers.
        """
        blocks = self.args.encoder_layers
        if not 0 <= layers <= blocks + 1:
            raise UserError(f"--frozen-layers {layers}: give 0 to {blocks + 1} (the embeddings and {blocks} blocks)")
        if layers:
            nn.ParameterList(self.lowest(layers)).requires_grad_(False)

    def lowest(self, layers: int) -> list[nn.Parameter]:
        """Return the parameters of the ``layers`` lowest layers (1 or more) of the encoder."""
        raise NotImplementedError

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Accept checkpoints of the stock model and of every other recipe, see ``state_dicts.fit_state_dict``."""
        prefix = f"{name}." if name else ""
        loaded = {key.removeprefix(prefix): state_dict.pop(key) for key in [*state_dict] if key.startswith(prefix)}
        complete_copies(loaded, self.state_dict(), self.stock_parts)
        super().upgrade_state_dict_named(loaded, "")  # type: ignore[misc]
        own = self.state_dict()
        self.lost_parts = any(key.startswith(TRAINING_ONLY) for key in loaded.keys() - own.keys())
        fit_state_dict(loaded, own, self.stock_parts)
        state_dict.update({prefix + key: value for key, value in loaded.items()})

    def complete(self, needs: Needs) -> None:
        """Freeze parameters that the recipe's loss does not use, train the head if it does, and compile with ``--compile``.

        DistributedDataParallel would wait for their gradients. Raises UserError if nothing is left to train.
        """
        nn.ParameterList(self.unused(needs)).requires_grad_(False)
        self.projection_head.requires_grad_(needs.views)
        if not any(weight.requires_grad for weight in self.parameters()):
            raise UserError("--frozen-layers: leaves nothing to train; give a smaller number, or a projection head")
        if self.args.compile:
            self.compile_encoders()

    def unused(self, needs: Needs) -> list[nn.Parameter]:
        """Return the parameters of encoder and MLM head that get no gradient."""
        raise NotImplementedError
