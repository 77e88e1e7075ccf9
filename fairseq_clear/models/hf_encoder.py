"""A model of transformers as the encoder of ``clear_hf``, with the interface of fairseq's encoders. No weight is converted."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from fairseq_clear.errors import UserError
from fairseq_clear.models.encoding import evaluating
from fairseq_clear.models.hf_source import HfSource, name_of, transformers_for
from fairseq_clear.modules.hidden_states import attention_for

SAME = 1e-4  # states that differ by less are the same up to rounding


class HfBackbone(nn.Module):
    """A base model of transformers with the interface of fairseq's TransformerEncoder, so that both are used alike.

    Args:
        ids: (E,) int64, for each entry of the dictionary the id that the model gives it.
        padding: the dictionary's id of the padding.
    """

    model: Any  # some class of transformers
    ids: Tensor

    def __init__(self, model: nn.Module, ids: Tensor, padding: int) -> None:
        super().__init__()
        self.model, self.padding = model, padding
        self.register_buffer("ids", ids)

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor | None = None, return_all_hiddens: bool = False, **unused: Any
    ) -> dict[str, Any]:
        """Hidden states of tokens (B, T), each (T, B, D), in the dictionary that fairseq's encoders return.

        Args:
            src_tokens: (B, T) ids of the dictionary, padded on the right.
            src_lengths: (B,) number of tokens in each row, on the CPU; if they are all T, the model gets no mask.
            return_all_hiddens: also return the states of the embeddings and of every block, as ``encoder_states``.
        """
        is_full = src_lengths is not None and bool((src_lengths == src_tokens.shape[1]).all())
        mask = None if is_full else src_tokens.ne(self.padding).long()
        options = {"attention_mask": mask, "output_hidden_states": return_all_hiddens, "return_dict": True}
        with attention_for(is_padded=not is_full):
            output = self.model(input_ids=self.ids[src_tokens], **options)
        last = output.last_hidden_state.transpose(0, 1)
        # The last of hidden_states is not normalised in some versions of ModernBERT.
        states = [*(state.transpose(0, 1) for state in output.hidden_states[:-1]), last] if return_all_hiddens else []
        return {"encoder_out": [last], "encoder_states": states}

    @property
    def layers(self) -> nn.ModuleList:
        """The blocks; empty if they share their weights, as ALBERT's do."""
        depth = int(self.model.config.num_hidden_layers)
        lists = (module for module in self.model.modules() if isinstance(module, nn.ModuleList))
        return next((blocks for blocks in lists if len(blocks) == depth > 0), nn.ModuleList())

    @property
    def positions(self) -> int:
        """The longest text that the model reads, in tokens."""
        for module in self.model.modules():
            rows = getattr(module, "position_embeddings", None)
            table = getattr(rows, "weight", None)  # of nn.Embedding, or I-BERT's own class
            if isinstance(table, Tensor) and table.dim() == 2:
                padding = getattr(rows, "padding_idx", None)
                # positions that skip the padding begin after its id
                found = len(table) - (0 if padding is None else padding + 1)
                ids = getattr(module, "position_ids", None)  # fewer than rows in Nystromformer, YOSO and MRA
                return found if ids is None else min(found, int(ids.shape[-1]))
        return int(getattr(self.model.config, "max_position_embeddings", 0)) or 1 << 20

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "HfBackbone":
        """Keep buffers in float32. The frequencies of rotary positions, if they are rounded, give wrong phases."""
        kept = {name: buffer for name, buffer in self.named_buffers() if buffer.dtype == torch.float32}
        super()._apply(fn, recurse)
        for name, before in kept.items():
            owner, _, last = name.rpartition(".")
            module = self.get_submodule(owner)
            moved = getattr(module, last)
            if moved.dtype in (torch.float16, torch.bfloat16):
                setattr(module, last, before.to(moved.device))
        return self


class _Stub(nn.Module):
    """Stands in for the base model inside the model with the MLM head, and returns given states."""

    states: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return _Output(self.states)


class _Output(dict[str, Any]):
    """An output of a base model with states alone; any other part is None."""

    def __init__(self, states: Any) -> None:
        super().__init__(last_hidden_state=states)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __getitem__(self, key: Any) -> Any:
        return [self["last_hidden_state"]][key] if isinstance(key, int | slice) else super().__getitem__(key)


