"""``fairseq-clear doctor``: checks an installation and prints what a bug report needs."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from fairseq_clear.cli.flags import Command
from fairseq_clear.patches.diagnosis import diagnose
from fairseq_clear.settings import setting


@dataclass(kw_only=True)
class Doctor(Command):
    """Show what a bug report needs: versions, devices, whether the compiled parts of fairseq load, and every patch of fairseq.

    The exit status is 1 if something does not load, if a patch is not active, or if the function that it replaces takes other
    parameters in this version of fairseq.
    """

    EXAMPLES: ClassVar[str] = """
fairseq-clear doctor
fairseq-clear doctor --json > doctor.json"""

    json: bool = setting("print one JSON object instead of text", False)

    def run(self) -> int:
        """Print the report; return 1 if it lists problems."""
        report = diagnose()
        print(json.dumps(report, indent=1) if self.json else as_text(report))
        return int(bool(report["problems"]))


def as_text(report: dict[str, Any]) -> str:
    """The report as lines of text."""
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
