"""fairseq_clear: contrastive sentence representations as points of one grid, trained by stock fairseq.

``fairseq-train DATA --user-dir fairseq_clear --task clear_lm --arch clear_roberta_base --criterion clear_nt_xent ...``

fairseq imports this package for ``--user-dir`` and then every file of ``tasks/`` and ``models/`` by itself, but never
``criterions/`` (fairseq/utils.py, import_user_module); hence the import below. Without fairseq the package still imports:
spec, distributed, augmentations, objectives, data and modules need torch and numpy alone.
"""

from importlib.util import find_spec

__version__ = "0.1.0"

if find_spec("fairseq") is not None:
    from fairseq_clear import compat

    compat.apply()
    import fairseq_clear.criterions
    import fairseq_clear.models
    import fairseq_clear.tasks  # noqa: F401
