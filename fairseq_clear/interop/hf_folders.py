"""Checks that a Hugging Face folder is on this machine."""

import re
from pathlib import Path

from fairseq_clear.errors import UserError
from fairseq_clear.models.hf_encoder import CONFIG

# Repositories on the hub of models whose usual name has no owner; None: an example for any other name.
HUB = {
    None: "google-bert/bert-base-uncased",
    "bert-base-uncased": "google-bert/bert-base-uncased",
    "roberta-base": "FacebookAI/roberta-base",
    "distilroberta-base": "distilbert/distilroberta-base",
}


def check_folder(folder: Path) -> None:
    """Raise UserError if there is no folder with a config.json; for the name of a model on the hub, say how to get it."""
    if not folder.is_dir():
        repository = str(folder) if re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder)) else HUB.get(str(folder), HUB[None])
        name = repository.partition("/")[2]
        raise UserError(
            f"{folder}: no such folder; give a local Hugging Face folder, which is not downloaded here: on a machine with "
            f"network run `hf download {repository} --local-dir {name}`, copy the folder {name} and give its path"
        )
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder}: has no {CONFIG}, and no model.pt of fairseq either; give a folder of a model")
