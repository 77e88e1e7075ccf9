"""Writes what docs/ takes from the code: ``python scripts/write_tables.py``. ``--check`` only compares it.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``. The pages of flags are written as a whole.
"""

import argparse
import ast
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def tagged(text: str) -> str:
    """Escape plain text for Markdown: ``<mask>`` and the like become code, stars and bars are escaped."""

    def plain(part: str) -> str:
        return re.sub(r"<(/?\w+)>", r"`<\1>`", part).replace("*", r"\*")

    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else plain(part) for part in parts).replace("|", "\\|")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = list(head)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *map(list, rows)])


def augmentation_table() -> str:
    """AUGMENTATIONS: name, summary, knobs with their defaults, source."""
    from fairseq_clear.augmentations import AUGMENTATIONS
    from fairseq_clear.spec import format_value

    def knobs(entry: object) -> str:
        return ", ".join(f"`{knob}={format_value(spec.default)}`" for knob, spec in entry.knobs.items())

    rows = ([f"`{name}`", tagged(entry.summary), knobs(entry), entry.paper] for name, entry in AUGMENTATIONS.items())
    return table(["name", "what it does", "knobs, with their defaults", "source"], rows)


def view_table() -> str:
    """VIEWS: name, values and knobs, summary."""
    from fairseq_clear.views.view_table import VIEWS

    rows = []
    for name, kind in VIEWS.items():
        knobs = ", ".join(f"`{knob}={spec.default}`" for knob, spec in kind.knobs.items())
        rows.append([f"`{name}`", tagged(kind.summary), knobs or (f"`{kind.values}`" if kind.values else "")])
    return table(["`--views`", "which texts form a positive pair", "knobs, with their defaults"], rows)


def objective_table() -> str:
    """OBJECTIVES: name, the criterion that offers it, summary, paper."""
    from fairseq_clear.objectives import OBJECTIVES

    criterions = {"batch": "clear_nt_xent", "queue": "clear_moco", "layers": "clear_self_guided"}
    rows = (
        [f"`{name}`", f"`{criterions[entry.candidates]}`", tagged(entry.summary.replace("``", "`")), entry.paper]
        for name, entry in OBJECTIVES.items()
    )
    return table(["`--objective`", "criterion", "what it computes", "paper"], rows)


def patch_table() -> str:
    """PATCHES: what is replaced, why, and its test."""
    from fairseq_clear.patches import PATCHES

    rows = ([f"`{patch.target or patch.replacement}`", tagged(patch.reason), f"`{patch.test}`"] for patch in PATCHES)
    return table(["replaced in fairseq, or called at the start", "without it", "tested by"], rows)


def resume_table() -> str:
    """Settings of fairseq that a resumed run must share, and what they determine."""
    from fairseq_clear.tasks.run_record import DETERMINING

    rows = (
        [f"`{section}`", ", ".join(f"`--{name.replace('_', '-')}`" for name in names.split()), determined]
        for section, groups in DETERMINING.items()
        for determined, names in groups.items()
    )
    return table(["section", "flags", "determines"], rows)


def command_table() -> str:
    """The commands of fairseq-clear."""
    from fairseq_clear.cli import COMMANDS

    return table(
        ["command", "what it does"],
        ([f"`{name}`", tagged(line)] for name, (_, line) in COMMANDS.items()),
    )


def layer_table() -> str:
    """The packages by layer, from the list in ``tests/test_layers.py``, with the first paragraphs of their docstrings."""
    source = (ROOT / "tests" / "test_layers.py").read_text(encoding="utf-8")
    levels = ast.literal_eval(re.search(r"^LEVELS = (\(.*?^\))", source, flags=re.M | re.S)[1])
    layers = {name: level for level, names in enumerate(levels) for name in names.split()}
    rows = []
    for name, layer in sorted(layers.items(), key=lambda item: item[1]):
        path = ROOT / "fairseq_clear" / name
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        rows.append([str(layer), f"`{name}`", tagged(docstring.split("\n\n")[0].replace("\n", " ").replace("``", "`"))])
    return table(["layer", "package", "what it holds"], rows)


