"""``fairseq-clear views``: what a recipe's views look like, as text."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_clear import register
from fairseq_clear.cli.console import TOKENIZER_HELP, choose_tokenizer, quiet_logs
from fairseq_clear.errors import UserError
from fairseq_clear.spec import BOUNDARIES, SHORT_DOCUMENTS, parse_spec
from fairseq_clear.text.tokenizers import Tokenizer, WhitespaceTokenizer

if TYPE_CHECKING:
    from fairseq_clear.tasks.clear_lm import ClearLMTask
    from fairseq_clear.views.inspection import ViewPrinter, ViewTotals
    from fairseq_clear.views.view_maker import ViewMaker
    from fairseq_clear.views.view_source import RawInstance

DESCRIPTION = """\
Print texts and the views that training would draw of them: the same --seed, --epoch, flags and index give the views of
fairseq-train --task clear_lm, whatever its batches and workers. What was deleted is bracketed in the text; what moved or
was substituted is marked in the view; for views of documents, bars show where in its document each span lies. With --augment
none each view is its text, which is shown once. The last lines sum up what is shown, and say where spans are single tokens."""

EPILOG = """\
examples:
  fairseq-clear views --data-bin data-bin --augment del-span+reorder
  fairseq-clear views --data-bin data-bin --augment subs:ratio=0.3+del-word/del-word --count 3 --epoch 2
  fairseq-clear views --data-bin data-bin --views span:strategy=adjacent --count 1
  fairseq-clear views --data-bin data-bin --augment del-word --text 'The film was better than the book.'"""

AS_THEY_ARE = "no augmentation: each view is its text; two views of one text differ by the model's dropout alone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags; those of a recipe have the names and defaults of ``--task clear_lm``."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "--data-bin", required=True, metavar="DIR", help="data folder, or DIR1:DIR2 as for fairseq-train"
    )
    recipe = parser.add_argument_group("recipe, as for fairseq-train")
    recipe.add_argument(
        "--views", default="same", metavar="SPEC", help="which texts form a pair (default: %(default)s)"
    )
    recipe.add_argument(
        "--augment", default="none", metavar="SPEC",
        help="what is done to each view, such as subs:ratio=0.3+del-span:spans=5,ratio=0.05 (default: %(default)s)",
    )  # fmt: skip
    recipe.add_argument(
        "--synonyms",
        metavar="FILE",
        help="table for subs and eda, whose ops rs and rd need none (default: synonyms.npz in the data folder)",
    )
    recipe.add_argument("--seed", type=int, default=1, metavar="N", help="of the run (default: %(default)s)")
    recipe.add_argument("--epoch", type=int, default=1, metavar="N", help="from 1; each has views of its own (1)")
    recipe.add_argument(
        "--sample-break-mode", choices=("none", "complete", "eos"), default="eos",
        help="eos: one sentence a sample; none, complete: blocks (default here: %(default)s; fairseq-train's is none)",
    )  # fmt: skip
    recipe.add_argument(
        "--tokens-per-sample", type=int, default=512, metavar="N", help="greatest length (default: %(default)s)"
    )
    recipe.add_argument(
        "--document-boundary", choices=BOUNDARIES, default="blank",
        help="what parts documents, for views of documents (default: %(default)s)",
    )  # fmt: skip
    recipe.add_argument(
        "--short-documents", choices=SHORT_DOCUMENTS, default="clip",
        help="what becomes of documents that are too short for the longest spans of --views span (2 anchors of up to 512 "
        "tokens need 3 x 512 = 1,536): clip shortens the spans, skip leaves the document out, error stops "
        "(default: %(default)s)",
    )  # fmt: skip
    which = parser.add_argument_group("which texts")
    which.add_argument("--split", default="train", help="of the data folder (default: %(default)s)")
    which.add_argument(
        "--text", nargs="+", metavar="TEXT",
        help="these sentences instead, as if they were the data (index 0, 1, ...), for views of documents the lines of one",
    )  # fmt: skip
    which.add_argument("--count", type=int, default=5, metavar="N", help="how many (default: %(default)s)")
    place = which.add_mutually_exclusive_group()
    place.add_argument("--start", type=int, default=0, metavar="N", help="index of the first (default: %(default)s)")
    place.add_argument("--index", type=int, metavar="N", help="this one alone")
    parser.add_argument("--tokenizer", metavar="NAME", help=f"{TOKENIZER_HELP} (default: words between spaces)")
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto",
        help="auto: on a terminal, unless NO_COLOR is set (default: %(default)s)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Print the views, return 0."""
    from fairseq_clear.text.data_folders import data_folders  # fairseq takes seconds to import, --help should not
    from fairseq_clear.views.inspection import ViewPrinter, ViewTotals

    _check_numbers(args)
    folders = data_folders(args.data_bin)
    tokenizer = choose_tokenizer(args.tokenizer, folders[0], WhitespaceTokenizer)
    with quiet_logs():
        task = _build_task(args, folders)
        maker = _view_maker(args, task, tokenizer)
    indices = _chosen(args, len(maker.source.text_lengths))
    printer = ViewPrinter(task.dictionary.symbols, tokenizer, colour=_wants_colour(args.color))
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal of another encoding still shows the rest
    print(f"--views {args.views} --augment {task.chain.spec} --seed {args.seed} --epoch {args.epoch}")
    print(AS_THEY_ARE if maker.augment.is_identity else printer.legend())
    totals = ViewTotals(deletes_spans=_deletes_spans_alone(task.chain.spec))
    for index in indices:
        _print_item(index, args.epoch, maker, printer, totals)
    print("\n" + "\n".join([totals.summary(), *totals.warnings()]))
    return 0


