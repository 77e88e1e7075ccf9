"""The settings of a recipe, as hydra composes them; nothing is run."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_clear.errors import UserError

__all__ = ["compose_recipe"]

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


def compose_recipe(name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The sections of a recipe with overrides applied.

    Args:
        name: a .yaml file, or EXAMPLE/CONFIG for examples/EXAMPLE/config/CONFIG.yaml.
        overrides: ``+ablation=del_word``, ``dataset.batch_size=16``; what the file does not name takes ``++``.

    Raises:
        UserError: no such file, a file or an override that hydra does not take.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    path = _find(name)
    logging.getLogger("hydra").setLevel(logging.WARNING)  # it would write of its own set-up on the screen
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # fairseq speaks to hydra 1.0, hydra 1.3 answers
            with initialize_config_dir(config_dir=str(path.parent), version_base="1.1"):
                found = compose(path.stem, overrides=list(overrides))
        config = OmegaConf.to_container(found, resolve=True)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        cause = error.__cause__ or error
        raise UserError(f"--config {name} {' '.join(overrides)}: {' '.join(str(cause).split())}") from error
    sections = config if isinstance(config, dict) else {}
    missing = [section for section in ("task", "criterion", "model") if not isinstance(sections.get(section), dict)]
    if missing:
        raise UserError(f"--config {name}: has no section {missing[0]}; give a recipe such as clear/base_256gpu")
    return {str(section): settings for section, settings in sections.items()}


def _find(name: str) -> Path:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UserError(f"--config {name}: no such file")
        return path.resolve()
    example, _, config = name.partition("/")
    path = EXAMPLES / example / "config" / f"{config}.yaml"
    if not config or not path.is_file():
        known = sorted(f"{file.parent.parent.name}/{file.stem}" for file in EXAMPLES.glob("*/config/*.yaml"))
        raise UserError(f"--config {name}: no such recipe; give a .yaml file or one of {', '.join(known) or 'none'}")
    return path
