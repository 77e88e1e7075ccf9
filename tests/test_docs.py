"""What README says exists, and its tables are those of the registries."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fairseq import options

from fairseq_clear.augmentations import AUGMENTATIONS
from fairseq_clear.cli import COMMANDS
from fairseq_clear.objectives import OBJECTIVES
from fairseq_clear.spec import format_value
from fairseq_clear.views.view_table import VIEWS
from tests.conftest import ROOT, run
from tests.training import FLAGS

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("examples/*/README.md"))]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        .replace("| --- ", "|---")
        .replace("|--- |", "|---|")
    )


def augmentation_table() -> str:
    rows = []
    for name, entry in AUGMENTATIONS.items():
        knobs = ", ".join(f"{knob}={format_value(spec.default)}" for knob, spec in entry.knobs.items())
        rows.append([f"`{name}`", re.sub("<(del|mask)>", r"`<\1>`", entry.summary), f"`{knobs}`", entry.paper])
    return table(["name", "what", "knobs (the paper's values)", "source"], rows)


def command_table() -> str:
    return table(["command", "what"], [[f"`{name}`", help_line] for name, (_, help_line) in COMMANDS.items()])


def view_table() -> str:
    rows = [[f"`{name}`", kind.summary] for name, kind in VIEWS.items()]
    return table(["`--views`", "which texts form a positive pair"], rows)


@pytest.mark.parametrize("made", [augmentation_table, command_table, view_table])
def test_tables_are_those_of_the_registries(made) -> None:
    assert made() in README, f"README lacks this table:\n{made()}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_overrides_of_what_no_file_names_take_two_pluses(page: Path) -> None:
    """fairseq types the other sections, and lets them take every setting that they know."""
    folder = page.parent if page.parent != ROOT else ROOT / "examples" / "clear"
    named = {
        f"{section}.{key}"
        for file in folder.glob("config/*.yaml")
        for section, values in yaml.safe_load(file.read_text()).items()
        if isinstance(values, dict)
        for key in values
    }
    used = set(re.findall(r"(?<![\w+.])((?:task|criterion|model)\.\w+)=", page.read_text()))
    assert used <= named, f"{sorted(used - named)} want ++"


def test_every_objective_is_described() -> None:
    assert all(f"| `{name}`" in README or f", `{name}`" in README for name in OBJECTIVES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert all((page.parent / link).exists() for link in links), links
    named = re.findall(r"\b((?:examples|scripts|tests|config)/[\w./-]+\.(?:py|yaml|sh|md))", text)
    places = (ROOT, page.parent)
    assert all(any((place / name).exists() for place in places) for name in named), named


@pytest.mark.slow
def test_flags_named_exist(data_bin: Path) -> None:
    schedule = ("--lr-scheduler", "polynomial_decay", "--total-num-update", "1")
    chosen = (("clear_nt_xent", "adam"), ("clear_self_guided", "adam"), ("clear_moco", "clear_adamw"))
    known: set[str] = set()
    for criterion, optimizer in chosen:
        parser = options.get_training_parser()
        flags = [str(data_bin), *FLAGS, *schedule, "--criterion", criterion, "--optimizer", optimizer]
        options.parse_args_and_arch(parser, flags)
        known |= {flag for action in parser._actions for flag in action.option_strings}
    commands = [run(sys.executable, "-m", "fairseq_clear.cli", name, "--help").stdout for name in COMMANDS]
    known |= set(re.findall(r"--[a-z][\w-]+", "".join(commands)))
    known |= {"--user-dir", "--no-build-isolation", "--no-deps", "--output", "--seeds", "--tokens", "--help"}
    known |= {"--config-dir", "--config-name", "--standalone", "--nproc-per-node", "--no-python"}
    named = {flag for page in PAGES for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]", page.read_text())}
    assert named - known == set()


def test_make_help_lists_the_targets_that_readme_names() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^(\S+)", shown, flags=re.M))
    named = set(re.findall(r"`make ([a-z-]+)", README)) | set(re.findall(r"^    make ([a-z-]+)", README, flags=re.M))
    assert named <= targets
    assert {"install", "demo", "test", "test-fast", "check", "bench", "help"} <= targets


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.findall(r"\b(?:[A-Z]+_TABLE|TODO|FIXME|TBD)\b", "".join(page.read_text() for page in PAGES))


def test_adding_an_augmentation_is_as_short_as_readme_says() -> None:
    import numpy as np

    code = re.search(r'```python\n("""Reading backwards.*?)```', README, flags=re.S)
    assert code is not None
    space: dict = {}
    exec(code[1], space)
    tokens = np.array([5, 6, 7])
    reversed_tokens, source = space["reverse"](tokens, np.random.default_rng(0), symbols=None)
    assert reversed_tokens.tolist() == [7, 6, 5]
    assert tokens[source].tolist() == [7, 6, 5]
