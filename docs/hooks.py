"""Hooks of the site generator: make pages from the code and from the READMEs of other folders. These pages are not in git."""

import argparse
import importlib
import inspect
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from properdocs.config.defaults import ProperDocsConfig
    from properdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# Files elsewhere in the project -> pages of the site.
PAGES = {
    "examples/clear/README.md": "recipes/clear.md",
    "examples/clear/RESULTS.md": "recipes/clear-results.md",
    "examples/cert/README.md": "recipes/cert.md",
    "examples/cert/RESULTS.md": "recipes/cert-results.md",
    "examples/cert/translation/README.md": "recipes/cert-translation.md",
    "examples/declutr/README.md": "recipes/declutr.md",
    "examples/declutr/RESULTS.md": "recipes/declutr-results.md",
    "examples/self_guided/README.md": "recipes/self-guided.md",
    "examples/self_guided/RESULTS.md": "recipes/self-guided-results.md",
    "examples/views/README.md": "recipes/views.md",
    "examples/views/RESULTS.md": "recipes/views-results.md",
    "examples/simcse/README.md": "recipes/simcse.md",
    "examples/mirror_bert/README.md": "recipes/mirror-bert.md",
    "examples/demo/README.md": "recipes/demo.md",
    "examples/refine/README.md": "recipes/refine.md",
    "examples/refine/RESULTS.md": "recipes/refine-results.md",
    "examples/evaluation/README.md": "recipes/evaluation.md",
    "examples/glue/README.md": "recipes/glue.md",
    "examples/interop/README.md": "recipes/interop.md",
    "scripts/slurm/README.md": "design/slurm.md",
    "scripts/bench/README.md": "design/benchmarks.md",
    "tests/faults/README.md": "design/faults.md",
}
COMMENT = re.compile(r"^ *<!-- figures: .* -->\n", flags=re.M)


def on_config(config: "ProperDocsConfig") -> "ProperDocsConfig":
    """Add the packages to the navigation."""
    pages = ["reference/api/index.md", *({name: f"reference/api/{name}.md"} for name in packages())]
    next(part["Reference"] for part in config.nav if "Reference" in part).append({"Python API": pages})
    return config


def on_files(files: "Files", config: "ProperDocsConfig") -> "Files":
    """Add the generated pages."""
    from properdocs.structure.files import File

    made = {page: copied_page(ROOT / source) for source, page in PAGES.items()}
    made["reference/commands.md"] = command_page()
    made["reference/training-flags.md"] = training_page()
    made |= api_pages()
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_content(content: str, **_: object) -> str:
    """Keep short code, such as the name of a flag, from being broken over two lines."""
    return re.sub(r"<code>([^<\n]{1,30})</code>", r'<code class="short">\1</code>', content)


def copied_page(source: Path) -> str:
    """The text of a README whose links lead to pages of the site; a link to any other file becomes its name."""
    here = Path(PAGES[str(source.relative_to(ROOT))]).parent

    def target(match: re.Match[str]) -> str:
        label, link = match[1], match[2]
        if "://" in link or link.startswith("#"):
            return match[0]
        path, _, anchor = link.partition("#")
        file = os.path.relpath((source.parent / path).resolve(), ROOT)
        guide = file.removeprefix("docs/") if file.startswith("docs/") else None
        page = PAGES.get(file) or guide
        if page is None:
            return f"`{file}`"
        return f"[{label}]({os.path.relpath(page, here)}{'#' + anchor if anchor else ''})"

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", target, COMMENT.sub("", source.read_text(encoding="utf-8")))


def tagged(text: str) -> str:
    """Escape plain text for Markdown: ``<mask>`` and the like become code, stars and bars are escaped."""

    def plain(part: str) -> str:
        return re.sub(r"<(/?\w+)>", r"`<\1>`", part).replace("*", r"\*")

    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else plain(part) for part in parts).replace("|", "\\|")


