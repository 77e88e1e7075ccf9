"""``fairseq-clear doctor``: what a bug report needs to say about an installation."""

import argparse
import json
import os
import platform
import warnings
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fairseq_clear import __version__, register
from fairseq_clear.cli.console import quiet_logs
from fairseq_clear.errors import one_line
from fairseq_clear.patches import PATCHES, Patch
from fairseq_clear.patches.replacing import install, is_installed, signature_mismatch

DESCRIPTION = """\
Show what a bug report needs to say: versions, devices, whether the compiled parts of fairseq load, and every patch of fairseq
with its reason. Exit status 1 if something does not load, or if a patch is off or was written for another signature."""

EPILOG = """\
examples:
  fairseq-clear doctor
  fairseq-clear doctor --json > doctor.json"""

# Names to show -> packages of which the first that is installed counts.
PACKAGES = {"fairseq": ("fairseq-fixed", "fairseq")} | {
    name: (name,)
    for name in (
        *(
            "torch",
            "numpy",
            "hydra-core",
            "omegaconf",
            "sentencepiece",
            "sacremoses",
            "sacrebleu",
            "nltk",
            "tensorboardX",
        ),
        *("transformers", "tokenizers", "safetensors", "sentence-transformers", "scikit-learn", "scipy", "matplotlib"),
        "sentencex",
    )
}
LIBRARIES = ("torch", "numpy", "omegaconf", "hydra", "fairseq")
COMPILED = (
    "fairseq.data.data_utils_fast",
    "fairseq.data.token_block_utils_fast",
    "fairseq.libbase",
    "fairseq.libbleu",
    "fairseq.libnat",
)
COMMANDS = ("fairseq_cli.train", "fairseq_cli.hydra_train")  # some patches are of these


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Print the report; return 1 if it names problems, else 0."""
    with quiet_logs():
        report = diagnose()
    print(json.dumps(report, indent=1) if args.json else as_text(report))
    return int(bool(report["problems"]))


def diagnose() -> dict[str, Any]:
    """The report, after the plugin is registered with fairseq in this process.

    Returns:
        ``versions`` (name -> version), ``missing`` (names), ``devices``, ``compiled`` (module -> error, empty where it loads),
        ``patches`` (rows of ``target``, ``on``, ``reason``, ``problem``), ``problems`` (lines; none if all is well).
    """
    errors = {name: loading_error(name) for name in (*LIBRARIES, *COMPILED, *COMMANDS)}
    rows = [patch_row(patch) for patch in PATCHES]
    problems = [f"{name} does not load: {error}" for name, error in errors.items() if error]
    if not any(errors[name] for name in LIBRARIES):  # otherwise no patch works, for a reason that is named already
        problems += [row["problem"] for row in rows if row["problem"]]
        error = registration_error()
        problems += [f"the plugin does not register with fairseq: {error}"] if error else []
    versions, missing = find_versions()
    return {
        "versions": versions,
        "missing": missing,
        "devices": find_devices(),
        "compiled": {name: errors[name] for name in COMPILED},
        "patches": rows,
        "problems": problems,
    }


def loading_error(name: str) -> str:
    """Why a module cannot be imported; empty where it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module(name)
    except Exception as error:
        return one_line(error)
    return ""


def registration_error() -> str:
    """Why tasks, models, criterions and optimizers cannot be registered with fairseq; empty where they can."""
    try:
        register()
    except Exception as error:
        return one_line(error)
    return ""


def patch_row(patch: Patch) -> dict[str, Any]:
    """A row of the report, after an attempt to install the patch."""
    target = patch.target or patch.replacement.partition(":")[2]
    try:
        install(patch)
        is_on = is_installed(patch)
        problem = signature_mismatch(patch) if is_on else f"the patch of {target} is off"
    except Exception as error:
        is_on, problem = False, f"{target} cannot be patched: {one_line(error)}"
    return {"target": target, "on": is_on, "reason": patch.reason, "problem": problem}


def find_versions() -> tuple[dict[str, str], list[str]]:
    """Versions of what is installed, and which of PACKAGES are not."""
    found = {"fairseq_clear": __version__, "python": platform.python_version(), "system": platform.platform()}
    for name, packages in PACKAGES.items():
        for package in reversed(packages):
            with suppress(PackageNotFoundError):
                found[name] = version(package) + (f" ({package})" if package != name else "")
    return found, [name for name in PACKAGES if name not in found]


def find_devices() -> dict[str, Any]:
    """GPUs, back ends of collectives, cores and threads; without torch, the cores alone."""
    found: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cores of the machine": os.cpu_count(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
    }
    try:
        import torch
    except Exception:  # the report names it among the problems
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


def as_text(report: dict[str, Any]) -> str:
    """The report as lines to paste."""
    lines = [f"{name:<22} {value}" for name, value in report["versions"].items()]
    lines += [f"{'not installed':<22} {', '.join(report['missing'])}"] if report["missing"] else []
    lines += ["", "devices", *(f"  {name}: {_plain(value)}" for name, value in report["devices"].items())]
    lines += ["", "compiled parts of fairseq"]
    lines += [f"  {name}: {error or 'loads'}" for name, error in report["compiled"].items()]
    lines += ["", "patches of fairseq"]
    for row in report["patches"]:
        lines.append(f"  {'on ' if row['on'] else 'OFF'} {row['target']}: {row['reason']}")
        lines += [f"      {row['problem']}"] if row["problem"] else []
    ending = [f"problem: {problem}" for problem in report["problems"]] or ["all is well"]
    return "\n".join([*lines, "", *ending])


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)
