"""The settings of a recipe as what decides its cost."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fairseq.criterions.masked_lm import MaskedLmConfig

from fairseq_clear import register
from fairseq_clear.criterions.moco import ClearMocoConfig
from fairseq_clear.criterions.nt_xent import ClearNTXentConfig
from fairseq_clear.criterions.self_guided import ClearSelfGuidedConfig, parse_layers
from fairseq_clear.errors import UserError
from fairseq_clear.modules.chunking import check_chunk_size
from fairseq_clear.planning.encoder import Encoder, read_encoder
from fairseq_clear.planning.recipe import Recipe
from fairseq_clear.planning.rows import Rows, read_rows

register()

__all__ = ["read_recipe"]

# criterion: what encodes the positives, and its settings
CRITERIONS: dict[str, tuple[str, type[Any]]] = {
    "clear_nt_xent": ("shared", ClearNTXentConfig),
    "clear_moco": ("momentum", ClearMocoConfig),
    "clear_self_guided": ("frozen", ClearSelfGuidedConfig),
    "masked_lm": ("shared", MaskedLmConfig),
}
# numbers that an optimizer keeps of each weight; sgd one more with momentum
MOMENTS = {"adam": 2, "clear_adamw": 2, "sgd": 0}
DDP = {"pytorch_ddp": True, "c10d": True, "legacy_ddp": False, "no_c10d": False}


def read_recipe(config: Mapping[str, Any], vocabulary: int, text_length: int | None = None) -> Recipe:
    """Read the composed settings.

    Args:
        config: of ``composing.compose_recipe``.
        vocabulary: rows of the embedding, symbols included.
        text_length: tokens of a text (default: ``task.tokens_per_sample``).

    Raises:
        UserError: what is not estimated, or makes no sense.
    """
    task, model = config["task"], config["model"]
    name = str(config["criterion"].get("_name"))
    if name not in CRITERIONS:
        raise UserError(f"criterion {name}: is not estimated; give one of {', '.join(CRITERIONS)}")
    key_encoder, settings = CRITERIONS[name]
    criterion: dict[str, Any] = {field.name: field.default for field in fields(settings)} | dict(config["criterion"])
    encoder = read_encoder(model, vocabulary)
    rows = read_rows(task, encoder.positions, text_length)
    has_views = float(criterion.get("contrastive_weight", 0)) > 0
    has_mlm = float(criterion.get("mlm_weight", 1)) > 0
    if not has_views and not has_mlm:
        raise UserError("criterion.contrastive_weight 0 and mlm_weight 0 leave nothing to learn: give one of them")
    is_joint = has_views and has_mlm and str(criterion["anchor_mlm"]) == "joint"
    if is_joint and not str(task.get("views", "same")).startswith("span"):
        raise UserError("criterion.anchor_mlm joint: goes with task.views span, whose anchors it masks; leave it out")
    return Recipe(
        encoder=encoder,
        criterion=name,
        key_encoder=key_encoder,
        chunk_size=check_chunk_size(model.get("encode_chunk_size", 0)),
        copies=int(task.get("mlm_copies", 1)) * rows.texts if has_mlm and not is_joint else 0,
        masked_share=float(task.get("mask_prob", 0.15)),
        is_joint=is_joint,
        is_global=has_views and str(criterion.get("negatives")) == "global",
        is_symmetric=key_encoder == "momentum" and bool(criterion["symmetric"]),
        queue=int(criterion["queue_size"]) if key_encoder == "momentum" else 0,
        has_regularizer=float(criterion.get("regularizer_weight", 0)) > 0,
        frozen_layers=_frozen_layers(criterion, encoder),
        **_rows(rows, task, has_views=has_views),
        **_guide(criterion, encoder, is_guided=key_encoder == "frozen"),
        **_training(config),
    )


def _rows(rows: Rows, task: Mapping[str, Any], *, has_views: bool) -> dict[str, Any]:
    return {
        "text_lengths": rows.text_lengths,
        "anchors": has_views * rows.anchors,
        "positives": has_views * rows.positives,
        "negatives": has_views * int(bool(task.get("hard_negatives"))),
        "view_lengths": has_views * rows.view_lengths,
    }


def _guide(criterion: Mapping[str, Any], encoder: Encoder, *, is_guided: bool) -> dict[str, Any]:
    if not is_guided:
        return {"objective": "", "guide_layers": 0, "guide_drops_out": False}
    objective = str(criterion["objective"])
    every = len(parse_layers(str(criterion["guide_layers"]), encoder.layers))
    return {
        "objective": "opt3" if objective == "sg-opt" else objective,
        "guide_layers": every if objective in ("opt3", "sg-opt") else 1,
        "guide_drops_out": bool(criterion["guide_dropout"]),
    }


def _frozen_layers(criterion: Mapping[str, Any], encoder: Encoder) -> int:
    layers = int(criterion.get("frozen_layers", 0))
    if not 0 <= layers <= encoder.layers:
        raise UserError(f"criterion.frozen_layers {layers}: give 0 to {encoder.layers}, so that a block is trained")
    return layers


def _training(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the sections common, dataset, optimization, optimizer and distributed_training say."""
    common, optimization = config.get("common") or {}, config.get("optimization") or {}
    frequency = optimization.get("update_freq", 1)
    distributed, optimizer = config.get("distributed_training") or {}, config.get("optimizer") or {}
    backend, name = str(distributed.get("ddp_backend", "pytorch_ddp")), str(optimizer.get("_name", "adam"))
    if backend not in DDP:
        raise UserError(f"distributed_training.ddp_backend {backend}: is not estimated; give one of {', '.join(DDP)}")
    if name not in MOMENTS:
        raise UserError(f"optimizer {name}: is not estimated; give one of {', '.join(MOMENTS)}")
    half = [precision for precision in ("fp16", "bf16", "amp") if common.get(precision)]
    return {
        "batch_size": int((config.get("dataset") or {}).get("batch_size") or 0),
        "update_freq": int(frequency[0] if isinstance(frequency, list) else frequency),
        "moments": MOMENTS[name] + (name == "sgd" and float(optimizer.get("momentum", 0)) > 0),
        "precision": half[0] if half else "fp32",
        "max_update": int(optimization.get("max_update", 0)),
        "max_epoch": int(optimization.get("max_epoch", 0)),
        "is_cpu": bool(common.get("cpu")),
        "is_memory_efficient": any(common.get(f"memory_efficient_{kind}") for kind in ("fp16", "bf16")),
        "uses_ddp": DDP[backend],
    }