def command_page() -> str:
    """Every command of fairseq-clear, from its parser."""
    from fairseq_clear.cli import COMMANDS
    from fairseq_clear.cli.main import build_parser

    lines = ["# Commands", "", "The flags of every command, as `fairseq-clear COMMAND --help` prints them.", ""]
    for name in COMMANDS:
        parser = subparsers(build_parser(name))[name]
        lines += [f"## {name} {{#{name}}}", "", *describe(parser)]
        for step, nested in subparsers(parser).items():
            lines += [f"### {name} {step} {{#{name}-{step}}}", "", *describe(nested)]
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
            for action in actions:
                yield from definition(parser, action)
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
    """One flag as an entry of a definition list."""
    formatter = argparse.HelpFormatter(parser.prog)
    if action.option_strings:
        default = formatter._get_default_metavar_for_optional(action)
        value = "" if action.nargs == 0 else " " + formatter._format_args(action, default)
        term = ", ".join(action.option_strings) + value
    else:
        term = formatter._format_args(action, formatter._get_default_metavar_for_positional(action))
    text = formatter._expand_help(action) if action.help else ""
    yield from [f"`{term}`", f":   {tagged(' '.join(text.split())) or '(no further help)'}", ""]


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

    from fairseq_clear.models.architectures import add_model_flags

    model = argparse.ArgumentParser()
    add_model_flags(model)
    archs = ", ".join(f"`{name}`" for name in sorted(ARCH_MODEL_REGISTRY) if name.startswith("clear_"))
    lines = [
        "# Training flags",
        "",
        "The flags that `--user-dir fairseq_clear` adds to `fairseq-train`. In a hydra file they are settings of the sections",
        "`task`, `model`, `criterion` and `optimizer`, with `_` in place of `-`. All other flags are fairseq's own:",
        "`fairseq-train --help` lists them.",
        "",
        *("## Task clear_lm", "", *dataclass_flags(TASK_DATACLASS_REGISTRY["clear_lm"])),
        *(
            "## Model clear_roberta",
            "",
            f"Architectures: {archs}. RoBERTa's own flags work too.",
            "",
            *describe(model),
        ),
    ]
    for kind, registry in (("Criterion", CRITERION_DATACLASS_REGISTRY), ("Optimizer", OPTIMIZER_DATACLASS_REGISTRY)):
        for name in sorted(registry):
            if name.startswith("clear_"):
                lines += [f"## {kind} {name}", "", *dataclass_flags(registry[name])]
    return "\n".join(lines)


def dataclass_flags(config: type) -> Iterator[str]:
    """The flags that fairseq makes of a dataclass, with their defaults."""
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    parser = argparse.ArgumentParser()
    gen_parser_from_dataclass(parser, config())
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        action.help = (action.help or "").replace("%", "%%")
        shown = action.default not in (None, False, argparse.SUPPRESS, "", "???")
        term, text, blank = definition(parser, action)
        yield from [term, f"{text} (default: `{action.default}`)" if shown else text, blank]


def api_pages() -> dict[str, str]:
    """Page -> text: a page for each package, and one for the modules outside packages."""
    pages = {f"reference/api/{name}.md": package_page(name) for name in packages()}
    first = [
        "# Python API",
        "",
        "The public functions and classes of the modules, from their docstrings. Most programs need only",
        "`from fairseq_clear import SentenceEncoder`. Call `fairseq_clear.register()` before you call fairseq's own functions.",
        "",
        *(f"- [fairseq_clear.{name}]({name}.md)" for name in packages()),
        "",
    ]
    return {"reference/api/index.md": "\n".join([*first, *modules(ROOT.glob("fairseq_clear/*.py"))]), **pages}


def packages() -> list[str]:
    """The packages of fairseq_clear, except cli."""
    return sorted(path.parent.name for path in ROOT.glob("fairseq_clear/*/__init__.py") if path.parent.name != "cli")


def package_page(name: str) -> str:
    """The page of one package, its subpackages included."""
    return "\n".join([f"# fairseq_clear.{name}", "", *modules((ROOT / "fairseq_clear" / name).rglob("*.py"))])


def modules(paths: Iterable[Path]) -> Iterator[str]:
    """The lines that make mkdocstrings describe these files; of ``__init__.py`` only the docstring is shown."""
    for path in sorted(paths):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.name == "__init__.py":
            docstring = importlib.import_module(module.removesuffix(".__init__")).__doc__ or ""
            yield from [tagged(inspect.cleandoc(docstring).replace("``", "`")), ""]
        elif path.name != "__main__.py":
            yield from [f"::: {module}", ""]
