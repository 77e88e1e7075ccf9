"""Hooks of the site generator: make pages from the code and from the READMEs of other folders. These pages are not in git."""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from properdocs.config.defaults import ProperDocsConfig
    from properdocs.structure.files import Files
    from properdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
from write_tables import tagged  # noqa: E402

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
    "examples/proof/README.md": "recipes/proof.md",
    "examples/proof/RESULTS.md": "recipes/proof-results.md",
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

    for image in ROOT.glob("examples/*/*.png"):
        name = f"assets/{image.parent.name}-{image.name}"
        files.append(File.generated(config, name, abs_src_path=str(image)))
    made = {page: COMMENT.sub("", (ROOT / source).read_text(encoding="utf-8")) for source, page in PAGES.items()}
    made |= api_pages()
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_content(content: str, **_: object) -> str:
    """Keep short code, such as the name of a flag, from being broken over two lines."""
    return re.sub(r"<code>([^<\n]{1,30})</code>", r'<code class="short">\1</code>', content)


def on_page_markdown(markdown: str, page: "Page", **_: object) -> str:
    """Lead the links, which name files of the repository, to pages of the site; a link to any other file becomes its name."""
    name = page.file.src_uri
    source = next((source for source, made in PAGES.items() if made == name), f"docs/{name}")

    def target(match: re.Match[str]) -> str:
        label, link = match[1], match[2]
        if "://" in link or link.startswith("#"):
            return match[0]
        path, _, anchor = link.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(source), path))
        found = page_of(file)
        if found is None:
            return f"`{file}`"
        return f"[{label}]({os.path.relpath(found, os.path.dirname(name))}{'#' + anchor if anchor else ''})"

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", target, markdown)


def page_of(file: str) -> str | None:
    """The page of the site that shows a file of the repository; None if there is none."""
    folder, *below = Path(file).parts
    if folder == "docs":
        return "/".join(below)
    if folder == "fairseq_clear" and below and below[0] in packages():
        return f"reference/api/{below[0]}.md"
    if folder == "examples" and file.endswith(".png"):
        return f"assets/{'-'.join(below)}"
    return PAGES.get(file)


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
