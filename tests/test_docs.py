"""README, docs/ and the pages of examples: commands and flags exist, links lead somewhere, tables are true."""

import ast
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import regex
import yaml
from fairseq import options
from packaging.version import Version

from fairseq_clear.augmentations import AUGMENTATIONS
from fairseq_clear.cli import COMMANDS
from fairseq_clear.cli.main import build_parser
from fairseq_clear.objectives import OBJECTIVES
from fairseq_clear.views.view_table import VIEWS
from tests.conftest import ROOT, run
from tests.training import FLAGS

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
SITE = sorted(DOCS.rglob("*.md"))
OTHERS = [ROOT / "README.md", *sorted(ROOT.glob("examples/**/*.md")), *sorted(ROOT.glob("scripts/*/README.md"))]
PAGES = [*OTHERS, ROOT / "tests" / "faults" / "README.md", *SITE]
BASH = re.compile(r"^( *)```bash\n(.*?)^ *```", flags=re.M | re.S)
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def load(path: Path) -> ModuleType:
    """A Python file that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOKS, CHECK_TABLES = load(DOCS / "hooks.py"), load(ROOT / "scripts" / "check_tables.py")


# Commands


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command in the bash blocks of a page."""
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
    parser = HOOKS.subparsers(build_parser(command))[command]
    steps = HOOKS.subparsers(parser)
    if steps and following and not following[0].startswith("-"):
        parser = steps[following[0]]
    return {flag for action in parser._actions for flag in action.option_strings}


@pytest.fixture(scope="module")
def training_flags(data_bin: Path) -> set[str]:
    """The flags of fairseq-train, with every criterion and optimizer of ours."""
    known = {"--user-dir", "--config-dir", "--config-name"}
    schedule = ("--lr-scheduler", "polynomial_decay", "--total-num-update", "1")
    for criterion, optimizer in (
        ("clear_nt_xent", "adam"),
        ("clear_self_guided", "adam"),
        ("clear_moco", "clear_adamw"),
    ):
        parser = options.get_training_parser()
        flags = [str(data_bin), *FLAGS, *schedule, "--criterion", criterion, "--optimizer", optimizer]
        options.parse_args_and_arch(parser, flags)
        known |= {flag for action in parser._actions for flag in action.option_strings}
    return known


# Programs that are not ours -> the flags that pages use.
PROGRAMS = {
    "torchrun": {"--standalone", "--nproc-per-node", "--no-python"},
    "sbatch": {
        *(
            "--nodes",
            "--ntasks",
            "--ntasks-per-node",
            "--gpus",
            "--gpus-per-node",
            "--gpus-per-task",
            "--time",
            "--array",
            "--requeue",
        ),
        *("--gres", "--wrap", "--dependency", "-N", "-n", "-G"),
    },
    "srun": {"--ntasks"},
    "pip": {"--no-build-isolation", "--no-deps", "-e"},
    "hf": {"--local-dir"},
    "tensorboard": {"--logdir"},
    "curl": {"-L"},
    "nice": {"-n"},
    "unset": set(),
    **{name: set() for name in ("git", "cd", "source", "export", "for", "do", "done", "tar", "make")},
    "scripts/slurm/launch.sh": {"--dry-run"},
    "scripts/slurm/pretrain.sbatch": set(),
}
WRAPPERS = {
    "scripts/slurm/glue_array.sbatch": ["fairseq-clear", "glue", "run"],
    "scripts/slurm/work.sbatch": ["fairseq-clear"],
}


