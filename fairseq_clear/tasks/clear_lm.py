"""The task ``clear_lm``: masked language modelling with contrastive views, on the data of stock ``masked_lm``."""

import copy
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fairseq import utils
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary, data_utils
from fairseq.logging import metrics
from fairseq.models import ARCH_MODEL_REGISTRY, FairseqEncoderModel
from fairseq.tasks import register_task
from fairseq.tasks.masked_lm import MaskedLMTask

from fairseq_clear.augmentations.base import Symbols
from fairseq_clear.augmentations.chain import Chain, build_augmentation
from fairseq_clear.criterions.contrastive import ContrastiveCriterion
from fairseq_clear.criterions.figures import read_figures
from fairseq_clear.data.dataset import ClearDataset
from fairseq_clear.data.masking import Masks
from fairseq_clear.errors import UserError, exit_on_user_error
from fairseq_clear.files import hash_file
from fairseq_clear.lifecycle import ContrastiveModel, Needs, RunCriterion
from fairseq_clear.models.encoding import prompt_ids, prompts_of, sentence_settings
from fairseq_clear.patches import stopping
from fairseq_clear.patches.precision import has_overflowed
from fairseq_clear.tasks.config import ClearLMConfig
from fairseq_clear.tasks.corpus_mix import Corpus, check_corpora, check_folders, load_mix, parse_mix
from fairseq_clear.tasks.guide_encoder import load_guide
from fairseq_clear.tasks.run_messages import Watch, log_summary
from fairseq_clear.tasks.run_record import (
    check_allowed,
    check_same_architecture,
    check_same_run,
    check_same_vocabulary,
    run_record,
)
from fairseq_clear.tasks.setting_ranges import MEASURED, STOCK_CRITERIONS, check_metric, check_numbers
from fairseq_clear.tasks.validation_scores import RetrievalValidation, StsValidation
from fairseq_clear.text.data_folders import CLEAR_JSON, DICTIONARY, check_vocabulary, epoch_folders, load_tokenizer
from fairseq_clear.text.documents import Documents, documents_of
from fairseq_clear.text.mapped_files import check_data_files
from fairseq_clear.text.sentence_dataset import BlockDataset, SentenceDataset
from fairseq_clear.text.synonym_files import SYNONYMS_NPZ, load_synonyms, load_word_starts
from fairseq_clear.tokens import Tokens
from fairseq_clear.views.paraphrase_views import WithHardNegatives, aligned_sentences
from fairseq_clear.views.span_views import SpanViews
from fairseq_clear.views.view_maker import NO_PROMPT, ViewMaker
from fairseq_clear.views.view_source import FRAME
from fairseq_clear.views.view_table import build_view_source, find_view_source

logger = logging.getLogger(__name__)

DRAWS = 5  # version of the way in which batches, views and masks are drawn; of checkpoints that do not say: 1


def _drops(module: Any) -> bool:
    """Whether a module is dropout of some kind with a probability above 0."""
    return "Dropout" in type(module).__name__ and bool(getattr(module, "p", getattr(module, "drop_prob", 0)))


