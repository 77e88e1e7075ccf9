"""fairseq_clear: contrastive sentence representations as points of one grid, trained by stock fairseq.

``fairseq-train DATA --user-dir fairseq_clear --task clear_lm --arch clear_roberta_base --criterion clear_nt_xent ...``

fairseq imports this package for ``--user-dir`` and then every file of ``tasks/`` and ``models/`` by itself, but never
``criterions/`` and ``optimizers/`` (fairseq/utils.py, import_user_module), and none of them if the package was imported before;
hence the imports below. Without fairseq the package still imports: spec, distributed, augmentations, objectives, data and
modules work on torch and numpy alone.
"""

import logging
from importlib.util import find_spec

# fairseq says "Please install tensorboardX" at each import, for text to speech alone.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)

__version__ = "0.1.0"

if find_spec("fairseq") is not None:
    import fairseq_clear.criterions
    import fairseq_clear.models
    import fairseq_clear.optimizers
    import fairseq_clear.tasks  # noqa: F401