def unknown_flags(words: list[str], training: set[str]) -> list[str]:
    """The flags of a command that neither it nor the command that it starts knows; its name, if that is unknown."""
    words = [other for word in words for other in WRAPPERS.get(word, [word])]
    while "=" in words[0]:  # variables
        words = words[1:]
    known: set[str] | None = None
    unknown, source = [], ""
    for number, word in enumerate(words):
        following = words[number + 1 :]
        if word in ("fairseq-clear", "fairseq_clear.cli"):
            known = flags_of(following[0], following[1:]) if following[0] in COMMANDS else None
        elif word in ("fairseq-train", "fairseq-hydra-train") or (word == "--" and words[1] == "refine"):
            known = training
        elif word == "python":
            module = following[1].replace(".", "/") + ".py" if following[0] == "-m" else following[0]
            path = ROOT / module
            files = [path] if path.is_file() else list(path.glob("*.py"))
            source, known = "".join(file.read_text() for file in files), set() if files else None
            if "from measuring import" in source and "add_results(parser)" in source:
                source += (ROOT / "examples" / "measuring.py").read_text()
        elif word in PROGRAMS and (number == 0 or word.startswith("scripts/")):
            known = PROGRAMS[word]
        elif word.startswith("examples/") and word.endswith(".sh"):
            known = set() if (ROOT / word).is_file() else None
        elif number == 0:
            known = None
        if known is None:
            return [word]
        is_flag = re.match(r"--?[A-Za-z]", word) and word not in ("-m", "-")
        if (
            is_flag
            and word != "--help"
            and word.partition("=")[0] not in known
            and f'"{word.partition("=")[0]}"' not in source
        ):
            unknown.append(word)
    return unknown


@EVERY_PAGE
def test_commands_have_the_flags_that_pages_give_them(page: Path, training_flags: set[str]) -> None:
    found = {shlex.join(words): unknown_flags(words, training_flags) for words in commands(page)}
    assert {command: unknown for command, unknown in found.items() if unknown} == {}


def test_an_unknown_flag_is_found(training_flags: set[str]) -> None:
    wrong = {
        "fairseq-clear embed x.txt --data-bin d --vocab-size 3": ["--vocab-size"],
        "fairseq-clear glue run --data d --max-length 128": ["--max-length"],
        "torchrun --standalone fairseq-train d --augmnt none": ["--augmnt"],
        "fairseq-clear imbed x": ["fairseq-clear"],
        "python scripts/check_tables.py --all": ["--all"],
        "frobnicate": ["frobnicate"],
    }
    assert {line: unknown_flags(shlex.split(line), training_flags) for line in wrong} == wrong


@EVERY_PAGE
def test_flags_in_the_text_exist(page: Path, training_flags: set[str]) -> None:
    known = training_flags.union(*PROGRAMS.values())
    for command in COMMANDS:
        known |= flags_of(command, [])
        for step in HOOKS.subparsers(HOOKS.subparsers(build_parser(command))[command]):
            known |= flags_of(command, [step])
    known |= set(re.findall(r'"(--[a-z][\w-]+)"', "".join(p.read_text() for p in ROOT.glob("scripts/bench/*.py"))))
    known |= set(re.findall(r'"(--[a-z][\w-]+)"', "".join(p.read_text() for p in ROOT.glob("examples/**/*.py"))))
    known |= {"--port", "--kills", "--what", "--help", "--partition"}
    text = BASH.sub("", page.read_text())
    named = set(re.findall(r"(?<![\w\[-])--[a-z][a-z0-9-]*[a-z0-9]", text))
    assert {flag for flag in named - known if not any(other.startswith(flag + "-") for other in known)} == set()


@EVERY_PAGE
def test_overrides_of_what_no_file_names_take_two_pluses(page: Path) -> None:
    """fairseq types the other sections, and lets them take every setting that they know."""
    for words in commands(page):
        if "examples/train.sh" not in words:
            continue
        recipe, *others = words[words.index("examples/train.sh") + 1 :]
        example, _, name = recipe.partition("/")
        if recipe == "EXAMPLE/CONFIG":
            continue
        config = yaml.safe_load((ROOT / "examples" / example / "config" / f"{name}.yaml").read_text())
        known = {f"{section}.{key}" for section, values in config.items() if isinstance(values, dict) for key in values}
        used = {match[1] for word in others if (match := re.match(r"((?:task|criterion|model)\.\w+)=", word))}
        assert used <= known, f"{shlex.join(words)}: {sorted(used - known)} want ++"
    if list(page.parent.glob("config/*.yaml")):
        configs = [yaml.safe_load(file.read_text()) for file in page.parent.glob("config/*.yaml")]
        named = {f"{s}.{key}" for config in configs for s, v in config.items() if isinstance(v, dict) for key in v}
        used = set(re.findall(r"(?<![\w+.])((?:task|criterion|model)\.\w+)=", page.read_text()))
        assert used <= named, f"{sorted(used - named)} want ++"


def test_make_help_lists_the_targets_that_pages_name() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^(\S+)", shown, flags=re.M))
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z-]+)", page.read_text())}
    named |= {words[1] for page in PAGES for words in commands(page) if words[0] == "make"}
    assert named <= targets
    assert {"install", "demo", "docs", "test", "test-fast", "check", "bench", "help"} <= targets


