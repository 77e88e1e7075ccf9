"""``fairseq-clear glue``: fine-tunes and evaluates a checkpoint on GLUE."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clear.cli.console import TOKENIZER_HELP, choose_tokenizer, quiet_logs
from fairseq_clear.errors import UserError
from fairseq_clear.text.data_folders import data_folders

if TYPE_CHECKING:
    from fairseq_clear.evaluation.glue.glue_running import Environment, Restart, Start

DESCRIPTION = """Fine-tune a checkpoint on GLUE's tasks with fairseq's own sentence_prediction task, and predict the test sets.

  text      write the texts of GLUE's tasks, without labels, as text files for fairseq-clear prepare
  prepare   convert GLUE's tsv files to the folders that sentence_prediction reads, with the checkpoint's vocabulary
  run       fine-tune on every task with several seeds (restarts) and the hyper-parameters of a paper; report median and best
  predict   write the zip file for GLUE's test server"""

EPILOG = """\
examples (fairseq-clear glue STEP --help lists every flag):
  fairseq-clear glue text --glue-dir glue_data --tasks CoLA RTE --dest texts    # texts/CoLA.txt, texts/RTE.txt
  fairseq-clear glue text ... --splits train dev --pairs joined --drop-malformed
  fairseq-clear glue prepare --glue-dir glue_data --data-bin data-bin --dest glue-bin --tasks CoLA RTE
  fairseq-clear glue prepare ... --tasks QQP --split-dev 10/90 --drop-malformed
  fairseq-clear glue run --checkpoint checkpoint_best.pt --data glue-bin --recipe clear --tasks CoLA RTE --output runs
  fairseq-clear glue run ... --seeds 5 --local-jobs 2 --epochs 3 --lr 3e-4 --max-length 128 --precision fp16 --label tiny
  fairseq-clear glue run ... --slurm='--partition=gpu --gres=gpu:1'
  fairseq-clear glue predict --checkpoints runs --data glue-bin --majority WNLI --output submission.zip"""

REPORT = "report.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of the four steps."""
    from fairseq_clear.evaluation.glue.glue_tasks import GLUE_TASKS

    parser.description, parser.epilog = DESCRIPTION, EPILOG
    steps = parser.add_subparsers(dest="step", metavar="STEP", required=True)
    names = ", ".join(GLUE_TASKS)
    _add_text(steps.add_parser("text", help="write GLUE's texts as text files for fairseq-clear prepare"), names)
    _add_prepare(steps.add_parser("prepare", help="convert GLUE's files to folders for fairseq-train"), names)
    _add_run(steps.add_parser("run", help="fine-tune with several seeds"), names)
    _add_predict(steps.add_parser("predict", help="write the submission for the test server"))