# lines and files of each package at commit 876653a, before features were cut
BEFORE = {
    "augmentations": (944, 9), "cli": (2701, 15), "criterions": (839, 6), "data": (702, 5), "evaluation": (6120, 25),
    "interop": (1615, 7), "launch": (275, 2), "models": (1074, 7), "modules": (931, 9), "objectives": (680, 9),
    "optimizers": (72, 2), "patches": (1669, 9), "planning": (1418, 5), "preparation": (3876, 19), "refining": (1146, 6),
    "tasks": (1490, 9), "text": (1173, 7), "views": (1287, 7), "modules of the root": (995, 8),
}  # fmt: skip


def size_table() -> str:
    """Lines and files of each package, before the cut and now; an ``__init__.py`` of one line is not counted."""
    counts = {name: [0, 0] for name in BEFORE}
    for path in sorted((ROOT / "fairseq_clear").rglob("*.py")):
        lines = path.read_text(encoding="utf-8").count("\n")
        parts = path.relative_to(ROOT / "fairseq_clear").parts
        entry = counts.setdefault(parts[0] if len(parts) > 1 else "modules of the root", [0, 0])
        entry[0], entry[1] = entry[0] + lines, entry[1] + (path.name != "__init__.py" or lines > 1)
    rows = [(name, *BEFORE.get(name, (0, 0)), *entry) for name, entry in sorted(counts.items())]
    rows.append(("all", *(sum(row[column] for row in rows) for column in range(1, 5))))
    shown = ([f"`{row[0]}`" if row[0] in counts else row[0], *(f"{number:,}" for number in row[1:])] for row in rows)
    return table(["package", "lines before", "files before", "lines", "files"], shown)


def command_page() -> str:
    """Every command of fairseq-clear, from its parser."""
    from fairseq_clear.cli import COMMANDS
    from fairseq_clear.cli.main import build_parser

    lines = ["# Commands", "", "The flags of every command, as `fairseq-clear COMMAND --help` prints them.", ""]
    for name in COMMANDS:
        parser = subparsers(build_parser(name))[name]
        lines += [f"## {name}", "", *describe(parser)]
        for step, nested in subparsers(parser).items():
            lines += [f"### {name} {step}", "", *describe(nested)]
    return "\n".join(lines)


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a parser's subcommands."""
    found = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(next(found).choices) if any(isinstance(a, argparse._SubParsersAction) for a in parser._actions) else {}