# Links, words and tables


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in SITE], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_and_paths_exist(page: Path) -> None:
    """Links within docs/ are checked by ``make docs``."""
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    named = re.findall(r"\b((?:examples|scripts|tests|config)/[\w./-]+\.(?:py|yaml|sh|md))", text)
    places = (ROOT, page.parent)
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_anchors_of_readme_exist() -> None:
    for path, anchor in re.findall(r"\]\(([^)#]+)#([^)]+)\)", README):
        headings = re.findall(r"^#+ (.*)", (ROOT / path).read_text(), flags=re.M)
        assert anchor in {re.sub(r"[^\w]+", "-", heading.lower()).strip("-") for heading in headings}


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.findall(r"\b(?:[A-Z]+_TABLE|TODO|FIXME|TBD)\b", "".join(page.read_text() for page in PAGES))


def test_readme_is_short_and_in_order() -> None:
    assert len(README.split()) <= 1_200
    order = ["Results", "Install", "A first training run", "Recipes", "Extend it", "Links", "Cite"]
    assert re.findall(r"^## (.*)", README, flags=re.M) == order


def test_published_tables_are_those_of_their_json() -> None:
    assert CHECK_TABLES.check(ROOT) == []


RUNS = [
    {"name": "slice", "scores": {"topics": 28.0, "sentiment": 60.5}},
    {"name": "slice", "scores": {"topics": 29.0, "sentiment": 61.5}},
    {"name": "untrained", "scores": {"topics": 20.0, "sentiment": 61.5}},
]
GOOD = "| | topics | sentiment |\n|---|---|---|\n| slice | **28.50** +- 0.71 | 61.0 +- 0.7 |\n| untrained | 20.00 | 61.5 |\n"
LESS = "| minus untrained | topics | sentiment |\n|---|---|---|\n| slice | +8.5 (0.5) | -0.50 (0.50) |\n"
MEANS = (
    "| | topics | average |\n|---|---|---|\n| slice | 28.50 +- 0.71 | 44.75 +- 0.71 |\n| untrained | 20.00 | 40.75 |\n"
)


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (f"<!-- figures: runs results.json#one -->\n{GOOD}", None),
        (f"<!-- figures: runs results.json#one -->\n{LESS}", None),
        (f"<!-- figures: runs results.json#one -->\n{MEANS}", None),
        (
            f"<!-- figures: runs results.json#one -->\n{MEANS.replace('44.75', '44.25')}",
            "README.md:2: row 'slice', column 'average'",
        ),
        (
            f"<!-- figures: runs results.json#one -->\n{LESS.replace('-0.50', '+0.50')}",
            "README.md:2: row 'slice', column 'sentiment'",
        ),
        (
            f"<!-- figures: runs results.json#one -->\n{GOOD.replace('28.50', '28.51')}",
            "README.md:2: row 'slice', column 'topics'",
        ),
        (
            f"<!-- figures: runs results.json#one -->\n{GOOD.replace('slice', 'span')}",
            "README.md:2: row 'span': not in the JSON",
        ),
        (f"<!-- figures: runs results.json#other -->\n{GOOD}", "no such kind, file or table"),
        (f"<!-- figures: runs other.json#one -->\n{GOOD}", "no such kind, file or table"),
        (f"Text.\n\n{GOOD}", "4 figures, and no <!-- figures: ... -->"),
    ],
)
def test_a_wrong_table_is_found(page: str, found: str | None, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"one": RUNS}))
    (tmp_path / "README.md").write_text(page)
    mistakes = CHECK_TABLES.check(tmp_path)
    assert (found is None and mistakes == []) or (found is not None and found in mistakes[0])