def _add_text(parser: argparse.ArgumentParser, names: str) -> None:
    parser.add_argument(
        "--glue-dir", required=True, type=Path, metavar="DIR", help="GLUE's folder, with a folder per task"
    )
    parser.add_argument(
        "--tasks", required=True, nargs="+", metavar="TASK", help=f"some of {names.removesuffix(', AX')}"
    )
    parser.add_argument(
        "--dest", type=Path, default=Path("glue-text"), metavar="DIR", help="writes DIR/TASK.txt (default: %(default)s)"
    )
    parser.add_argument(
        "--splits", nargs="+", choices=("train", "dev"), default=["train"],
        help="which splits to write; test sets are never written (default: train)",
    )  # fmt: skip
    parser.add_argument(
        "--pairs", choices=("separate", "joined"), default="separate",
        help="write the two texts of a pair as two documents, or as one line joined by a space (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--drop-malformed",
        action="store_true",
        help="leave out malformed lines and count them; otherwise they are an error",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")


def _add_prepare(parser: argparse.ArgumentParser, names: str) -> None:
    parser.add_argument(
        "--glue-dir", required=True, type=Path, metavar="DIR", help="GLUE's folder, with a folder per task"
    )
    parser.add_argument(
        "--data-bin", required=True, metavar="DIR", help="folder with dict.txt and tokenizer of the checkpoint"
    )
    parser.add_argument("--tokenizer", metavar="NAME", help=TOKENIZER_HELP)
    parser.add_argument("--tasks", required=True, nargs="+", metavar="TASK", help=f"some of {names}")
    parser.add_argument(
        "--dest", type=Path, default=Path("glue-bin"), metavar="DIR", help="writes DIR/TASK (default: %(default)s)"
    )
    parser.add_argument(
        "--split-dev", metavar="A/B",
        help="choose on the first A %% of the dev set, and report scores on its last B %% (Self-Guided A.4: 10/90)",
    )  # fmt: skip
    parser.add_argument(
        "--drop-malformed", action="store_true",
        help="leave malformed lines of train and dev out, and count them; otherwise they are an error",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace prepared tasks")


def _add_run(parser: argparse.ArgumentParser, names: str) -> None:
    parser.add_argument(
        "--checkpoint", required=True, type=Path, metavar="FILE", help="checkpoint of clear_roberta or roberta"
    )
    parser.add_argument("--data", required=True, type=Path, metavar="DIR", help="output folder of glue prepare")
    parser.add_argument(
        "--recipe", required=True, choices=("clear", "cert"),
        help="clear: RoBERTa's hyper-parameters, as CLEAR 4.2; cert: those of CERT 5.2; both are listed in "
        "fairseq_clear/evaluation/glue/glue_recipes.py",
    )  # fmt: skip
    parser.add_argument("--tasks", required=True, nargs="+", metavar="TASK", help=f"some of {names}")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[5], metavar="N",
        help="number of restarts (seeds 1 to N), or several seeds (default: 5)",
    )  # fmt: skip
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("glue-runs"),
        metavar="DIR",
        help="folder of the runs (default: %(default)s)",
    )
    parser.add_argument("--label", metavar="TEXT", help="name of the table's rows (default: the checkpoint's name)")
    changes = parser.add_argument_group("values that replace the recipe's")
    changes.add_argument("--epochs", type=int, metavar="N")
    changes.add_argument("--batch-size", type=int, metavar="N")
    changes.add_argument("--lr", type=float, metavar="X", help="peak learning rate")
    changes.add_argument(
        "--warmup-share", type=float, metavar="X", help="share of the updates with a rising learning rate"
    )
    changes.add_argument("--weight-decay", type=float, metavar="X")
    changes.add_argument("--dropout", type=float, metavar="X")
    changes.add_argument(
        "--max-length", type=int, metavar="N", help="maximum tokens of an input, special ones included"
    )
    where = parser.add_argument_group("device and jobs")
    where.add_argument("--device", choices=("cpu", "cuda"), help="(default: cuda if available)")
    where.add_argument(
        "--precision", choices=("float32", "fp16", "bf16"), default="float32", help="precision of training"
    )
    where.add_argument("--local-jobs", type=int, default=1, metavar="N", help="restarts to run at a time (default: 1)")
    where.add_argument(
        "--slurm", nargs="?", const="", metavar="FLAGS",
        help="write OUTPUT/glue.sbatch, an array with one task per restart, and print how to submit it; FLAGS are sbatch's, "
        "as --slurm='--partition=gpu --gres=gpu:1'. Afterwards the same command without --slurm prints the table",
    )  # fmt: skip
    where.add_argument("--restart", type=int, metavar="I", help="run only restart I, from 0, as the array's tasks do")


