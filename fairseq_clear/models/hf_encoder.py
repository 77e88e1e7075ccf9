"""A model of transformers as the encoder of ``clear_hf``, with the interface of fairseq's encoders. No weight is converted."""

import copy
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from fairseq_clear.errors import UserError, one_line
from fairseq_clear.libraries import quiet_transformers
from fairseq_clear.patches.checkpoint_files import unloadable

__all__ = ["CONFIG", "LOCAL", "HfBackbone", "HfEncoder", "HfSource", "build_source", "read_source", "transformers_for"]

CONFIG = "config.json"
SAME = 1e-4  # states that differ by less are the same up to rounding
LOCAL = {"local_files_only": True, "trust_remote_code": False}


class HfSource:
    """What transformers made of a folder or of a configuration.

    Attributes:
        base: the encoder, without pooler.
        head: the model with an MLM head around ``base``; None without one.
        pooler: BERT's pooler, which sentence vectors do not use; None without one.
        unused: names of weights in the folder that belong to none of these.
    """

    def __init__(self, base: Any, head: Any, pooler: nn.Module | None, unused: Sequence[str] = ()) -> None:
        self.base, self.head, self.pooler, self.unused = base, head, pooler, unused

    def describe(self) -> str:
        """Return as JSON what ``build_source`` needs: the configuration, and which parts there are.

        The whole configuration, because defaults differ between versions of transformers.
        """
        config = json.loads(self.base.config.to_json_string(use_diff=False))
        config["model_type"] = self.base.config.model_type
        return json.dumps({"config": config, "head": self.head is not None, "pooler": self.pooler is not None})

    def save(self, folder: Path) -> None:
        """Write config.json and model.safetensors by ``save_pretrained``.

        Raises:
            UserError: the weights cannot be written, such as on a full disk.
        """
        model, prefix = (self.base, "") if self.head is None else (self.head, f"{_name_of(self.head, self.base)}.")
        weights = model.state_dict()
        for name, value in {} if self.pooler is None else self.pooler.state_dict().items():
            weights[f"{prefix}pooler.{name}"] = value
        try:
            with quiet_transformers():
                model.save_pretrained(str(folder), state_dict=weights)
        except OSError:
            raise
        except Exception as error:  # safetensors has its own type for errors of the file system
            raise UserError(f"{folder}: cannot write the weights ({one_line(error)}); nothing was written") from None
        for path in folder.glob("*.safetensors"):  # only their owner may read them
            path.chmod((folder / CONFIG).stat().st_mode)


@contextmanager
def transformers_for(what: object) -> Iterator[Any]:
    """Yield transformers; its errors become one line that begins with ``what``."""
    with quiet_transformers() as transformers:
        try:
            yield transformers
        except UserError:
            raise
        except pickle.UnpicklingError as error:
            remedy = "if you trust it, save its weights as safetensors"
            raise unloadable(what, error, "folder of weights", "not a weight", remedy) from None
        except Exception as error:  # of several libraries
            raise UserError(f"{what}: transformers cannot load it ({one_line(error)})") from None


def read_source(folder: Path, settings: dict[str, Any]) -> HfSource:
    """Load a local Hugging Face or sentence-transformers folder in float32, without running its code.

    Args:
        settings: see ``_configure``.

    Raises:
        UserError: the folder is incomplete or damaged, needs code of its own, or holds no encoder.
    """
    with transformers_for(folder) as transformers:
        config = _configure(transformers.AutoConfig.from_pretrained(str(folder), **LOCAL), settings, folder)
        options = {**LOCAL, "config": config, "dtype": torch.float32, "output_loading_info": True}
        options |= {"ignore_mismatched_sizes": True}  # they are reported below, in one line
        options |= _attention(settings)
        head, unread, wrong = None, [], list[str]()
        if type(config) in transformers.AutoModelForMaskedLM._model_mapping:
            head, info = transformers.AutoModelForMaskedLM.from_pretrained(str(folder), **options)
            unread.append(set(info["unexpected_keys"]))
            wrong += [name for name, *_ in info.get("mismatched_keys") or ()]
            prefix = f"{head.base_model_prefix}."
            if any(not name.startswith(prefix) for name in info["missing_keys"]):
                head = None  # of a folder without one, it was initialised at random
        base, info = transformers.AutoModel.from_pretrained(str(folder), **options)
        unread.append(set(info["unexpected_keys"]))
        missing = [name for name in info["missing_keys"] if "pooler" not in name.split(".")]
        wrong += [*missing, *(name for name, *_ in info.get("mismatched_keys") or ())]
        if wrong:
            raise UserError(f"{folder}: its weights do not fit its config.json ({wrong[0]})")
        has_pooler = getattr(base, "pooler", None) is not None and len(missing) == len(info["missing_keys"])
        return _join(base, head, base.pooler if has_pooler else None, sorted(set.intersection(*unread)))


def build_source(described: str, settings: dict[str, Any]) -> HfSource:
    """Build a model with random weights as ``HfSource.describe`` describes it, or as a configuration of transformers does."""
    content = json.loads(described)
    with transformers_for("--encoder-config") as transformers:
        values = dict(content["config"])
        kind = values.pop("model_type", None)
        if kind is None:
            raise UserError("--encoder-config: has no model_type, such as modernbert")
        config = _configure(transformers.AutoConfig.for_model(kind, **values), settings, "--encoder-config")
        options = {"dtype": torch.float32, **_attention(settings)}
        head = transformers.AutoModelForMaskedLM.from_config(config, **options) if content["head"] else None
        pooler = None
        if content["pooler"] or head is None:
            base = transformers.AutoModel.from_config(config, **options)
            pooler = base.pooler if content["pooler"] else None
        return _join(base if head is None else head.base_model, head, pooler)