def describe(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Description, flags by group, and examples of one parser."""
    if parser.description:
        yield preformatted(parser.description)
    for group in parser._action_groups:
        actions = [
            a for a in group._group_actions if not isinstance(a, argparse._HelpAction | argparse._SubParsersAction)
        ]
        if actions:
            title = (group.title or "").capitalize()
            yield from [f"**{title}**", ""] if title not in {"Options", "Positional arguments"} else []
            yield from (item for action in actions for item in definition(parser, action))
            yield ""
    if parser.epilog:
        title, _, examples = parser.epilog.partition("\n")
        yield from [f"**{title.rstrip(':').capitalize()}**", "", "```bash", inspect.cleandoc(examples), "```", ""]


def preformatted(text: str) -> str:
    """A description: paragraphs as Markdown, aligned lists as preformatted text."""
    blocks = []
    for block in inspect.cleandoc(text).split("\n\n"):
        is_list = block.startswith("  ")
        blocks.append(f"```text\n{block}\n```\n" if is_list else tagged(block) + "\n")
    return "\n".join(blocks)


def definition(parser: argparse.ArgumentParser, action: argparse.Action) -> Iterator[str]:
    """One flag as an item of a list."""
    formatter = argparse.HelpFormatter(parser.prog)
    if action.option_strings:
        default = formatter._get_default_metavar_for_optional(action)
        value = "" if action.nargs == 0 else " " + formatter._format_args(action, default)
        term = ", ".join(action.option_strings) + value
    else:
        term = formatter._format_args(action, formatter._get_default_metavar_for_positional(action))
    text = formatter._expand_help(action) if action.help else ""
    yield f"- `{term}`: {tagged(' '.join(text.split())) or '(no further help)'}"


def training_page() -> str:
    """The flags that the plugin gives fairseq-train, from its dataclasses and the model's parser."""
    import fairseq_clear

    fairseq_clear.register()
    logging.getLogger().handlers.clear()  # fairseq sets up the root logger, which would repeat what ProperDocs logs
    logging.getLogger().setLevel(logging.WARNING)
    from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    from fairseq_clear.models.architectures import add_contrastive_flags, add_model_flags
    from fairseq_clear.models.clear_hf import ClearHfModel

    shared = argparse.ArgumentParser()
    add_contrastive_flags(shared)
    roberta, transformers = (own_flags(add, shared) for add in (add_model_flags, ClearHfModel.add_args))
    archs = ", ".join(f"`{name}`" for name in sorted(ARCH_MODEL_REGISTRY) if name.startswith("clear_roberta"))
    lines = [
        "# Training flags",
        "",
        "The flags that `--user-dir fairseq_clear` adds to `fairseq-train`. In a hydra file they are settings of the sections",
        "`task`, `model`, `criterion` and `optimizer`, with `_` in place of `-`. All other flags are fairseq's own:",
        "`fairseq-train --help` lists them.",
        "",
        *("## Task clear_lm", "", *dataclass_flags(TASK_DATACLASS_REGISTRY["clear_lm"])),
        *("## Every model", "", *describe(shared)),
        *(
            "## Model clear_roberta",
            "",
            f"Architectures: {archs}. RoBERTa's own flags work too.",
            "",
            *describe(roberta),
        ),
        *("## Model clear_hf", "", "Architecture: `clear_hf`.", "", *describe(transformers)),
    ]
    for kind, registry in (("Criterion", CRITERION_DATACLASS_REGISTRY), ("Optimizer", OPTIMIZER_DATACLASS_REGISTRY)):
        for name in sorted(registry):
            if name.startswith("clear_"):
                lines += [f"## {kind} {name}", "", *dataclass_flags(registry[name])]
    return "\n".join(lines)


def own_flags(
    add: Callable[[argparse.ArgumentParser], None], shared: argparse.ArgumentParser
) -> argparse.ArgumentParser:
    """A parser of the flags that ``add`` declares, without the flags of ``shared``."""
    parser = argparse.ArgumentParser(conflict_handler="resolve")
    add(parser)
    known = {action.dest for action in shared._actions} - {"help"}
    for group in parser._action_groups:
        group._group_actions = [action for action in group._group_actions if action.dest not in known]
    return parser


def dataclass_flags(config: type) -> Iterator[str]:
    """The flags that fairseq makes of a dataclass, with their defaults."""
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    parser = argparse.ArgumentParser()
    gen_parser_from_dataclass(parser, config())
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        action.help = (action.help or "").replace("%", "%%")
        # 0 == False, but a default of 0 is shown
        shown = action.default is not False and action.default not in (None, argparse.SUPPRESS, "", "???")
        (item,) = definition(parser, action)
        yield f"{item} (default: `{action.default}`)" if shown else item


TABLES: dict[str, Callable[[], str]] = {
    "augmentations": augmentation_table,
    "commands": command_table,
    "layers": layer_table,
    "objectives": objective_table,
    "patches": patch_table,
    "resuming": resume_table,
    "sizes": size_table,
    "views": view_table,
}
# Pages that are made of the code alone
PAGES = {"reference/commands.md": command_page, "reference/training-flags.md": training_page}
UNCHECKED = {"sizes"}  # changes with every commit


def written(text: str, names: Iterable[str] = TABLES) -> str:
    """The text of a page with these tables written anew."""
    for name in names:
        block = re.compile(rf"(<!-- table: {name} -->\n)(?:.*?\n)??(<!-- end of table -->)", flags=re.S)
        text = block.sub(lambda match, name=name: f"{match[1]}\n{TABLES[name]()}\n\n{match[2]}", text)
    return text


def main() -> int:
    """Write the tables, or check them; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a table is out of date")
    is_check = parser.parse_args().check
    stale = []
    docs = ROOT / "docs"
    for page in [*sorted(docs.glob("*.md")), *(docs / name for name in PAGES)]:
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        if make := PAGES.get(str(page.relative_to(docs))):
            new = f"{make().rstrip()}\n"
        else:
            new = written(text, [name for name in TABLES if not (is_check and name in UNCHECKED)])
        if new != text:
            stale.append(str(page.relative_to(ROOT)))
            if not is_check:
                page.parent.mkdir(exist_ok=True)
                page.write_text(new, encoding="utf-8")
    for page in stale:
        print(f"write_tables: {page}: {'out of date; run make tables' if is_check else 'written'}")
    return int(is_check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