def test_a_table_of_benchmarks_is_that_of_its_json(tmp_path: Path) -> None:
    row = {
        "what": "update",
        "unit": "s",
        "ours": 0.5,
        "baseline": "",
        "theirs": None,
        "ratio": None,
        "aim": "",
        "met": None,
    }
    results = {"moco": {"table": [{**row, "mib": None, "their_mib": None}]}}
    (tmp_path / "results.json").write_text(json.dumps({"results": results}))
    page = tmp_path / "README.md"
    page.write_text("<!-- figures: bench results.json -->\n| benchmark | what |\n|---|---|\n| moco | old |\n\nEnd.\n")
    assert "README.md:2: differs from results.json" in CHECK_TABLES.check(tmp_path)[0]
    CHECK_TABLES.write(page, tmp_path)
    assert "| moco | update | 0.5000 s |" in page.read_text() and page.read_text().endswith("\n\nEnd.\n")
    assert CHECK_TABLES.check(tmp_path) == []
    page.write_text(page.read_text().replace("0.5000", "0.4000"))
    assert len(CHECK_TABLES.check(tmp_path)) == 1


def test_tables_are_written_from_their_json(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"one": RUNS}))
    comment = "<!-- figures: runs results.json#one -->"
    head = "| | topics | sentiment |\n|---|---|---|\n"
    old = f"Text.\n\n{comment}\n{head}| untrained | 1.00 | 2.0 |\n| gone | 3 | 4 |\n\nEnd.\n\n"
    (tmp_path / "README.md").write_text(
        f"{old}{comment}\n{LESS.replace('8.5', '0.0')}\n| other | table |\n|---|---|\n| a | 1 |\n"
    )
    CHECK_TABLES.write(tmp_path / "README.md", tmp_path)
    text = (tmp_path / "README.md").read_text()
    untrained, one = "| untrained | 20.00 | **61.5** |\n", "| slice | **28.50** +- 0.71 | 61.0 +- 0.7 |\n"
    assert untrained + one + "\nEnd." in text and "+8.5 (0.5) | -0.50 (0.50)" in text and "gone" not in text
    assert text.endswith("\n| other | table |\n|---|---|\n| a | 1 |\n")
    assert CHECK_TABLES.check(tmp_path) == []


def test_a_table_of_the_demonstration_or_of_a_report(tmp_path: Path) -> None:
    scores = {"topics": 0.5, "mrr": 0.25, "first": 0.125, "centred_mrr": 0.2, "centred_first": 0.1}
    report = {
        "rows": {name: [scores, scores] for name in CHECK_TABLES.DEMO_ROWS.values()},
        "runs": [{"arm": "CLEAR", "tokens_per_second": speed} for speed in (1_000, 2_000)],
    }
    (tmp_path / "demo.json").write_text(json.dumps(report))
    rows = CHECK_TABLES.read_demo(tmp_path / "demo.json")
    assert rows["CLEAR (MLM + del-word)"] == {
        "topics (accuracy)": [0.5, 0.0],
        "retrieval MRR": [0.25, 0.0],
        "acc@1": [0.125, 0.0],
        "MRR, centred": [0.2, 0.0],
        "acc@1, centred": [0.1, 0.0],
        "tokens/s": [1_500],
    }
    assert (
        CHECK_TABLES.compare(
            [["", "tokens/s"], ["CLEAR (MLM + del-word)", "1,500"]],
            {"CLEAR (MLM + del-word)": rows["CLEAR (MLM + del-word)"]},
        )
        == []
    )
    saved = {"rows": [{"label": "mean", "scores": {"STS-B": 82.034}, "deviations": {}}]}
    (tmp_path / "sts.json").write_text(json.dumps(saved))
    assert (
        CHECK_TABLES.compare([["", "STS-B"], ["mean", "82.03*"]], CHECK_TABLES.read_report(tmp_path / "sts.json")) == []
    )


# What the site takes from the code


def test_links_of_readmes_to_guides_lead_to_pages_of_the_site() -> None:
    page = HOOKS.copied_page(ROOT / "examples" / "evaluation" / "README.md")
    assert "[The guide to evaluation](../evaluation.md)" in page
    page = HOOKS.copied_page(ROOT / "examples" / "glue" / "README.md")
    assert "`fairseq_clear/evaluation/glue/glue_recipes.py`" in page, "a file that is no page"


def test_generated_tables_have_every_name() -> None:
    assert all(f"| `{name}` |" in HOOKS.augmentation_table() for name in AUGMENTATIONS)
    assert all(f"| `{name}` |" in HOOKS.view_table() for name in VIEWS)
    assert all(f"#{name})" in HOOKS.command_table() for name in COMMANDS)
    asked = {name for page in SITE for name in HOOKS.TABLE.findall(page.read_text())}
    assert asked == set(HOOKS.TABLES) and all(HOOKS.TABLES[name]().count("\n") > 3 for name in asked)


