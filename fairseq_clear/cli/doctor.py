"""``fairseq-clear doctor`` and ``user-dir``: check an installation for a bug report, and print its folder."""

import json
import os
import platform
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from fairseq_clear import register
from fairseq_clear.cli.flags import Command
from fairseq_clear.errors import one_line
from fairseq_clear.files import versions
from fairseq_clear.patches import PATCHES, Patch, install, is_installed, signature_mismatch
from fairseq_clear.preparation.prepare_settings import available_cores
from fairseq_clear.settings import setting

PACKAGES = (
    "fairseq torch numpy hydra-core omegaconf sentencepiece sacremoses sacrebleu nltk tensorboardX transformers tokenizers "
    "safetensors sentence-transformers scikit-learn scipy matplotlib sentencex"
)
LIBRARIES = ("torch", "numpy", "omegaconf", "hydra", "fairseq")
COMPILED = "data.data_utils_fast data.token_block_utils_fast libbase libbleu libnat"  # modules of fairseq
COMMANDS = ("fairseq_cli.train", "fairseq_cli.hydra_train")  # some patches replace parts of these


@dataclass(kw_only=True)
class Doctor(Command):
    """Show what a bug report needs: versions, devices, whether the compiled parts of fairseq load, and every patch of fairseq.

    The exit status is 1 if a module does not load, a patch is not active, or a patched function has a different signature in
    this version of fairseq.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear doctor
fairseq-clear doctor --json > doctor.json"""

    json: bool = setting("print one JSON object instead of text", False)

    def run(self) -> int:
        """Print the report; return 1 if it lists problems."""
        report = diagnose()
        if self.json:
            print(json.dumps(report, indent=1))
        else:
            for title, part in report.items():
                lines = [f"{name}: {value}" for name, value in part.items()] if isinstance(part, dict) else part
                print(f"{title}:", *(lines or ["none"]), sep="\n  ")
        return int(bool(report["problems"]))


@dataclass(kw_only=True)
class UserDir(Command):
    """Print the folder of the installed package, a path for --user-dir that is valid in every working directory."""

    EXAMPLES: ClassVar[str] = """
fairseq-train data-bin --user-dir "$(fairseq-clear user-dir)" --task clear_lm ..."""

    def run(self) -> int:
        """Print the path."""
        print(Path(__file__).resolve().parent.parent)
        return 0


def diagnose() -> dict[str, Any]:
    """Register the plugin with fairseq in this process, and report on the installation.

    Returns:
        ``versions`` (by name), ``devices``, ``compiled`` (module -> ``loads``, or its error), ``patches`` (target ->
        its problem, or what happens without it), ``problems`` (lines; empty if there are none).
    """
    compiled = [f"fairseq.{name}" for name in COMPILED.split()]
    errors = {name: loading_error(name) for name in (*LIBRARIES, *compiled, *COMMANDS)}
    patches = {patch.target or patch.replacement: patch for patch in PATCHES}
    failing = {name: problem for name, patch in patches.items() if (problem := patch_problem(name, patch))}
    problems = [f"{name} does not load: {error}" for name, error in errors.items() if error]
    # no patch works if a library does not load, and the library's error is already listed
    if not any(errors[name] for name in LIBRARIES):
        problems += failing.values()
        error = loading_error("fairseq_clear")
        problems += [f"the plugin does not register with fairseq: {error}"] if error else []
    found = {"system": platform.platform(), **versions(PACKAGES.split())}
    return {
        "versions": found | {name: "not installed" for name in PACKAGES.split() if name not in found},
        "devices": find_devices(),
        "compiled": {name: errors[name] or "loads" for name in compiled},
        "patches": {name: failing.get(name, f"on; without it: {patch.reason}") for name, patch in patches.items()},
        "problems": problems,
    }


def loading_error(name: str) -> str:
    """Import a module (for ``fairseq_clear``, register the plugin) and return the error; empty if there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            register() if name == "fairseq_clear" else import_module(name)
    except Exception as error:
        return one_line(error)
    return ""


def patch_problem(name: str, patch: Patch) -> str:
    """Install a patch and return what is wrong with it; empty if it works."""
    try:
        install(patch)
        return signature_mismatch(patch) if is_installed(patch) else f"the patch of {name} is off"
    except Exception as error:
        return f"{name} cannot be patched: {one_line(error)}"


def find_devices() -> dict[str, Any]:
    """Return GPUs, communication backends, cores and threads. Without torch, return only cores and OMP_NUM_THREADS."""
    found: dict[str, Any] = {
        "cores": available_cores(),
        "cores of the machine": os.cpu_count(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
    }
    try:
        import torch
    except Exception:  # the report lists it as a problem
        return found
    has_cuda, collectives = torch.cuda.is_available(), torch.distributed
    has_nccl = collectives.is_available() and collectives.is_nccl_available()
    return found | {
        "threads of torch": torch.get_num_threads(),
        "CUDA": has_cuda,
        "CUDA that torch is built for": torch.version.cuda or "none",
        "GPUs": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl and has_cuda else has_nccl,
        "gloo": collectives.is_available() and collectives.is_gloo_available(),
    }
