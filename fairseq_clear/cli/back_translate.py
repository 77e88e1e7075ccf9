"""``fairseq-clear back-translate``: translates a text into another language and back."""

import argparse
from pathlib import Path

from fairseq_clear.cli.console import quiet_logs
from fairseq_clear.preparation.back_translation.translation_settings import (
    BPE_KINDS,
    SAMPLING_PASSES,
    TOKENIZER_KINDS,
    TOO_LONG,
    BackTranslateSettings,
    ModelSource,
    Search,
)

DESCRIPTION = """\
Translate every line of a text into another language and back, by translation models of fairseq-train: an unpacked
WMT19 archive, or any checkpoint of --task translation with its dictionaries and codes.

The output has exactly one line for each input line. A blank line stays blank; control characters and runs of white
space become one space. A line that cannot be translated keeps its own text and is counted. To resume a killed call,
rerun it: finished chunks are not translated again, and the output equals that of an uninterrupted call. The report
(identical lines, lengths, self-BLEU, which lines were kept and why) is written next to the output."""

EPILOG = """\
examples:
  fairseq-clear back-translate --input train.txt --forward wmt19.en-de.joined-dict.ensemble \\
      --backward wmt19.de-en.joined-dict.ensemble --output train.de.txt --device cuda --fp16
  fairseq-clear back-translate --input train.txt --forward en-de --backward de-en --output train.de.txt \\
      --num-shards 16 --shard-id $SLURM_ARRAY_TASK_ID        # train.de.txt.00of16 ...
  fairseq-clear back-translate --input train.txt --forward en-de --backward de-en --output train.de.txt \\
      --num-shards 16 --merge                                # the same flags: joins the shards and their reports"""

_DEFAULTS = BackTranslateSettings(Path(), Path(), ModelSource(""), ModelSource(""))
_SEARCH = Search()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "--input", required=True, type=Path, metavar="FILE", help="UTF-8 text, one sentence a line; also .gz or .xz"
    )
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="the text to write")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing output, and drop chunks of other settings"
    )
    _add_model_arguments(parser.add_argument_group("models"))
    _add_search_arguments(parser.add_argument_group("search"))
    _add_running_arguments(parser.add_argument_group("running"))


def _add_model_arguments(group: "argparse._ArgumentGroup") -> None:
    for which, what in (("forward", "into the other language"), ("backward", "back")):
        group.add_argument(
            f"--{which}", required=True, metavar="DIR",
            help=f"model that translates {what}: a folder with model*.pt (several are an ensemble), checkpoint_best.pt or "
            "checkpoint_last.pt; or checkpoints joined by ':'",
        )  # fmt: skip
        group.add_argument(
            f"--{which}-data", type=Path, metavar="DIR",
            help="folder of the model's dict.LANGUAGE.txt (default: the checkpoint's folder)",
        )  # fmt: skip
        group.add_argument(
            f"--{which}-codes", type=Path, metavar="FILE",
            help="the model's BPE codes (of fastBPE or subword-nmt) or sentencepiece FILE.model (default: bpecodes, code, "
            "codes, sentencepiece.bpe.model or spm.model next to the checkpoint)",
        )  # fmt: skip
    group.add_argument(
        "--bpe", choices=BPE_KINDS, default=_DEFAULTS.bpe,
        help="how words are split into pieces; auto: as the file of codes says, and not at all without such a file "
        "(default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--tokenizer", choices=TOKENIZER_KINDS, default=_DEFAULTS.tokenizer,
        help="how text is split into words; auto: moses before bpe, else none (default: %(default)s)",
    )  # fmt: skip


