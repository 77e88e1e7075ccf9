"""Estimates the cost of training a recipe: memory of a GPU, bytes sent between GPUs, hours, and the chunk size to use.

One micro-batch of the recipe's own model and criterion runs forward and backward on the meta device, whose tensors have shapes
but no values. The other costs follow from these rules:

- Floating-point operations are counted in matrix products and attention only; a multiply-add counts as two. Products of
  queries with the vectors of other GPUs are left out: they are less than a thousandth of all operations in the paper's runs.
- Attention is counted as a fused GPU kernel: its T x T weights are computed in both passes and never stored.
- With ``--amp``, activations are counted in float32, so their bytes are an upper bound.
- PRECISIONS and OPTIMIZERS list the bytes of gradients, float32 master weights and optimizer moments. On several GPUs,
  DistributedDataParallel keeps a second copy of the gradients.
- The cores that load batches are those that keep up with a GPU, by the rate at which one core of this machine makes batches.
- GPUs communicate in a ring. They send the weights' gradients once per update, and the contrasted vectors and the gradients of
  these vectors once per micro-batch.
"""

import logging
import math
import time
import warnings
import weakref
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from fairseq import tasks
from fairseq.data import indexed_dataset
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.initialize import add_defaults
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry
from yaml import YAMLError

from fairseq_clear import register
from fairseq_clear.augmentations.synonym_table import SynonymTable
from fairseq_clear.data.batch import Batch
from fairseq_clear.errors import UserError
from fairseq_clear.files import hash_file
from fairseq_clear.libraries import log_level
from fairseq_clear.models.pretrained_encoder import start_from_encoder
from fairseq_clear.modules.chunking import ENOUGH_CELLS
from fairseq_clear.output_folder import scratch_folder
from fairseq_clear.text.synonym_files import save_synonyms
from fairseq_clear.views.view_table import find_view_source

register()

GIB = 2**30
HEADROOM = 0.9  # usable share of the memory; the rest is for fragmentation, workspaces of kernels, and NCCL
RECIPES = Path(__file__).resolve().parent.parent / "examples"
SYMBOLS = 6  # special symbols, which dict.txt does not list: <s>, <pad>, </s>, <unk>, <mask> and <del>
EXAMPLES = 128  # items that are loaded, with their views; every micro-batch is made of them
LINES = 16  # least number of lines of a random document
LOADED = 3  # times that a batch of them is made to measure the rate
LARGEST = 32  # maximum texts of a micro-batch that runs without chunks; the cost of a larger one is extrapolated
# precision -> bytes of a weight (its gradient has as many), bytes of its float32 master and that gradient, TFLOP/s of a V100
PRECISIONS = {"fp16": (2, 8, 125.0), "bf16": (2, 8, 125.0), "amp": (4, 0, 125.0), "fp32": (4, 0, 15.7)}
OPTIMIZERS = {"adam": 8, "clear_adamw": 8, "sgd": 4}  # -> bytes of a weight's moments
CRITERIONS = ("masked_lm", "clear_nt_xent", "clear_moco", "clear_self_guided")
aten = torch.ops.aten
READS = (aten._local_scalar_dense.default, aten.equal.default)
INDEXING = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default)
FLOPS = {**flop_registry, aten.addmm_: flop_registry[aten.addmm]}