def test_the_reference_has_every_flag(training_flags: set[str]) -> None:
    page = HOOKS.command_page()
    for command in COMMANDS:
        flags = flags_of(command, []) - {"-h", "--help"}
        section = page.split(f"{{#{command}}}")[1].split("\n## ")[0]
        assert all(re.search(rf"`(?:\S+, )?{flag}[ `,]", section) for flag in flags), command
    page = HOOKS.training_page()
    for flag in (
        "--views",
        "--hard-negatives",
        "--pooling",
        "--compile",
        "--queue-size",
        "--guide-layers",
        "--decay-vectors",
    ):
        assert f"`{flag}" in page and flag in training_flags
    assert set(re.findall(r"^`(--[\w-]+)", page, flags=re.M)) <= training_flags


def test_every_objective_and_metric_is_described() -> None:
    assert all(f"| `{name}` |" in HOOKS.objective_table() for name in OBJECTIVES)
    monitoring = (DOCS / "monitoring.md").read_text()
    logged = re.findall(
        r'(?:ratio|log_scalar|log_derived)\("([a-z]\w+)"',
        (ROOT / "fairseq_clear/criterions/contrastive.py").read_text(),
    )
    assert len(logged) > 10 and [name for name in logged if f"`{name}`" not in monitoring] == []


def test_the_tools_of_the_site_are_pinned() -> None:
    pins = [
        dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / path).read_text(), flags=re.M))
        for path in ("docs/requirements.txt", "requirements.txt")
    ]
    lines = [line for line in (DOCS / "requirements.txt").read_text().splitlines() if line and line[0] != "#"]
    assert len(pins[0]) == len(lines)
    assert not set(pins[0]) & set(pins[1])


def message_patterns() -> list[str]:
    """A regular expression for every message of the package: UserErrors and warnings, in which values may be anything."""

    def pattern(node: ast.expr) -> str:
        if isinstance(node, ast.Constant):
            return re.escape(str(node.value))
        if isinstance(node, ast.JoinedStr):
            return "".join(pattern(value) for value in node.values)
        return pattern(node.left) + pattern(node.right) if isinstance(node, ast.BinOp) else ".+"

    found = []
    for path in (ROOT / "fairseq_clear").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(getattr(node, "func", None), "id", getattr(getattr(node, "func", None), "attr", ""))
            if isinstance(node, ast.Call) and name in {"UserError", "_say"} and node.args:
                found.append(pattern(node.args[-1]))
    return [one for one in found if len(one.replace(".+", "")) > 20]


def test_quoted_errors_are_those_of_the_code() -> None:
    quoted = re.findall(r"^`([^\n]+)`\n:   ", (DOCS / "troubleshooting.md").read_text(), flags=re.M)
    patterns = message_patterns()
    assert len(quoted) > 30

    def is_real(line: str) -> bool:
        begin = line.removesuffix("...").removesuffix("; ").rstrip()
        return any(regex.fullmatch(pattern, begin, partial=line.endswith("...")) for pattern in patterns)

    assert [line for line in quoted if not is_real(line)] == []


# Extending


EXTENDING = re.findall(r'```python title="([^"]+)"\n(.*?)```', (DOCS / "extending.md").read_text(), flags=re.S)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page in one folder, as the plugin that the page describes."""
    folder = tmp_path_factory.mktemp("extending") / "my_plugin"
    folder.mkdir()
    for title, code in EXTENDING:
        if ", in " not in title:
            (folder / Path(title).name).write_text(code)
    return folder


def test_lines_of_the_page_name_tables_that_are_there() -> None:
    for title, _ in EXTENDING:
        path, _, name = title.partition(", in ")
        folder = ROOT / Path(path).parent
        assert folder.is_dir() or path.startswith("my_plugin/"), title
        assert not name or f"{name}" in (ROOT / path).read_text(), title


def test_the_plugin_of_the_page_passes_its_tests_and_trains(plugin: Path, data_bin: Path, tmp_path: Path) -> None:
    for path in plugin.glob("test_*.py"):
        path.write_text(
            re.sub(
                r"fairseq_clear\.\w+\.(?=(?:reversal|half_views|norm_pooling|decoupled) )",
                "my_plugin.",
                path.read_text(),
            )
        )
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
