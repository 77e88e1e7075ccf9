"""The fairseq models ``clear_roberta`` and ``clear_hf``, and their architectures."""

from fairseq_clear import patches

patches.apply()  # before anything here uses fairseq

import fairseq_clear.models.clear_hf  # noqa: E402
import fairseq_clear.models.clear_roberta  # noqa: E402, F401