def _join(base: Any, head: Any, pooler: nn.Module | None, unused: Sequence[str] = ()) -> HfSource:
    """Take the encoder of the model with the MLM head, whose output embedding it may share."""
    encoder = base if head is None else head.base_model
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # every family checks for this
    return HfSource(encoder, head, pooler, unused)


def _attention(settings: dict[str, Any]) -> dict[str, str]:
    chosen = settings.get("attn_implementation")
    return {"attn_implementation": chosen} if chosen else {}


def _configure(config: Any, settings: dict[str, Any], what: object) -> Any:
    """Check a configuration, and set the dropout that the user gave, and the ids of special tokens.

    Args:
        config: of transformers.
        settings: ``dropout`` and ``attention_dropout``, None to keep the configuration's; ``attn_implementation``; ``ids``, a
            table from names such as ``pad_token_id`` to ids, for a configuration without weights.
    """
    if getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{what}: holds a {config.model_type} that decodes; an encoder is needed")
    for name in [name for name in vars(config) if "dropout" in name]:
        value = settings.get("attention_dropout" if "att" in name else "dropout")
        if value is not None and isinstance(getattr(config, name), int | float) and "classifier" not in name:
            setattr(config, name, float(value))
    for name, value in settings.get("ids", {}).items():
        setattr(config, name, value)
    return config


class HfBackbone(nn.Module):
    """A base model of transformers with the interface of fairseq's TransformerEncoder, so that both are used alike.

    Args:
        model: the base model.
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
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        **unused: Any,
    ) -> dict[str, Any]:
        """Hidden states of tokens (B, T), each (T, B, D), in the dictionary that fairseq's encoders return.

        Args:
            src_tokens: (B, T) ids of the dictionary, padded on the right.
            src_lengths: (B,) number of tokens in each row, on the CPU; if they are all T, the model gets no mask.
            return_all_hiddens: also return the states of the embeddings and of every block, as ``encoder_states``.
        """
        is_full = src_lengths is not None and bool((src_lengths == src_tokens.shape[1]).all())
        mask = None if is_full else src_tokens.ne(self.padding).long()
        output = self.model(
            input_ids=self.ids[src_tokens],
            attention_mask=mask,
            output_hidden_states=return_all_hiddens,
            return_dict=True,
        )
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
            if isinstance(rows, nn.Embedding):
                # positions that skip the padding begin after its id
                return rows.num_embeddings - (0 if rows.padding_idx is None else rows.padding_idx + 1)
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
        dictionary: fairseq's dictionary.
        source: the model.
        ids: (E,) int64, the model's id of each entry of the dictionary, -1 for an entry that it does not have. None if a
            checkpoint is loaded, which knows them.
        deleted: whether the vocabulary gets a row for ``<del>``, the last entry of the dictionary.

    Raises:
        UserError: the model has no row for an entry of the dictionary.
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
            self.mlm_head, name = copy.copy(source.head), _name_of(source.head, source.base)
            self.mlm_head._modules = {**source.head._modules, name: _Stub()}
        self.pooler = source.pooler

    def _place(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ids with that of ``<del>``, and the ids of all logits (V,), the entries of the dictionary first."""
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
        was_training = self.training
        row = self.sample()
        other = row.clone()
        other[0, 2] = self.dictionary.nspecial + 2
        padded = nn.functional.pad(row, (0, 3), value=self.dictionary.pad())
        self.eval()
        with torch.no_grad():
            one, changed, long = (self._states(tokens)[0, :4] for tokens in (row, other, padded))
        self.train(was_training)
        kind = self.backbone.model.config.model_type
        if not (one - long).abs().max() <= SAME * max(1.0, float(one.abs().max())):
            raise UserError(f"--arch clear_hf: the vectors of a {kind} change with the padding; choose another encoder")
        if torch.equal(one[0], changed[0]):
            raise UserError(f"--arch clear_hf: a {kind} reads a text from left to right; an encoder is needed")

    def sample(self) -> Tensor:
        """Return a text, (1, 4) ids."""
        known = self.dictionary
        return torch.tensor(
            [[known.bos(), known.nspecial, known.nspecial + 1, known.eos()]], device=self.columns.device
        )

    def _states(self, tokens: Tensor) -> Tensor:
        states: Tensor = self.backbone(tokens)["encoder_out"][0].transpose(0, 1)
        return states

    def save(self, folder: Path, *, with_head: bool) -> None:
        """Write the model, without the row of ``<del>``; see ``HfSource.save``.

        Args:
            with_head: also write the MLM head, if there is one. The pooler is written in both cases.
        """
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


def _name_of(model: nn.Module, base: nn.Module) -> str:
    """The name of the base model in a model."""
    return next(name for name, child in model.named_children() if child is base)


def describe_file(path: Path) -> str:
    """Return what ``build_source`` reads, for a configuration of transformers in a file.

    Raises:
        UserError: it is not one.
    """
    from fairseq_clear.files import read_json

    return json.dumps({"config": read_json(path, kind=dict), "head": True, "pooler": False})


def ids_of(symbols: Sequence[str], known: dict[str, int] | None) -> Tensor:
    """Return the id of each symbol, -1 for none; the same numbers without a tokenizer of Hugging Face."""
    return torch.tensor([number if known is None else known.get(symbol, -1) for number, symbol in enumerate(symbols)])