def _add_predict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoints", required=True, nargs="+", metavar="DIR|TASK=FILE",
        help="--output of glue run, whose best restart of each task on the dev set is used, or single checkpoints",
    )  # fmt: skip
    parser.add_argument("--data", required=True, type=Path, metavar="DIR", help="output folder of glue prepare")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE.zip")
    parser.add_argument(
        "--recipe", choices=("clear", "cert"), default="clear", help="recipe whose metric chooses (default: clear)"
    )
    parser.add_argument(
        "--majority", nargs="+", default=[], metavar="TASK",
        help="tasks for which to predict the most frequent training label (on WNLI few fine-tuned models do better)",
    )  # fmt: skip
    parser.add_argument(
        "--max-length", type=int, metavar="N", help="maximum tokens of an input (default: as in training)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="(default: cuda if available)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def run(args: argparse.Namespace) -> int:
    """Run the step and return 0."""
    with quiet_logs():
        return {"text": _text, "prepare": _prepare, "run": _run, "predict": _predict}[args.step](args)


def _text(args: argparse.Namespace) -> int:
    from fairseq_clear.evaluation.glue.glue_tasks import choose_tasks, write_texts

    paths = [(task, args.dest / f"{task.name}.txt") for task in choose_tasks(args.tasks)]
    for task, path in paths:
        if "train" not in task.splits:
            raise UserError(f"--tasks {task.name}: has no training data, so there is no text to write")
        if path.exists() and not args.overwrite:
            raise UserError(f"--dest {path}: exists already; add --overwrite to replace it, or give another folder")
    args.dest.mkdir(parents=True, exist_ok=True)
    for task, path in paths:
        is_joined = args.pairs == "joined"
        written, dropped = write_texts(
            task, args.glue_dir, path, args.splits, is_joined=is_joined, drop_malformed=args.drop_malformed
        )
        end = f"; {dropped:,} malformed lines left out" if dropped else ""
        print(f"{task.name}: {written:,} texts{end}; wrote {path}")
    return 0


def _prepare(args: argparse.Namespace) -> int:
    from fairseq_clear.evaluation.glue.glue_data import parse_split_dev, prepare_task
    from fairseq_clear.evaluation.glue.glue_tasks import choose_tasks

    tasks = choose_tasks(args.tasks)
    split = None if args.split_dev is None else parse_split_dev(args.split_dev)
    folder = data_folders(args.data_bin)[0]
    tokenizer = choose_tokenizer(args.tokenizer, folder)
    for task in tasks:
        summaries = prepare_task(
            task, args.glue_dir, folder, args.dest, tokenizer,
            split_dev=split, drop_malformed=args.drop_malformed, overwrite=args.overwrite,
        )  # fmt: skip
        parts = ", ".join(f"{name} {summary.rows:,}" for name, summary in summaries.items())
        tokens, unknown = (sum(getattr(one, key) for one in summaries.values()) for key in ("tokens", "unknown"))
        dropped = sum(summary.dropped for summary in summaries.values())
        end = f"; {dropped:,} malformed lines left out" if dropped else ""
        print(
            f"{task.name}: {parts}; {unknown / max(tokens, 1):.2%} unknown tokens{end}; wrote {args.dest / task.name}"
        )
    return 0


def _run(args: argparse.Namespace) -> int:
    from fairseq_clear.evaluation.glue.glue_running import Environment, Start, plan_restarts, seed_list, slurm_script
    from fairseq_clear.evaluation.glue.glue_tasks import choose_tasks

    if args.local_jobs < 1:
        raise UserError(f"--local-jobs {args.local_jobs}: must be 1 or more")
    overrides = {
        "learning_rate": args.lr,
        **{
            name: getattr(args, name)
            for name in ("epochs", "batch_size", "warmup_share", "weight_decay", "dropout", "max_length")
        },
    }
    args.output = args.output.absolute()
    restarts = plan_restarts(
        choose_tasks(args.tasks), args.data.absolute(), args.recipe, seed_list(args.seeds), args.output, **overrides
    )
    if args.slurm is not None:
        script = args.output / "glue.sbatch"
        args.output.mkdir(parents=True, exist_ok=True)
        script.write_text(slurm_script(_arguments_without_slurm(args), len(restarts), args.output, args.slurm))
        print(f"sbatch {script}")
        return 0
    if args.restart is not None:
        if not 0 <= args.restart < len(restarts):
            raise UserError(f"--restart {args.restart}: there are restarts 0 to {len(restarts) - 1}")
        restarts = [restarts[args.restart]]
    start = Start.load(args.checkpoint.absolute(), restarts[0].data)
    note = start.pair_note([restart.data.task for restart in restarts])
    if note:
        print(note, file=sys.stderr)
    environment = Environment(args.device or _default_device(), args.precision)
    return _run_and_report(args, restarts, start, environment)


def _run_and_report(
    args: argparse.Namespace, restarts: "list[Restart]", start: "Start", environment: "Environment"
) -> int:
    import torch

    from fairseq_clear.evaluation.glue.glue_running import run_restarts
    from fairseq_clear.evaluation.glue.glue_summary import build_report, headline

    def done(restart: "Restart", result: dict[str, object]) -> None:
        metric = headline(args.recipe, restart.data.task.name)
        score = result["metrics"]["valid"][metric]  # type: ignore[index]
        print(f"{restart.name}: {metric} {score:.2f}, epoch {result['epoch']}", file=sys.stderr)
        if not result["agrees_with_fairseq"]:
            print(f"{restart.name}: fairseq logged an accuracy of {result['fairseq_accuracy']}", file=sys.stderr)

    devices = torch.cuda.device_count() if environment.device == "cuda" else 0
    run_restarts(restarts, start, environment, args.local_jobs, devices, done)
    if args.restart is not None:
        return 0
    report = build_report(restarts, args.recipe, start, args.label or args.checkpoint.stem, environment.precision)
    report.write(args.output / REPORT)
    print(report.table(bold=sys.stdout.isatty()))
    print(report.caption())
    print(f"wrote {args.output / REPORT}", file=sys.stderr)
    return 0


def _arguments_without_slurm(args: argparse.Namespace) -> list[str]:
    """The arguments of this command with absolute paths, because the array's tasks may start in another folder."""
    values = {**vars(args), "checkpoint": args.checkpoint.absolute(), "data": args.data.absolute()}
    arguments = ["glue", "run"]
    for name, value in values.items():
        if value is None or name in {"command", "step", "run", "slurm", "restart", "local_jobs"}:
            continue
        items = value if isinstance(value, list) else [value]
        arguments += [f"--{name.replace('_', '-')}", *map(str, items)]
    return arguments


def _predict(args: argparse.Namespace) -> int:
    from fairseq_clear.evaluation.glue.glue_predicting import predict_tests, write_submission

    if args.output.exists() and not args.overwrite:
        raise UserError(f"--output {args.output}: exists already; add --overwrite to replace it, or give another name")
    contents, lines = predict_tests(
        args.checkpoints, args.data, args.recipe, args.majority, args.device or _default_device(), args.max_length
    )
    missing = write_submission(args.output, contents)
    print("\n".join(lines))
    print(f"wrote {args.output}: {', '.join(contents)}")
    if missing:
        print(f"GLUE's server also expects {', '.join(missing)}", file=sys.stderr)
    return 0


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() and os.environ.get("CUDA_VISIBLE_DEVICES") != "" else "cpu"