def _add_search_arguments(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--beam", type=int, metavar="N",
        help="beam width; with --sampling, number of samples, of which the likeliest is kept (default: 5, with --sampling 1)",
    )  # fmt: skip
    group.add_argument(
        "--sampling", nargs="?", const=SAMPLING_PASSES[0], choices=SAMPLING_PASSES,
        help="draw words from the model's distribution in both passes, or in one of them",
    )  # fmt: skip
    group.add_argument("--sampling-topk", type=int, metavar="K", help="draw among the K likeliest words")
    group.add_argument(
        "--sampling-topp",
        type=float,
        metavar="P",
        help="draw among the likeliest words whose probabilities add up to P",
    )
    group.add_argument(
        "--temperature", type=float, default=_SEARCH.temperature, help="divides the logits (default: %(default)s)"
    )
    group.add_argument(
        "--lenpen", type=float, default=_SEARCH.lenpen,
        help="scores are divided by length to this power; above 1 favours long translations (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--max-len-a", type=float, default=_SEARCH.max_len_a, metavar="A",
        help="a translation has at most A times the source's tokens, plus B (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--max-len-b", type=int, default=_SEARCH.max_len_b, metavar="B", help="see --max-len-a (default: %(default)s)"
    )
    group.add_argument("--seed", type=int, default=_DEFAULTS.seed, help="seed of --sampling (default: %(default)s)")
    group.add_argument(
        "--too-long", choices=TOO_LONG, default=_DEFAULTS.too_long,
        help="what to do with a line that is too long for the model: split it into sentences (a line with a sentence that is "
        "too long is copied), or copy it "
        "(default: %(default)s)",
    )  # fmt: skip


def _add_running_arguments(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N (default: cuda if available)")
    group.add_argument("--fp16", action="store_true", help="half precision, on a GPU")
    group.add_argument(
        "--max-tokens", type=int, default=_DEFAULTS.max_tokens, metavar="N",
        help="maximum source tokens of a batch, padding included; give less for a beam above 5. A batch that does not fit "
        "into memory is halved (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--batch-size", type=int, metavar="N", help="maximum lines of a batch (default: no limit)")
    group.add_argument(
        "--chunk-lines", type=int, default=_DEFAULTS.chunk_lines, metavar="N",
        help="lines of a chunk, which is sorted by length, translated and saved as one; a killed call loses at most one chunk "
        "per worker (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--workers", type=int, default=_DEFAULTS.workers, metavar="N",
        help="number of processes, each with both models; with cuda, each on its own GPU. The output does not depend on it "
        "(default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads of each process (default: OMP_NUM_THREADS, else the available cores divided by --workers)",
    )
    group.add_argument(
        "--num-shards", type=int, default=_DEFAULTS.num_shards, metavar="N",
        help="divide the input over N calls, each with its --shard-id. They write OUTPUT.0ofN and so on; joined in this order "
        "they equal the output of a single call (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--shard-id",
        type=int,
        default=_DEFAULTS.shard_id,
        metavar="I",
        help="shard of this call, 0 to N - 1 (default: %(default)s)",
    )
    group.add_argument(
        "--merge", action="store_true",
        help="join the finished shards into OUTPUT, with one report; fails if a shard is missing or has other settings",
    )  # fmt: skip
    group.add_argument(
        "--log-interval", type=float, default=_DEFAULTS.log_interval, metavar="SECONDS",
        help="seconds between two lines of progress if standard error is not a terminal (default: %(default)s)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Translate, print the report and return 0."""
    settings = _settings(args)
    settings.check()
    # fairseq takes seconds to import
    from fairseq_clear.preparation.back_translation.round_trip import back_translate, merge_shards

    with quiet_logs():
        outcome = merge_shards(settings) if args.merge else back_translate(settings)
    print(outcome.summary())
    return 0


def _settings(args: argparse.Namespace) -> BackTranslateSettings:
    given = vars(args)
    names = BackTranslateSettings.__dataclass_fields__
    values = {name: given[name] for name in names if name in given}
    for which in ("forward", "backward"):
        values[which] = ModelSource(given[which], given[f"{which}_data"], given[f"{which}_codes"])
    values["search"] = Search(**{name: given[name] for name in Search.__dataclass_fields__})
    return BackTranslateSettings(**values)
