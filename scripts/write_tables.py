"""Writes the tables that docs/*.md take from the code: ``python scripts/write_tables.py``. ``--check`` only compares them.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``.
"""

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable
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
    return table(["name", "what it does", "knobs, with the paper's values", "source"], rows)


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

    criterions = {"batch": "clear_nt_xent", "queue": "clear_moco", "guide": "clear_self_guided"}
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
    """Settings of fairseq that a resumed run must share, or may change, and why."""
    from fairseq_clear.tasks.run_record import DETERMINING, FREE_OF_FAIRSEQ

    def rows(settings: dict[str, dict[str, str]], kind: str) -> Iterable[list[str]]:
        for section, groups in settings.items():
            for reason, names in groups.items():
                flags = ", ".join(f"`--{name.replace('_', '-')}`" for name in names.split())
                yield [f"`{section}`", flags, kind, reason]

    return table(
        ["section", "flags", "on resuming", "determines"], [*rows(DETERMINING, "fixed"), *rows(FREE_OF_FAIRSEQ, "free")]
    )


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
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = written(text, [name for name in TABLES if not (is_check and name in UNCHECKED)])
        if new != text:
            stale.append(str(page.relative_to(ROOT)))
            if not is_check:
                page.write_text(new, encoding="utf-8")
    for page in stale:
        print(f"write_tables: {page}: {'out of date; run make tables' if is_check else 'written'}")
    return int(is_check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
