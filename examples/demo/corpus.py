"""Collects English text that needs no download: the docstrings of the packages of requirements.txt, without importing them."""

import ast
import json
import random
import re
import subprocess
import sys
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.version import Version

SKIPPED_FOLDERS = {"tests", "test", "testing", "_vendor", "vendor", "__pycache__", "idle_test", "examples"}
PROJECT = Path(__file__).resolve().parents[2]
FEWEST_WORDS, MOST_WORDS = 25, 400


@dataclass(frozen=True)
class Document:
    """A docstring: its package (the topic), its module (train and test have different modules), its text on one line."""

    package: str
    module: str
    text: str

    @property
    def first_sentence(self) -> str:
        """The query of the retrieval task."""
        return self.parts[0]

    @property
    def body(self) -> str:
        """The text that the retrieval task must find."""
        return self.parts[1]

    @property
    def parts(self) -> tuple[str, str]:
        """The text up to the first full stop that ends a sentence, and the rest, which may be empty."""
        match = re.search(r"(?<=[a-z0-9)`'\"])\.\s+(?=[A-Z`:])", self.text)
        return (self.text[: match.start() + 1], self.text[match.end() :]) if match else (self.text, "")


def documents() -> list[Document]:
    """All docstrings of suitable length without duplicates, in an order that does not depend on the machine."""
    with ProcessPoolExecutor() as pool:
        groups = pool.map(_docstrings, _files(), chunksize=64)
        unique: dict[str, Document] = {}
        for group in groups:
            for document in group:
                unique.setdefault(document.text.lower(), document)
    return list(unique.values())


def _files() -> list[tuple[Path, str, str]]:
    """Path, package and module of every source file of the packages of requirements.txt, in those versions."""
    found = {}
    for line in (PROJECT / "requirements.txt").read_text().splitlines():
        name, _, version = line.partition("#")[0].strip().partition("==")
        if not name:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            sys.exit(f"demo: {name} is not installed; run the demo in .venv (make demo)")
        if Version(distribution.version).public != version:
            sys.exit(
                f"demo: {name} is installed in version {distribution.version}, and requirements.txt has {version}; "
                "run the demo in .venv (make demo)"
            )
        for file in distribution.files or []:
            inside = file.parts
            if file.suffix != ".py" or inside[0] in {"..", "__pycache__"} or SKIPPED_FOLDERS & set(inside):
                continue
            if not any(part.startswith("test_") for part in inside):
                found["/".join(inside)] = (Path(file.locate()), inside[0].removesuffix(".py"), "/".join(inside))
    return [found[module] for module in sorted(found)]


def _docstrings(file: tuple[Path, str, str]) -> list[Document]:
    path, package, module = file
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError, OSError, RecursionError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = _clean(ast.get_docstring(node) or "")
            if FEWEST_WORDS <= len(text.split()) <= MOST_WORDS and text.isascii():
                found.append(Document(package, module, text))
    return found


def _clean(text: str) -> str:
    """The prose of a docstring on one line, without doctests, rules under headings and ``::``."""
    lines = [line.strip() for line in text.split("\n")]
    kept = [line for line in lines if line and not re.match(r">>>|\.\.\.|[-=~^*+|]{3,}$|\.\. ", line)]
    return re.sub(r"\s+", " ", " ".join(kept)).replace("::", ":")


@dataclass
class Split:
    """Documents of training modules and of held-out modules; topics are packages with many documents in both."""

    train: list[Document]
    held_out: list[Document]
    topics: list[str]

    def labelled(self, documents: list[Document], most: int, seed: int) -> list[Document]:
        """Shuffled documents of the topics, at most ``most`` per topic."""
        rng = random.Random(seed)
        by_topic = {topic: [d for d in documents if d.package == topic] for topic in self.topics}
        chosen = [d for group in by_topic.values() for d in rng.sample(group, min(most, len(group)))]
        rng.shuffle(chosen)
        return chosen


def split(found: list[Document], held_out_share: float = 0.2, topics: int = 12, fewest: int = 40) -> Split:
    """Hold out whole modules; the choice is the same in every call."""
    modules = sorted({document.module for document in found})
    random.Random(0).shuffle(modules)
    held = set(modules[: int(len(modules) * held_out_share)])
    train = [document for document in found if document.module not in held]
    test = [document for document in found if document.module in held]
    counts = Counter(document.package for document in test)
    in_train = Counter(document.package for document in train)
    names = [name for name, count in counts.most_common() if min(count, in_train[name]) >= fewest][:topics]
    if len(names) < 3:
        sys.exit(
            f"demo: only {len(names)} packages have {fewest} docstrings in held-out modules; run the demo in .venv (make demo)"
        )
    return Split(train, test, names)


def write_text(chosen: list[Document], path: Path) -> None:
    """Write one JSON record per document, as ``fairseq-clear prepare`` reads it."""
    with path.open("w", encoding="utf-8") as file:
        for document in chosen:
            file.write(
                json.dumps({"text": document.text, "package": document.package, "module": document.module}) + "\n"
            )


def commit() -> str:
    """The commit of the code, with a mark if files were changed."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return result.stdout.strip()