class HfEncoder(FairseqEncoder):
    """An encoder of transformers with its MLM head, with the interface of fairseq's RobertaEncoder.

    Args:
        ids: (E,) int64, the model's id of each entry of the dictionary, -1 for an entry that it does not have. None if a
            checkpoint is loaded, which knows them.
        deleted: whether the vocabulary gets a row for ``<del>``, the last entry of the dictionary.

    Raises:
        UserError: the model has no row for an entry of the dictionary.

    Attributes:
        left_out: names of weights in the folder that the model does not have.
    """

    columns: Tensor

    def __init__(self, dictionary: Any, source: HfSource, ids: Tensor | None, deleted: bool) -> None:
        super().__init__(dictionary)
        model: Any = source.base if source.head is None else source.head
        self.rows, self.deleted = int(model.get_input_embeddings().num_embeddings), deleted
        columns = torch.arange(self.rows)
        if ids is None:
            ids = torch.zeros(len(dictionary), dtype=torch.long)
        else:
            ids, columns = self._place(ids.clone())
        if deleted:
            model.resize_token_embeddings(self.rows + 1, mean_resizing=False)
        self.backbone = HfBackbone(source.base, ids, dictionary.pad())
        self.register_buffer("columns", columns)
        self.mlm_head: nn.Module | None = None
        if source.head is not None:
            self.mlm_head, name = copy.copy(source.head), name_of(source.head, source.base)
            self.mlm_head._modules = {**source.head._modules, name: _Stub()}
        self.pooler = None if source.pooler is None else source.pooler.requires_grad_(False)
        self.left_out = source.unused

    def _place(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ids including ``<del>``, and the ids of all logits (V,), the entries of the dictionary first."""
        entries = len(ids)
        if "<del>" in self.dictionary:
            entries = self.dictionary.index("<del>")  # the last one
            ids[entries] = self.rows if self.deleted else ids[self.dictionary.unk()]
        known = ids[:entries]
        if not 0 <= int(known.min()) <= int(known.max()) < self.rows:
            raise UserError(
                f"the tokenizer of the data has ids up to {int(known.max())}, and the encoder {self.rows} rows for them; they "
                "belong to different models"
            )
        is_other = torch.ones(self.rows, dtype=torch.bool)
        is_other[known] = False
        return ids, torch.cat([known, is_other.nonzero().squeeze(1)])

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        masked_tokens: Tensor | None = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return logits, only of ``masked_tokens`` (B, T) if they are given; with ``features_only`` the states (B, T, D)."""
        output = self.backbone(src_tokens, return_all_hiddens=return_all_hiddens)
        states = output["encoder_out"][0].transpose(0, 1)
        extra = {"inner_states": output["encoder_states"] or None}
        if features_only:
            return states, extra
        if masked_tokens is not None:
            return self.mlm_logits(states[masked_tokens]), extra
        return self.mlm_logits(states.flatten(0, 1)).unflatten(0, states.shape[:2]), extra

    def mlm_logits(self, states: Tensor) -> Tensor:
        """Return logits (N, V) of states (N, D), by the model's own forward pass; the entries of the dictionary come first."""
        if self.mlm_head is None:
            raise UserError(
                "--mlm-weight: the encoder has no head for masked language modelling; give --mlm-weight 0, or another encoder"
            )
        stub = next(part for part in self.mlm_head.children() if isinstance(part, _Stub))
        stub.states = states.unsqueeze(0)
        try:
            tokens = torch.zeros(1, len(states), dtype=torch.long, device=states.device)
            logits: Tensor = self.mlm_head(input_ids=tokens).logits[0]
        finally:
            stub.states = None
        return logits[:, self.columns]

    def max_positions(self) -> int:
        """The longest text, in tokens."""
        return self.backbone.positions

    def check(self) -> None:
        """Check that vectors depend neither on padding nor only on the tokens before, as a decoder's.

        Raises:
            UserError: they do.
        """
        row = self.sample()
        other = row.clone()
        other[0, 2] = self.dictionary.nspecial + 2
        padded = nn.functional.pad(row, (0, 3), value=self.dictionary.pad())
        kind = self.backbone.model.config.model_type
        with transformers_for(kind), evaluating(self):
            one, changed, long = (self.backbone(tokens)["encoder_out"][0][:4, 0] for tokens in (row, other, padded))
        if not one.isfinite().all():
            raise UserError(f"--arch clear_hf: the {kind} computes NaN or infinity; its weights are damaged")
        if not (one - long).abs().max() <= SAME * max(1.0, float(one.abs().max())):
            raise UserError(f"--arch clear_hf: the vectors of a {kind} change with the padding; choose another encoder")
        if torch.equal(one[0], changed[0]):
            raise UserError(f"--arch clear_hf: a {kind} reads a text from left to right; an encoder is needed")

    def sample(self) -> Tensor:
        """Return a text, (1, 4) ids."""
        known = self.dictionary
        ids = [known.bos(), known.nspecial, known.nspecial + 1, known.eos()]
        return torch.tensor([ids], device=self.columns.device)

    def save(self, folder: Path, *, with_head: bool) -> None:
        """Write the model, without the row of ``<del>`` and, unless ``with_head``, the MLM head; see ``HfSource.save``."""
        backbone = copy.deepcopy(self.backbone)
        base: Any = backbone.model
        head: Any = None
        if self.mlm_head is not None and with_head:
            stub = next(part for part in self.mlm_head.children() if isinstance(part, _Stub))
            memo = {id(p): q for p, q in zip(self.backbone.parameters(), backbone.parameters(), strict=True)}
            memo |= {id(stub): base}
            head = copy.deepcopy(self.mlm_head, memo)
        if self.deleted:
            (base if head is None else head).resize_token_embeddings(self.rows)
        HfSource(base, head, self.pooler).save(folder)
