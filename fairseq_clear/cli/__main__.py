"""``python -m fairseq_clear.cli``: the same as the console script ``fairseq-clear``."""

import sys

from fairseq_clear.cli.main import main

sys.exit(main())
