"""Contrastive sentence encoders for fairseq: a task, models, criterions and an optimizer for ``fairseq-train``.

``fairseq-train DATA --user-dir fairseq_clear --task clear_lm --arch clear_roberta_base --criterion clear_nt_xent ...``

Importing this package imports neither torch nor fairseq and changes nothing, with one exception: if fairseq is already loaded,
as when fairseq imports the package for ``--user-dir``, the package calls ``register()``. fairseq itself imports only the
files of ``tasks/`` and ``models/``, not of ``criterions/`` and ``optimizers/``, and no file at all if the package is
already imported (fairseq/utils.py, ``import_user_module``). Code that imports the package first and then uses fairseq in the
same process must therefore call ``fairseq_clear.register()``. The package's own modules that use fairseq do so.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairseq_clear import lifecycle

if TYPE_CHECKING:
    from fairseq_clear.evaluation.sentence_encoder import SentenceEncoder
    from fairseq_clear.refining.refining import refine

__all__ = ["SentenceEncoder", "__version__", "refine", "register"]

__version__ = "0.1.0"

# Names of the Python API -> the module that is imported when the name is first used.
LAZY = {
    "SentenceEncoder": "fairseq_clear.evaluation.sentence_encoder",
    "refine": "fairseq_clear.refining.refining",
}


def register() -> None:
    """Patch fairseq (see ``fairseq_clear.patches``), and register all tasks, models, criterions and optimizers with it.

    Safe to call again: a later call only patches the commands of fairseq that were imported in between.

    Raises:
        ModuleNotFoundError: fairseq is not installed.
    """
    from fairseq_clear import patches

    patches.apply()
    for folder in ("criterions", "models", "optimizers", "tasks"):
        import_module(f"fairseq_clear.{folder}")


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fairseq_clear import patches

    patches.import_fairseq()
    return getattr(import_module(LAZY[name]), name)


lifecycle.register = register  # for the patches, which are in a lower layer
if "fairseq" in sys.modules:
    register()