def _deletes_spans_alone(spec: str) -> bool:
    """Whether what is deleted is spans of del-span; other steps that delete cannot be distinguished in the view."""
    steps = {step.name for chain in parse_spec(spec, flag="--augment") for step in chain}
    return "del-span" in steps and not steps & {"del-word", "slice", "eda"}


def _check_numbers(args: argparse.Namespace) -> None:
    least = {"seed": 0, "epoch": 1, "count": 1, "start": 0, "index": 0, "tokens_per_sample": 3}
    for name, minimum in least.items():
        value = getattr(args, name)
        if value is not None and value < minimum:
            raise UserError(f"--{name.replace('_', '-')} {value}: must be {minimum} or more")


def _build_task(args: argparse.Namespace, folders: list[Path]) -> "ClearLMTask":
    """The task that training would set up; its constructor, not setup_task, as that logs mistakes instead of raising."""
    from fairseq_clear.tasks.clear_lm import ClearLMConfig, ClearLMTask

    register()
    cfg = ClearLMConfig(
        data=os.pathsep.join(str(folder) for folder in folders),
        views=args.views,
        augment=args.augment,
        synonyms=args.synonyms,
        document_boundary=args.document_boundary,
        short_documents=args.short_documents,
        sample_break_mode=args.sample_break_mode,
        tokens_per_sample=args.tokens_per_sample,
        seed=args.seed,
    )
    return ClearLMTask(cfg, ClearLMTask.load_dict(cfg))


def _view_maker(args: argparse.Namespace, task: "ClearLMTask", tokenizer: Tokenizer) -> "ViewMaker":
    texts = task.load_texts(args.split, args.epoch) if args.text is None else _typed_texts(args, task, tokenizer)
    return task.build_view_maker(texts)


def _typed_texts(args: argparse.Namespace, task: "ClearLMTask", tokenizer: Tokenizer) -> Any:
    import torch
    from fairseq.data import ListDataset

    from fairseq_clear.models.encoding import read_tokens
    from fairseq_clear.text.documents import Documents, Lines
    from fairseq_clear.text.sentence_dataset import SentenceDataset
    from fairseq_clear.views.view_table import find_view_source

    known = task.dictionary
    # without <s>, which the data set puts in front, as in a data folder
    lines = [torch.tensor(read_tokens(known, tokenizer, text)[1:]) for text in args.text]
    if find_view_source(args.views)[0].needs_documents:
        return Documents([Lines(lines)], known.bos(), known.eos(), boundary=args.document_boundary, name="--text")
    dataset = ListDataset(lines, [len(line) for line in lines])
    texts = SentenceDataset(dataset, known.bos(), known.eos(), args.tokens_per_sample, name="--text")
    if not len(texts):
        raise UserError("--text: only blank text; give a sentence")
    return texts


def _chosen(args: argparse.Namespace, items: int) -> range:
    first = args.start if args.index is None else args.index
    if first >= items:
        flag = "--start" if args.index is None else "--index"
        raise UserError(f"{flag} {first}: there are {items} texts, 0 to {items - 1}")
    return range(first, min(first + args.count, items) if args.index is None else first + 1)


def _print_item(index: int, epoch: int, maker: "ViewMaker", printer: "ViewPrinter", totals: "ViewTotals") -> None:
    from fairseq_clear.views.marking import mark_view

    traced = maker.trace(index, epoch)
    if not traced:
        print(f"\n#{index}: gives no pair")
    delete = printer.symbols.index("<del>")
    for number, (pair, views) in enumerate(traced, 1):
        print(f"\n#{index}" + (f", pair {number} of {len(traced)}" if len(traced) > 1 else ""))
        if pair.document >= 0:
            _print_spans(pair, maker, totals)
        lines: dict[str, list[str]] = {}  # line -> numbers of the texts; without augmentation, equal texts share it
        for role, (text, view) in enumerate(zip((pair.anchor, *pair.positives), views, strict=True), 1):
            may_substitute = maker.augment.needs_synonyms
            marked = mark_view(
                text, view.tokens, view.source, printer.words, delete=delete, may_substitute=may_substitute
            )
            shown = len(maker.cut(view.tokens))
            totals.add(marked, shown, view.words, view.substituted)
            if maker.augment.is_identity:
                lines.setdefault(printer.view_line(marked, shown), []).append(str(role))
                continue
            print(f"  text {role}  {printer.text_line(marked)}")
            print(f"  view {role}  {printer.view_line(marked, shown)}")
        for line, roles in lines.items():
            print(f"  text {', '.join(roles)}  {line}")


def _print_spans(pair: "RawInstance", maker: "ViewMaker", totals: "ViewTotals") -> None:
    from fairseq_clear.views.inspection import draw_span
    from fairseq_clear.views.span_sampling import kind_of

    source: Any = maker.source
    documents, number = source.documents, pair.document
    length = int(documents.lengths[number])
    print(f"  document {number + 1} (line {documents.first_line(number)}), {length} tokens")
    anchor = pair.spans[0]
    for role, span in enumerate(pair.spans, 1):
        is_single = totals.add_span(span)
        kind = "anchor" if role == 1 else kind_of(anchor, span)
        print(f"  span {role}  {draw_span(span, length)} {kind}" + ", ONE TOKEN" * is_single)


def _wants_colour(choice: str) -> bool:
    return choice == "always" or (choice == "auto" and sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