@register_task("clear_lm", dataclass=ClearLMConfig)
class ClearLMTask(MaskedLMTask):
    """Masked language modelling, contrastive learning, or both, as the criterion needs."""

    cfg: ClearLMConfig

    def __init__(self, cfg: ClearLMConfig, dictionary: Dictionary | None = None) -> None:
        known = len(dictionary) if dictionary is not None else 0
        super().__init__(cfg, dictionary)
        self.text_entries = known or len(self.dictionary) - 1  # that occur in text: without <mask>, if fairseq added it
        self.del_idx = self.dictionary.add_symbol("<del>")
        self.needs = Needs()  # until build_criterion sets the criterion's
        self.model: Any = None
        self.guide: Any = None  # of --guide
        self.record: dict[str, Any] = {}
        self.mix: list[Corpus] = []
        self.watch = Watch(dropout_only=cfg.views == "same" and cfg.augment == "none")
        self.chain = self._build_chain()
        folder = str(self.folder)
        self.sts = StsValidation(cfg.eval_sts, folder) if cfg.eval_sts else None
        self.retrieval = RetrievalValidation(cfg.eval_retrieval, folder) if cfg.eval_retrieval else None

    @property
    def folder(self) -> Path:
        """The first data folder, which has the dictionary and the tokenizer."""
        return Path(utils.split_paths(self.cfg.data)[0])

    @classmethod
    @exit_on_user_error
    def setup_task(cls, cfg: ClearLMConfig, **kwargs: Any) -> "ClearLMTask":
        """Set up the task; UserError if the data's dictionary is missing or damaged, or a setting is wrong."""
        if os.pathsep in cfg.data and os.path.isdir(cfg.data):
            raise UserError(f"{cfg.data}: fairseq separates data folders by {os.pathsep!r}; rename the folder")
        first, *others = epoch_folders(cfg.data)
        cfg.data = os.pathsep.join(map(str, (first, *others)))
        dictionary = first / DICTIONARY
        if not dictionary.exists():
            raise UserError(f"{dictionary} does not exist: make the data folder with fairseq-clear prepare")
        check_vocabulary(first)
        check_folders(first, others)
        try:
            loaded = cls.load_dict(cfg)
        except Exception as error:  # fairseq raises a bare Exception for another encoding
            raise UserError(f"{dictionary}: cut off or damaged ({error}); make the data folder again") from None
        return cls(cfg, loaded)

    def _build_chain(self) -> Chain:
        known = self.dictionary
        symbols = Symbols(known.bos(), known.eos(), known.pad(), self.del_idx, self.mask_idx)
        chain = build_augmentation(self.cfg.augment, symbols)
        if not chain.needs_words:
            return chain
        path = Path(self.cfg.synonyms or self.folder / SYNONYMS_NPZ)
        has_tokenizer = (self.folder / CLEAR_JSON).is_file()
        if chain.needs_synonyms or (path.is_file() and not has_tokenizer):  # a table knows where words begin
            table = load_synonyms(path, self.folder / DICTIONARY)
        else:
            table = load_word_starts(self.folder)
        return chain.with_synonyms(table)

    @exit_on_user_error
    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model and keep it for ``build_criterion``."""
        self.model = super().build_model(cfg, from_checkpoint)
        return self.model

    @exit_on_user_error
    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the criterion, which determines the content of the data sets. fairseq calls this before it loads data."""
        criterion = super().build_criterion(cfg, from_checkpoint)
        is_own = isinstance(criterion, RunCriterion)
        self.needs = criterion.needs if is_own else Needs()
        if self.needs.guide:
            settings = getattr(self.model, "args", None)
            criterion.guide = load_guide(self.needs.guide, self.folder, self.cfg.tokens_per_sample, settings)
            self.guide = criterion.guide
        if isinstance(self.model, ContrastiveModel):
            # fairseq-validate loads the model before it builds the criterion
            if getattr(self.model, "lost_parts", False):
                raise UserError(
                    "the checkpoint's frozen or key encoder and queue were not loaded, so the criterion cannot be computed: "
                    "read the validation scores in the log of the run"
                )
            if is_own:
                criterion.attach(self.model)
            self.model.complete(self.needs)
        one_encoder = self.needs.views and getattr(criterion, "key_encoder", "") in ("shared", "momentum")
        if self.watch.dropout_only and one_encoder and not any(map(_drops, self.model.modules())):
            logger.warning("the model has no dropout, so both views of a text are the same; give --dropout 0.1")
        return criterion

    @exit_on_user_error
    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Load a split: its masked texts, their views, or both; with ``--mix``, the training set of all corpora."""
        if not self.cfg.mix or split != self.cfg.train_subset:
            self.datasets[split] = self.build_dataset(split, epoch, combine)
            return
        self.mix = parse_mix(self.cfg.mix, self.cfg.data)
        check_corpora(self.mix)
        self.datasets[split] = load_mix(
            self.mix,
            lambda folder: self.with_data(folder).build_dataset(split, epoch, combine),
            self.cfg.seed,
            is_separate=str(self.cfg.mix_batches) == "one",
        )

    def with_data(self, folder: str) -> "ClearLMTask":
        """Return a copy of this task that reads texts of another folder, with the same vocabulary, masks and augmentation."""
        task = copy.copy(self)
        task.cfg = copy.deepcopy(self.cfg)
        task.cfg.data = folder
        return task

    def build_dataset(self, split: str, epoch: int = 1, combine: bool = False) -> ClearDataset:
        """Build the data set of a split of the data folder."""
        sentences = self.load_sentences(split, epoch, combine)
        of_documents = isinstance(sentences, Documents)
        view_maker = self.build_view_maker(sentences, combine) if self.needs.views or of_documents else None
        source = view_maker.source if view_maker is not None else None
        joint = self.needs.views and self.needs.joint_anchors and self.needs.mlm
        mlm_input = sentences if source is None else source.mlm_input
        if self.needs.joint_anchors and not isinstance(source, SpanViews):
            raise UserError("--anchor-mlm joint: only works with --views span, whose anchors it masks; leave it out")
        if self.needs.one_positive and source is not None and source.positives > 1:
            raise UserError("--symmetric: needs view sources with one positive; leave it out")
        if self.needs.views and not self.needs.hard_negatives and source is not None and source.negatives:
            raise UserError(f"--views {self.cfg.views}: has hard negatives; give --criterion clear_nt_xent")
        masks = Masks(self.cfg, self.dictionary, as_stock=not self.needs.views) if self.needs.mlm else None
        return ClearDataset(
            mlm_input if self.needs.mlm else None,
            masks,
            view_maker,
            self.cfg.seed,
            padding=self.dictionary.pad(),
            joint=joint,
            contrastive=self.needs.views,
            reshuffles=self.needs.views and split == self.cfg.train_subset,
        )

    def build_view_maker(self, sentences: Any, combine: bool = False) -> ViewMaker:
        """Build the ViewMaker for these sentences, or documents; ``combine``: of train, train1, ..."""

        def load(path: str) -> Any:
            check_data_files(path, self.text_entries, combine=combine)
            return data_utils.load_indexed_dataset(path, self.source_dictionary, combine=combine)

        cfg = self.cfg
        if cfg.hard_negatives and isinstance(sentences, Documents):
            raise UserError("--hard-negatives: only works with views of sentences, such as same and paraphrase")
        settings = {name: getattr(cfg, name) for name in find_view_source(cfg.views)[0].settings}
        aligned = partial(aligned_sentences, sentences, load=load)
        views = partial(aligned, flag="--views paraphrase")
        source = build_view_source(cfg.views, sentences, aligned=views, settings=settings)
        if cfg.hard_negatives:
            negatives = [aligned(name, flag="--hard-negatives") for name in cfg.hard_negatives.split(",")]
            source = WithHardNegatives(source, negatives, sentences)
        only_positives = str(cfg.augment_texts) == "positives"
        return ViewMaker(
            source, self.chain, cfg.seed, cfg.tokens_per_sample, only_positives=only_positives, prompts=self._prompts()
        )

    def _prompts(self) -> tuple[Tokens, Tokens]:
        """The ids of ``--prompts``; UserError if the encoder has no such prompt, or its tokenizer joins it with the text."""
        if not self.cfg.prompts:
            return NO_PROMPT, NO_PROMPT
        known, names = prompts_of(self.model), self.cfg.prompts.split(",")
        for name in names:
            if name and not known.get(name):
                has = ", ".join(name for name, text in known.items() if text) or "none"
                raise UserError(f"--prompts {name}: the encoder has no such prompt; it has {has}")
        tokenizer = load_tokenizer(self.folder)
        ids = [np.array(prompt_ids(self.dictionary, tokenizer, known.get(name, "")), np.int64) for name in names]
        if len(ids) > 2 or max(map(len, ids)) + FRAME >= self.cfg.tokens_per_sample:
            raise UserError(
                f"--prompts {self.cfg.prompts}: give one or two names, of prompts shorter than --tokens-per-sample"
            )
        for model in (self.model, *([self.guide.model] if self.guide is not None else [])):
            if not sentence_settings(model).get("include_prompt", True):
                model.leave_out([part.tolist() for part in ids])
        return ids[0], ids[-1]

    @exit_on_user_error
    def get_batch_iterator(self, dataset: Any, *args: Any, num_shards: int = 1, **kwargs: Any) -> Any:
        """Return fairseq's batch iterator; errors in its limits are one line.

        With views, fairseq shuffles groups of one batch for each worker, because the negatives of a text come from all
        workers: the batches of a group hold texts of similar length, and of one corpus with ``--mix-batches one``. In each
        step, the workers together read what one worker with a batch of all their texts would read, unless ``--max-tokens``
        limits the batches. No batch is rounded to a multiple of 8.
        """
        is_training = dataset is self.datasets.get(self.cfg.train_subset)
        dataset.limit_flag = "--max-tokens" if is_training else "--max-tokens-valid"
        if self.needs.views:
            kwargs |= {"grouped_shuffling": True, "required_batch_size_multiple": 1}
        if kwargs.get("grouped_shuffling"):  # of an incomplete group, fairseq would read no batch
            dataset.workers = num_shards
        return super().get_batch_iterator(dataset, *args, num_shards=num_shards, **kwargs)

    def load_sentences(self, split: str, epoch: int = 1, combine: bool = False) -> Any:
        """Load the sentences of a split, or its documents if ``--views`` reads documents, before masks and views.

        A text longer than ``--tokens-per-sample`` is split into several, or cut off if lines are aligned with lines of other
        files.
        """
        kind, _ = find_view_source(self.cfg.views)
        begin, end = self.dictionary.bos(), self.dictionary.eos()
        try:
            paths = utils.split_paths(self.cfg.data)
            path = os.path.join(paths[(epoch - 1) % len(paths)], split)
            name = f"{path} ({split})"
            check_data_files(path, self.text_entries, combine=combine)
            if self.cfg.sample_break_mode != "eos" and not kind.needs_documents:
                blocks = super()._load_dataset_split(split, epoch, combine)
                return BlockDataset(blocks, self.cfg.tokens_per_sample, name)
            lines = data_utils.load_indexed_dataset(path, self.source_dictionary, combine=combine)
            if lines is None:
                raise FileNotFoundError(f"Dataset not found: {split} ({path})")
        except FileNotFoundError as error:
            raise UserError(f"{error}: make it with fairseq-clear prepare, or give another split or folder") from error
        if kind.needs_documents:
            return documents_of(lines, begin, end, boundary=str(self.cfg.document_boundary), name=name)
        prefix = path if kind.values or self.cfg.hard_negatives else None  # its lines are aligned with others
        sentences = SentenceDataset(lines, begin, end, self.cfg.tokens_per_sample, name, prefix)
        if len(sentences) == 0:
            raise UserError(f"{path}: {split} holds no sentence, only blank lines")
        return sentences

    @classmethod
    def check_run(cls, cfg: Any) -> None:
        """Check all settings of a run before anything is read or written; UserError for the first wrong one."""
        criterion, model = cfg.criterion._name, cfg.model._name
        if criterion not in STOCK_CRITERIONS and not issubclass(CRITERION_REGISTRY[criterion], ContrastiveCriterion):
            raise UserError(f"--criterion {criterion}: does not fit --task clear_lm; give masked_lm or a clear_*")
        if not issubclass(ARCH_MODEL_REGISTRY[model], FairseqEncoderModel):
            raise UserError(f"--arch {model}: is not an encoder; give --arch clear_roberta_base or another clear_*")
        for name, _ in MEASURED.values():
            if cfg.task[name] and not issubclass(ARCH_MODEL_REGISTRY[model], ContrastiveModel):
                flag = f"--{name.replace('_', '-')}"
                raise UserError(
                    f"--arch {model}: does not embed texts, which {flag} needs; give a clear_*, or leave it out"
                )
        check_numbers(cfg)
        check_metric(cfg)
        check_allowed(cfg)
        parse_mix(cfg.task.mix, cfg.task.data)
        try:
            data_utils.raise_if_valid_subsets_unintentionally_ignored(cfg)
        except ValueError as error:
            raise UserError(f"{cfg.task.data}: {error}") from None
        except OSError:
            pass  # setup_task reports a folder that cannot be read

    def check_checkpoint(self, trainer: Any, path: str, state: dict[str, Any], *, resumes: bool) -> None:
        """Check a checkpoint from which the run resumes, or only takes the weights; UserError if it belongs to another run."""
        check_same_vocabulary(state, path, str(self.folder))
        saved = state.get("task_state") or {}
        if resumes and "run" not in saved:
            logger.info("%s does not record its settings: they are not compared with this run's", path)
        elif resumes:
            for difference in check_same_run(saved["run"], self._run_record(trainer), path, self.cfg.allow_change):
                logger.warning("resuming with a changed setting: %s", difference)
        if resumes:
            history = state.get("optimizer_history") or [{}]
            if state.get("last_optimizer_state") is None and history[-1].get("num_updates"):
                raise UserError(
                    f"{path}: holds no optimizer state (--no-save-optimizer-state), so no run resumes from it; give another "
                    f"--save-dir, with --finetune-from-model {path} to start from its weights"
                )
            stopping.continue_best(state, saved.get("early_stopping", {}), trainer.cfg.checkpoint)
        check_same_architecture(state, trainer.get_model(), path, self.cfg.allow_change)

    @exit_on_user_error
    def begin(self, trainer: Any) -> None:
        """Log the summary of the run; a run that does not resume copies its initial weights to the key encoders."""
        if trainer.is_data_parallel_master:
            self._run_record(trainer)
            log_summary(self, trainer)
        if trainer.get_num_updates() == 0 and isinstance(self.model, ContrastiveModel):
            self.model.begin()

    def _run_record(self, trainer: Any) -> dict[str, Any]:
        if not self.record:
            self.record = run_record(trainer.cfg, trainer.get_model(), self.chain)
            if self.needs.views:
                self.record["draws"] = DRAWS
                del self.record["required_batch_size_multiple"]  # has no effect
        return self.record

    def state_dict(self) -> dict[str, Any]:
        """The task's part of a checkpoint: the record of the run, the hash of its vocabulary, and the count of --patience."""
        dictionary = self.folder / DICTIONARY
        known: dict[str, Any] = {"vocabulary_hash": hash_file(dictionary)} if dictionary.exists() else {}
        known |= {"early_stopping": dict(stopping.early_stopping)} if stopping.early_stopping else {}
        return {**super().state_dict(), **known, **({"run": self.record} if self.record else {})}

    def train_step(
        self, sample: Any, model: Any, criterion: Any, optimizer: Any, update_num: int, ignore_grad: bool = False
    ) -> Any:
        """Make a training step, and watch its statistics."""
        self.watch.update = update_num
        return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        """Make an optimizer step, then a step of the key encoder, unless a gradient overflowed."""
        super().optimizer_step(optimizer, model=model, update_num=update_num)
        if isinstance(self.model, ContrastiveModel):
            self.model.after_update(overflowed=has_overflowed(optimizer))

    def valid_step(self, sample: Any, model: Any, criterion: Any) -> Any:
        """Make a validation step, without the warnings of training."""
        self.watch.update = None
        return super().valid_step(sample, model, criterion)

    def begin_valid_epoch(self, epoch: int, model: Any) -> None:
        """Score the model on ``--eval-sts`` and ``--eval-retrieval``, once for all valid subsets."""
        super().begin_valid_epoch(epoch, model)
        for validation in (self.sts, self.retrieval):
            if validation is not None:
                validation(model, self.dictionary)

    def reduce_metrics(self, logging_outputs: Any, criterion: Any) -> None:
        """Log averages; warn about views that are too easy and about missing negatives.

        Scores of ``--eval-sts`` and ``--eval-retrieval`` are logged for every subset: the best checkpoint's metric may be one.
        """
        logging_outputs = read_figures(logging_outputs)
        super().reduce_metrics(logging_outputs, criterion)
        for name, validation in (("sts_spearman", self.sts), ("retrieval_mrr", self.retrieval)):
            if validation is not None and validation.score is not None and self.watch.update is None:
                metrics.log_scalar(name, validation.score, round=2)
        self.watch(logging_outputs, self.needs.max_update)
