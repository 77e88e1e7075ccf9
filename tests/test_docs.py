"""README, docs/ and the pages of examples: commands and flags exist, links lead somewhere, tables are true."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from fairseq import options
from packaging.version import Version

from fairseq_clear.cli import COMMANDS
from fairseq_clear.cli.main import build_parser
from tests.conftest import ROOT, load_file, run
from tests.training import FLAGS

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
SITE = sorted(DOCS.rglob("*.md"))
OTHERS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("examples/**/*.md")), *sorted(ROOT.glob("scripts/*/README.md"))]
PAGES = [*OTHERS, ROOT / "tests" / "faults" / "README.md", *SITE]
BASH = re.compile(r"^( *)```bash\n(.*?)^ *```", flags=re.M | re.S)
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
CHECK_TABLES, WRITE_TABLES = (load_file(ROOT / "scripts" / name) for name in ("check_tables.py", "write_tables.py"))


# Commands


def commands(page: Path) -> Iterator[list[str]]:
    for _, block in BASH.findall(page.read_text()):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if word not in (";", "&&", "|"):
                    words.append(word)
                    if word.startswith("fairseq-clear "):  # of sbatch --wrap
                        yield shlex.split(word)
                elif words:
                    yield words
                    words = []


def flags_of(command: str, following: list[str]) -> set[str]:
    """The flags of a command of fairseq-clear, of a step of it where the next word names one."""
    parser = WRITE_TABLES.subparsers(build_parser(command))[command]
    steps = WRITE_TABLES.subparsers(parser)
    if steps and following and not following[0].startswith("-"):
        parser = steps[following[0]]
    return {flag for action in parser._actions for flag in action.option_strings}


@pytest.fixture(scope="module")
def training_flags(data_bin: Path) -> set[str]:
    """The flags of fairseq-train, with every criterion and optimizer of ours."""
    known = {"--user-dir", "--config-dir", "--config-name"}
    known |= {"--num-classes", "--init-token", "--separator-token"}  # of fairseq's sentence_prediction
    schedule = ("--lr-scheduler", "polynomial_decay", "--total-num-update", "1")
    ours = (("clear_nt_xent", "adam"), ("clear_self_guided", "adam"), ("clear_moco", "clear_adamw"))
    for criterion, optimizer in ours:
        parser = options.get_training_parser()
        arch = ("--arch", "clear_hf") if criterion == "clear_moco" else ()
        flags = [str(data_bin), *FLAGS, *arch, *schedule, "--criterion", criterion, "--optimizer", optimizer]
        options.parse_args_and_arch(parser, flags)
        known |= {flag for action in parser._actions for flag in action.option_strings}
    return known


# Of programs that are not ours, in the text of pages.
OF_OTHERS = {
    *"--extra-index-url --force-reinstall --no-deps --no-build-isolation".split(),
    *"--nnodes --nproc-per-node --node-rank --master-addr --master-port".split(),
    *"--nodes --ntasks --cpus-per-task --gpus-per-node --gpus-per-task --array --requeue --signal --open-mode".split(),
    *("--kill-on-bad-exit", "--keep-empty"),
}
FAIRSEQ_PARSERS = {
    "fairseq-preprocess": options.get_preprocessing_parser,
    "fairseq-validate": partial(options.get_validation_parser, default_task="masked_lm"),
}
WRAPPERS = {
    "scripts/slurm/glue_array.sbatch": ["fairseq-clear", "glue", "run"],
    "scripts/slurm/work.sbatch": ["fairseq-clear"],
}


def flags_in(source: str) -> set[str]:
    """The flags in the source of a script: quoted ones, and the arguments of ``flags(__doc__, ...)`` of a benchmark."""
    found = set(re.findall(r'"(--?[A-Za-z][\w-]*)"', source))
    for call in re.findall(r"\bflags\(\s*__doc__([^)]*)\)", source):
        found |= {f"--{name.replace('_', '-')}" for name in ["repeats", "json", *re.findall(r"(\w+)=", call)]}
    return found


def flags_of_script(following: list[str], page: str) -> set[str] | None:
    """The flags of what python runs, None for a module that is not ours; raises ``FileNotFoundError``."""
    if following[-1].endswith(".py") and f'python title="{following[-1]}"' in page:
        return set()
    is_module = following[0] == "-m"
    path = ROOT / (following[1].replace(".", "/") + ".py" if is_module else following[0])
    files = [path] if path.is_file() else list(path.glob("*.py"))
    if not files and not is_module:
        raise FileNotFoundError(path)
    source = "".join(file.read_text() for file in files)
    if "parse_with_results(parser)" in source:
        source += (ROOT / "examples" / "measuring.py").read_text()
    return flags_in(source) if files else None


def unknown_flags(words: list[str], training: set[str], page: str = "") -> list[str]:
    """The flags that the fairseq-clear, fairseq-train or script of ours in a command does not know; its name, if it is unknown.

    Args:
        words: of the command.
        training: flags of fairseq-train.
        page: text of the page, which may contain scripts that the command runs.
    """
    words = [other for word in words for other in WRAPPERS.get(word, [word])]
    known: set[str] | None = None  # of a program that is not ours
    unknown = []
    for number, word in enumerate(words):
        following = words[number + 1 :]
        if word in ("fairseq-clear", "fairseq_clear.cli"):
            if following[0] not in COMMANDS:
                return [word]
            known = flags_of(following[0], following[1:])
        elif word in ("fairseq-train", "fairseq-hydra-train") or (word == "--" and words[1] == "refine"):
            known = training
        elif word in FAIRSEQ_PARSERS:
            known = {flag for action in FAIRSEQ_PARSERS[word]()._actions for flag in action.option_strings}
        elif word == "python":
            known = flags_of_script(following, page)
        elif word.startswith("examples/") and word.endswith(".sh"):
            assert (ROOT / word).is_file(), word
        is_flag = re.match(r"--?[A-Za-z]", word) and word not in ("-m", "-", "--help")
        if known is not None and is_flag and word.partition("=")[0] not in known:
            unknown.append(word)
    return unknown


@EVERY_PAGE
def test_commands_have_the_flags_that_pages_give_them(page: Path, training_flags: set[str]) -> None:
    text = page.read_text()
    found = {shlex.join(words): unknown_flags(words, training_flags, text) for words in commands(page)}
    assert {command: unknown for command, unknown in found.items() if unknown} == {}


def test_unknown_flags_are_found(training_flags: set[str]) -> None:
    wrong = {
        "fairseq-clear glue run --data d --max-length 128": ["--max-length"],
        "torchrun --standalone fairseq-train d --augmnt none": ["--augmnt"],
        "fairseq-clear frobnicate": ["fairseq-clear"],
    }
    assert {line: unknown_flags(shlex.split(line), training_flags) for line in wrong} == wrong


def test_flags_in_the_text_exist(training_flags: set[str]) -> None:
    known = training_flags | OF_OTHERS | {"--port", "--kills", "--what", "--help", "--partition"}
    for command in COMMANDS:
        known |= flags_of(command, [])
        for step in WRITE_TABLES.subparsers(WRITE_TABLES.subparsers(build_parser(command))[command]):
            known |= flags_of(command, [step])
    for script in (*ROOT.glob("scripts/bench/*.py"), *ROOT.glob("examples/**/*.py")):
        known |= flags_in(script.read_text())
    for page in PAGES:
        named = set(re.findall(r"(?<![\w\[-])--[a-z][a-z0-9-]*[a-z0-9]", BASH.sub("", page.read_text())))
        wrong = {flag for flag in named - known if not any(other.startswith(flag + "-") for other in known)}
        assert wrong == set(), page


def test_overrides_of_what_no_file_names_take_two_pluses() -> None:
    """fairseq types the other sections, and lets them take every setting that they know."""
    started = [words for page in PAGES for words in commands(page) if "examples/train.sh" in words]
    assert started
    for words in started:
        recipe, *others = words[words.index("examples/train.sh") + 1 :]
        example, _, name = recipe.partition("/")
        if recipe == "EXAMPLE/CONFIG":
            continue
        config = yaml.safe_load((ROOT / "examples" / example / "config" / f"{name}.yaml").read_text())
        known = {f"{section}.{key}" for section, values in config.items() if isinstance(values, dict) for key in values}
        used = {match[1] for word in others if (match := re.match(r"((?:task|criterion|model)\.\w+)=", word))}
        assert used <= known, f"{shlex.join(words)}: {sorted(used - known)} want ++"


def test_make_help_lists_the_targets_that_pages_name() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^(\S+)", shown, flags=re.M))
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z-]+)", page.read_text())}
    named |= {words[1] for page in PAGES for words in commands(page) if words[0] == "make"}
    assert named <= targets and "install" in named


# Links and tables


@EVERY_PAGE
def test_links_and_paths_exist(page: Path) -> None:
    """Links name files of the repository; ``make docs`` checks the pages that the site has instead, and anchors."""
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    if page in SITE:  # guides also name files of the reader
        return
    named = re.findall(r"\b((?:examples|scripts|tests|config)/[\w./-]+\.(?:py|yaml|sh|md))", text)
    places = (ROOT, page.parent)
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


RUNS = [
    {"name": "slice", "seed": 1, "scores": {"topics": 28.0}},
    {"name": "slice", "seed": 2, "scores": {"topics": 29.0}},
    {"name": "a row without figures in this table", "seed": 1, "scores": {"STS-B": 70.0}},
]
TABLE = "<!-- figures: runs results.json#one -->\n| | topics |\n|---|---|\n| slice | **28.50** +- 0.71 |\n"
PROOF = "<!-- figures: proof proof.json#half -->\n| system | error |\n|---|---|\n| one | 0.4000 |\n"


def test_published_tables_are_those_of_their_json_and_a_wrong_one_is_found_and_written(tmp_path: Path) -> None:
    assert CHECK_TABLES.check(ROOT) == []
    page = tmp_path / "README.md"
    (tmp_path / "results.json").write_text(json.dumps({"one": RUNS}))
    (tmp_path / "proof.json").write_text(json.dumps({"tables": {"half": [{"system": "one", "error": 0.5}]}}))
    for text, found in (
        (TABLE, ""),
        (TABLE.replace("28.50", "28.51"), "README.md:2: row 'slice', column 'topics'"),
        (TABLE.replace(" +- 0.71", ""), "README.md:2: row 'slice', column 'topics'"),
        (TABLE.replace("**28.50** +- 0.71", ""), "README.md:2: row 'slice', column 'topics'"),
        (PROOF, "README.md:2: differs from proof.json#half"),
        (TABLE.replace("#one", "#other"), "no such kind, file or table; kinds: bench, proof"),
        ("| | a | b |\n|---|---|---|\n| x | 1.0 | 2.0 |\n| y | 3.0 | 4.0 |\n", "4 figures, and no <!--"),
    ):
        page.write_text(text)
        said = CHECK_TABLES.check(tmp_path)
        assert bool(said) == bool(found) and found in "".join(said)
        CHECK_TABLES.write(page, tmp_path)
        assert bool(CHECK_TABLES.check(tmp_path)) == ("no " in found)


# What the site takes from the code


def test_the_reference_has_every_flag(training_flags: set[str]) -> None:
    page = WRITE_TABLES.command_page()
    for command in COMMANDS:
        flags = flags_of(command, []) - {"-h", "--help"}
        section = page.split(f"\n## {command}\n")[1].split("\n## ")[0]
        assert all(re.search(rf"`(?:\S+, )?{flag}[ `,]", section) for flag in flags), command
    listed = set(re.findall(r"^- `(--[\w-]+)", WRITE_TABLES.training_page(), flags=re.M))
    assert {"--views", "--pooling", "--queue-size", "--guide-layers", "--decay-vectors"} <= listed <= training_flags


# Extending


EXTENDING = re.findall(r'```python title="([^"]+)"\n(.*?)```', (DOCS / "extending.md").read_text(), flags=re.S)


def test_the_plugin_of_the_page_passes_its_tests_and_trains(data_bin: Path, tmp_path: Path) -> None:
    """The files of the page in one folder, as the plugin that the page describes."""
    plugin = tmp_path / "my_plugin"
    plugin.mkdir()
    own = r"fairseq_clear\.\w+\.(?=(?:reversal|half_views|norm_pooling|decoupled) )"
    for title, code in EXTENDING:
        if ", in " not in title:
            is_test = Path(title).name.startswith("test_")
            (plugin / Path(title).name).write_text(re.sub(own, "my_plugin.", code) if is_test else code)
    (command,) = [words for words in commands(DOCS / "extending.md") if "my_plugin" in words]
    flags = [*command[2:], "--max-update", "3", "--save-dir", str(tmp_path / "run"), "--log-interval", "1"]
    flags[flags.index("my_plugin")] = str(plugin)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import pytest\n"
        "status = pytest.main(['-q', '-p', 'no:cacheprovider', '--rootdir', sys.argv[1], sys.argv[1] + '/my_plugin'])\n"
        "assert status == 0\n"
        "from fairseq_cli.train import cli_main; sys.argv = ['fairseq-train', *sys.argv[2:]]; cli_main()"
    )
    done = run(sys.executable, "-c", code, plugin.parent, data_bin, *flags)
    log = done.stdout + done.stderr
    assert "4 passed" in log and "views      halves, augmented by reverse" in log and "pooling norm" in log
    assert "decoupled (temperature" in log and (tmp_path / "run" / "checkpoint_last.pt").is_file()


def test_the_oldest_packages_tested_are_the_lower_bounds() -> None:
    bounds = dict(re.findall(r'"([A-Za-z-]+)>=([\d.]+)"', (ROOT / "setup.py").read_text()))
    tested = dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "requirements-oldest.txt").read_text(), flags=re.M))
    assert len(tested.keys() & bounds.keys()) == 14
    for name in tested.keys() & bounds.keys():
        assert Version(tested[name]) == Version(bounds[name]), name
