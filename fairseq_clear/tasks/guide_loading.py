"""Loads the frozen encoder of ``--guide``, and checks that it can read the texts of a run."""

from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError
from fairseq_clear.models.guide_encoder import GuideEncoder
from fairseq_clear.models.pretrained_encoder import checkpoint_in
from fairseq_clear.modules.hidden_states import compile_blocks
from fairseq_clear.patches.checkpoint_files import read_checkpoint
from fairseq_clear.tasks.run_record import check_same_vocabulary

__all__ = ["load_guide"]


def load_guide(source: str, data: Path, longest: int, settings: Any) -> GuideEncoder:
    """Load a guide; its size and pooling are those of its checkpoint.

    Args:
        source: value of ``--guide``: a folder of ``fairseq-clear import``, or a checkpoint.
        data: the data folder, which has the ``dict.txt``.
        longest: maximum number of tokens of a view.
        settings: of the trained model: ``encode_chunk_size`` and ``compile`` hold for the guide too.

    Raises:
        UserError: it cannot be read, has another vocabulary, or has too few positions.
    """
    from fairseq_clear.evaluation.checkpoints import load_model  # registers this package, which is being imported

    path = checkpoint_in(source, "--guide")
    try:
        check_same_vocabulary(read_checkpoint(path), path, str(data))
        loaded = load_model(path, data)
    except UserError as error:
        raise UserError(f"--guide {error}") from None
    positions = int(loaded.model.max_positions())
    if positions < longest:
        raise UserError(
            f"--guide {source}: reads texts of at most {positions} tokens; give --tokens-per-sample {positions}, or another "
            "guide"
        )
    if getattr(settings, "compile", False):
        compile_blocks(loaded.model.encoder.sentence_encoder)
    return GuideEncoder(loaded.model, loaded.dictionary, chunk=int(getattr(settings, "encode_chunk_size", 0)))