class Meter(TorchDispatchMode):
    """Runs operations on meta tensors, and counts floating-point operations and the bytes of live tensors.

    Token ids and masks are real CPU tensors, because shapes depend on them. An operation runs on the meta device if any of
    its inputs is a meta tensor. Reading a value from a meta tensor, as ``item()`` does, gives 1.

    Attributes:
        flops: number of floating-point operations, including recomputed ones.
        held: bytes of the live tensors that were created under this mode.
        peak: maximum of ``held`` so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.held = self.peak = 0
        self._storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` and count it."""
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        is_meta = any(tensor.is_meta for tensor in given)
        if is_meta and func in READS:
            return 1.0 if args[0].is_floating_point() else 1
        if is_meta:
            if func in INDEXING:  # a mask selects as many rows as it has ones
                args = (args[0], [index for one in args[1] for index in _positions(one)], *args[2:])
            if not all(tensor.is_meta for tensor in given):
                args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
            kwargs = {**kwargs, "device": "meta"} if kwargs.get("device") is not None else kwargs
        result = func(*args, **kwargs)
        if is_meta and (count := FLOPS.get(func._overloadpacket)) is not None:
            self.flops += count(*args, **kwargs, out_val=result)
        known = {tensor.untyped_storage()._cdata for tensor in given}  # a view of a weight is not new
        made = [leaf.untyped_storage() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        new = {one._cdata: one for one in made if one._cdata not in known and one._cdata not in self._storages}
        for storage in new.values():
            weakref.finalize(storage, self._release, storage._cdata, storage.nbytes())
            self._storages.add(storage._cdata)
            self.held += storage.nbytes()
        self.peak = max(self.peak, self.held)
        return result

    def _release(self, key: int, size: int) -> None:
        self._storages.remove(key)
        self.held -= size


def _positions(index: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    if index is None or index.dtype != torch.bool:
        return (index,)
    mask = torch.ones(index.shape, dtype=torch.bool) if index.is_meta else index  # all rows, as values are not known
    return mask.nonzero().unbind(1)


def _fused_attention(query: Any, key: Any, value: Any, mask: Any = None, dropout_p: float = 0.0, *_: Any) -> Any:
    return aten._scaled_dot_product_efficient_attention(query, key, value, mask, True, dropout_p)[0]


@dataclass(frozen=True)
class Step:
    """Cost of one micro-batch on one GPU."""

    flops: float  # of the forward and the backward pass
    saved: float  # bytes held between the two passes
    peak: float  # maximum bytes held, without weights and their gradients


class Recipe:
    """Model, criterion and data of a recipe, on the meta device, where micro-batches run without computing values.

    Args:
        cfg: from ``read_recipe``; without ``task.data``, texts are random words of the maximum length.
        vocabulary: number of embedding rows, including special symbols, if ``task.data`` is empty.

    Attributes:
        model, criterion: on the meta device, in the recipe's precision.
        precision: a key of PRECISIONS.
        rows: ``masked`` and ``views`` -> number of tokens in each row of the loaded items.
        items: number of loaded items.
        loading: texts per second that one core of this machine loads in batches, measured.

    Raises:
        UserError: a setting that training rejects too.
    """

    def __init__(self, cfg: Any, vocabulary: int = 50_266) -> None:
        self.cfg = cfg
        with scratch_folder() as folder, log_level(logging.CRITICAL + 1, "fairseq", "fairseq_clear"):
            try:
                if not cfg.task.data:
                    _make_data(folder, cfg.task, int(cfg.model.get("max_positions") or 512), vocabulary)
                task = tasks.setup_task(cfg.task)
                with torch.device("meta"), Meter():
                    self.model = task.build_model(cfg.model)
                    self.criterion = task.build_criterion(cfg.criterion)
                task.load_dataset("train")
            except SystemExit as error:  # the task logs a UserError and exits
                raise error.__cause__ or error from None
            dataset = task.dataset("train")
            picked = np.linspace(0, len(dataset) - 1, min(len(dataset), EXAMPLES), dtype=int)
            self.loading = max(_loading_rate(dataset, picked) for _ in range(LOADED))
        self.collate, self.vocabulary, self.items = dataset.collater, len(task.dictionary), len(picked)
        self._items = sorted(map(dataset.__getitem__, picked), key=lambda item: int(self.collate([item])["ntokens"]))
        whole = self.collate(self._items)
        rows = {"masked": whole.get("lengths"), "views": whole.get("views", {}).get("lengths")}
        self.rows = {name: lengths.tolist() for name, lengths in rows.items() if lengths is not None}
        self.precision = next((name for name in PRECISIONS if cfg.common.get(name)), "fp32")
        if self.precision in ("fp16", "bf16"):
            self.model.to(torch.float16 if self.precision == "fp16" else torch.bfloat16)
        self.chunk, self.run = int(self.model.args.encode_chunk_size), cache(self._run)
        for weight in filter(lambda weight: weight.requires_grad, self.model.parameters()):
            weight.grad = torch.zeros_like(weight)  # allocated here, so that runs do not count it

    def _run(self, batch: int, chunk: int) -> Step:
        """Run a micro-batch of loaded items, spaced evenly from the shortest to the longest."""
        picked = ((np.arange(batch) + 0.5) / batch * self.items).astype(int)
        sample = self.collate([self._items[index] for index in picked])
        meter = Meter()
        self.model.args.encode_chunk_size = chunk
        attention = patch.object(torch.nn.functional, "scaled_dot_product_attention", _fused_attention)
        enough = patch.dict(ENOUGH_CELLS, cpu=ENOUGH_CELLS["cuda"])
        with attention, enough, patch.object(torch, "autocast", lambda *_, **__: nullcontext()), meter:
            loss = self.criterion(self.model, sample)[0]
            saved = meter.held
            loss.backward()
        return Step(meter.flops, saved, meter.peak)

    def step(self, batch: int, chunk: int) -> Step:
        """Cost of a micro-batch of ``batch`` texts, encoded ``chunk`` tokens at a time (0: all at once).

        At most one chunk of texts is run, or LARGEST texts without chunks, and the costs are scaled up to ``batch``. With
        chunks only the saved bytes grow, because the activations of one chunk at a time are in memory.
        """
        fewest = min(sum(lengths) for lengths in self.rows.values()) / self.items  # mean tokens per text
        few = min(batch, math.ceil(chunk / fewest) if chunk else LARGEST)
        ran, times = self.run(few, chunk), batch / few
        peak = ran.peak + (times - 1) * ran.saved if chunk else times * ran.peak
        return Step(times * ran.flops, times * ran.saved, peak)

    def gathered(self, batch: int) -> int:
        """Number of vectors that a GPU sends to the others in a micro-batch of ``batch`` texts."""
        if "views" not in self.rows or str(getattr(self.criterion.cfg, "negatives", "global")) == "batch":
            return 0
        rows = sum(self.criterion.gathered_rows(Batch.of(self.collate(self._items)).views).values())
        if self.criterion.key_encoder == "frozen":  # and the vectors of the frozen encoder
            rows *= 1 + (len(self.model.frozen_encoder.layers) if self.criterion.objective.every_layer else 1)
        return round(rows * batch / self.items)


def _loading_rate(dataset: Any, items: np.ndarray) -> float:
    """Texts per second of processor time in which these items are read, edited, masked and padded."""
    began = time.process_time()
    dataset.collater(dataset.__getitems__(items))
    return len(items) / (time.process_time() - began)


@dataclass(frozen=True)
class Plan:
    """Cost of a recipe on ``gpus`` GPUs, see ``make_plan``."""

    gpus: int
    batch: int  # texts per micro-batch and GPU
    chunk: int  # tokens encoded at a time, the value of --encode-chunk-size; 0 for all
    state: float  # bytes of weights, gradients, masters, moments, copies of the encoder and queue on one GPU
    activations: float  # peak bytes of a micro-batch on one GPU
    sent: float  # bytes that one GPU sends per update
    flops: float  # of one GPU, per update
    hours: float  # duration of the run
    loaders: int  # cores that make the batches of one GPU


def make_plan(recipe: Recipe, gpus: int, memory: float, rate: float, global_batch: int | None = None) -> Plan:
    """Estimate the cost of a recipe on several GPUs, and choose the chunk size.

    One GPU has ``memory`` bytes, and achieves ``rate`` floating-point operations per second. ``global_batch`` is the number of
    texts per update on all GPUs (default: the recipe's batch size x ``update_freq`` x ``gpus``).

    Raises:
        UserError: the batch cannot be divided evenly or does not fit into memory, or the recipe does not limit its updates.
    """
    updates, frequency = int(recipe.cfg.optimization.max_update), int(recipe.cfg.optimization.update_freq[0])
    total = (recipe.cfg.dataset.batch_size or 0) * frequency * gpus if global_batch is None else global_batch
    if not updates:
        raise UserError("optimization.max_update: the recipe has none; set it")
    if total < 1:
        raise UserError("dataset.batch_size: the recipe has none; give --global-batch, the texts of an update")
    if total % (gpus * frequency):
        what = f"--gpus {gpus} x optimization.update_freq {frequency}"
        raise UserError(f"--global-batch {total}: is not a multiple of {what}; give a multiple")
    batch, (element, masters, _) = total // (gpus * frequency), PRECISIONS[recipe.precision]
    trained = sum(weight.numel() for weight in recipe.model.parameters() if weight.requires_grad)
    state = sum(tensor.nbytes for tensor in (*recipe.model.parameters(), *recipe.model.buffers()))
    state += trained * (element * (1 + (gpus > 1)) + masters + OPTIMIZERS[recipe.cfg.optimizer._name])
    if element == 2 and recipe.model.key_encoder is not None:  # its weights are float32; a 16-bit copy encodes
        state += sum(weight.nbytes / 2 for weight in recipe.model.key_encoder.parameters())
    vectors, width = recipe.gathered(batch), recipe.model.projection_head.output_dim
    has_gradient = getattr(recipe.criterion, "key_encoder", "") != "momentum"
    of_vectors = vectors * (width * (1 + has_gradient) * element + 8)  # 8 for the hash of each text
    sent = (gpus - 1) * (2 * trained * element / gpus + frequency * of_vectors)
    received = gpus * vectors * width * 8  # in float32, with gradients

    def needed(chunk: int) -> float:
        return state + received + recipe.step(batch, chunk).peak

    chunk, limit = recipe.chunk, HEADROOM * memory
    if not chunk and needed(0) > limit:
        longest = max(max(lengths) for lengths in recipe.rows.values())
        tokens = batch / recipe.items * max(sum(lengths) for lengths in recipe.rows.values())
        least = math.ceil(math.log2(longest))  # a chunk holds the longest row
        powers = [2**n for n in range(least, max(least, math.floor(math.log2(tokens))) + 1)]
        chunk = powers[max(0, bisect_right(powers, limit, key=needed) - 1)]
    if needed(chunk) > limit:
        raise UserError(
            f"--memory {memory / GIB:g}: {batch:,} texts need {needed(chunk) / GIB:.1f} GiB, and {HEADROOM:.0%} of the memory "
            "may be used; raise optimization.update_freq, or lower --global-batch"
        )
    step = recipe.step(batch, chunk)
    flops = frequency * step.flops
    seconds = flops / rate  # of an update
    loaders = math.ceil(frequency * batch / seconds / recipe.loading)
    return Plan(gpus, batch, chunk, state, received + step.peak, sent, flops, updates * seconds / 3600, loaders)


def read_recipe(name: str, overrides: Sequence[str] = (), data: str = "") -> Any:
    """Return fairseq's configuration for a recipe, as fairseq-hydra-train composes it.

    ``name`` and ``overrides`` are the values of ``fairseq-clear plan --config``. Without a data folder ``data``, every setting
    that names a file is left out.

    Raises:
        UserError: the file does not exist, hydra rejects it or an override, or the cost of a setting cannot be estimated.
    """
    example, _, file = name.partition("/")
    path = Path(name) if name.endswith((".yaml", ".yml")) else RECIPES / example / "config" / f"{file}.yaml"
    if not path.is_file():
        known = sorted(f"{file.parent.parent.name}/{file.stem}" for file in RECIPES.glob("*/config/*.yaml"))
        others = f" or one of {', '.join(known)}" if known else ", as the repository's examples/ is not installed"
        raise UserError(f"--config {name}: no such recipe; give a .yaml file{others}")
    cfg = OmegaConf.structured(FairseqConfig)
    OmegaConf.set_struct(cfg, False)
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(path.resolve().parent), version_base="1.1"):
            warnings.simplefilter("ignore", UserWarning)  # fairseq is written for hydra 1.0
            config: Any = OmegaConf.to_container(compose(path.stem, overrides=list(overrides)), resolve=True)
        if missing := {"task", "criterion", "model"} - config.keys():
            raise UserError(f"has no section {min(missing)}; give a recipe such as clear/base_256gpu")
        for section in config.keys() & FairseqConfig.__dataclass_fields__.keys():
            cfg[section] = OmegaConf.merge(cfg.get(section) or {}, config[section])
        cfg.optimizer = {"lr": cfg.optimization.lr, **(cfg.optimizer or {"_name": "adam"})}
        cfg.lr_scheduler, cfg.model.compile = {"_name": "fixed"}, False
        files: dict[str, Any] = {"data": data, "eval_sts": None, "eval_retrieval": None}
        files |= {} if data else {"synonyms": None, "mask_whole_words": False, "mix": ""}
        cfg.task = OmegaConf.merge({"_name": "clear_lm"}, cfg.task, files)
        _check(cfg)
        start_from_encoder(cfg.model, cfg.checkpoint, cfg.task.get("allow_change") or "")
        add_defaults(cfg)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        cause = error.__cause__ or error
        raise UserError(f"--config {name} {' '.join(overrides)}: {' '.join(str(cause).split())}") from error
    return cfg


def _check(cfg: Any) -> None:
    """Raise UserError for a setting whose cost cannot be estimated."""
    arch = str(cfg.model.get("_name"))
    if ARCH_MODEL_NAME_REGISTRY.get(arch) != "clear_roberta":
        same = "model.encoder_layers, model.encoder_embed_dim and model.encoder_ffn_embed_dim"
        raise UserError(
            f"model._name {arch}: only fairseq's layers are counted; plan a clear_roberta with the same {same}"
        )
    for name, is_estimated in (
        ("criterion._name", cfg.criterion.get("_name") in CRITERIONS),
        ("optimizer._name", cfg.optimizer["_name"] in OPTIMIZERS),
        ("dataset.max_tokens", not cfg.dataset.max_tokens),
        ("criterion.guide", not cfg.criterion.get("guide")),
    ):
        if not is_estimated:
            raise UserError(
                f"{name} {OmegaConf.select(cfg, name)}: its cost cannot be estimated; give another value, or none"
            )


def _make_data(folder: Path, cfg: Any, positions: int, vocabulary: int) -> None:
    """Write random words in lines of the maximum length, except titles; each is its own paraphrase and hard negative."""
    kind, step = find_view_source(cfg.views)
    cfg.data, cfg.tokens_per_sample = str(folder), min(cfg.tokens_per_sample, positions)
    words = max(vocabulary - SYMBOLS, 1)
    (folder / "dict.txt").write_text("".join(f"w{word} 1\n" for word in range(words)))
    knobs = kind.read_knobs(step)
    lines = max(LINES, 2 * int(knobs.get("sentences", 0))) if kind.needs_documents else 1
    shape = (EXAMPLES, lines, max(cfg.tokens_per_sample - 1, 1))  # <s> is added later
    ids = np.random.default_rng(0).integers(4, 4 + words, shape, dtype=np.int32)
    ids[:, :, -1] = 2  # </s>
    title = int(knobs.get("longest", cfg.tokens_per_sample))  # tokens of a first line without </s>
    builder = indexed_dataset.make_builder(str(folder / "train.bin"), "mmap", vocab_size=vocabulary)
    for document in ids:
        for line in (document[0, -title - 1 :], *document[1:], *([ids[0, 0, -1:]] if kind.needs_documents else ())):
            builder.add_item(torch.from_numpy(line))
    builder.finalize(str(folder / "train.idx"))
    (folder / "paraphrase").mkdir()
    for name in {*(step.values if kind.values else ()), *(cfg.get("hard_negatives") or "none").split(",")}:
        (folder / "paraphrase" / name).symlink_to(folder)
    table = SynonymTable.build({(word,): [(word,)] for word in range(4, 4 + words)}, np.ones(5 + words, np.bool_))
    known = hash_file(folder / "dict.txt")
    save_synonyms(folder / "synonyms.npz", table, vocabulary_hash=known, source="", source_hash="")
