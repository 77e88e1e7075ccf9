"""fairseq_clear: contrastive sentence representations as points of one grid, trained by stock fairseq.

``fairseq-train DATA --user-dir fairseq_clear --task clear_lm --arch clear_roberta_base --criterion clear_nt_xent ...``

fairseq imports this package for ``--user-dir`` and then every file of ``tasks/`` and ``models/`` by itself, but never
``criterions/`` (fairseq/utils.py, import_user_module); hence the imports below. Where fairseq is not what imports us they
are left to those who need them: spec, distributed, augmentations, objectives, data and modules work on torch and numpy
alone, and ``fairseq-clear --help`` does not wait for fairseq.
"""

import logging
import sys

# fairseq says "Please install tensorboardX" at each import, for text to speech alone.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)

__version__ = "0.1.0"

if "fairseq" in sys.modules:
    import fairseq_clear.criterions
    import fairseq_clear.models
    import fairseq_clear.tasks  # noqa: F401
