"""``fairseq-clear views`` shows the views that training draws, of every entry of the tables."""

import re
import shutil
import sys
from collections import Counter

import pytest

from fairseq_clear.augmentations import AUGMENTATIONS
from fairseq_clear.cli.main import main
from fairseq_clear.lifecycle import Needs
from fairseq_clear.tasks.clear_lm import ClearLMConfig, ClearLMTask
from fairseq_clear.text.data_folders import load_tokenizer
from fairseq_clear.text.tokenizers import WhitespaceTokenizer
from fairseq_clear.views.view_table import VIEWS
from tests.conftest import WORDS, rejected, sentences
from tests.training import FIRST, instances, write_synonyms

# what sources with arguments of their own need; a new source that takes none needs no line here
SOURCES = {"paraphrase": "paraphrase:original,bt", "span": "span:min=3,max=20"}
CHAINS = [*AUGMENTATIONS, "subs:ratio=0.5+del-span+reorder", "del-word:ratio=0.4/reorder:pairs=1,ratio=0.2/subs"]


@pytest.fixture(scope="module")
def data(paired_bin, tmp_path_factory):
    """The tiny data folder, with a synonym table: most words have the two that follow them, together or alone."""
    folder = tmp_path_factory.mktemp("views") / "bin"
    shutil.copytree(paired_bin, folder)
    rows = {(word,): [(word + 1,), (word + 1, word + 2)] for word in range(FIRST, FIRST + len(WORDS) - 8)}
    write_synonyms(folder, rows, FIRST + len(WORDS))
    return folder


def training_set(data, **settings):
    """What fairseq-train iterates over."""
    task = ClearLMTask.setup_task(ClearLMConfig(data=str(data), **{"seed": 1, "sample_break_mode": "eos", **settings}))
    task.needs = Needs(mlm=False, views=True)
    task.load_dataset("train")
    return task, task.dataset("train")


def views_in_training(data, indices, epoch=1, tokenizer=None, **settings):
    task, dataset = training_set(data, **settings)
    dataset.set_epoch(epoch)
    decode = (tokenizer or WhitespaceTokenizer()).decode
    texts = []
    for index in indices:
        for instance in instances(dataset[index]):
            views = [[task.dictionary[token] for token in view] for view in (instance.anchor, *instance.positives)]
            texts += [decode(view[1:-1]).split() for view in views]
    return texts


def unmarked(line):
    """The words of a printed view, its marks taken away: of ``old -> new`` the new word stays."""
    return re.sub(r"\S*\u2192|{\+|\+}|\[[-+]|[-+]\]", "", line).split()


def printed(output, kind="view"):
    return [line.split("  ", 2)[2] for line in output.splitlines() if line.startswith(f"  {kind} ")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "augment"),
    [
        *((SOURCES.get(name, name), augment) for name in VIEWS for augment in ("none", CHAINS[-1])),
        *(("same", augment) for augment in CHAINS[:-1]),
    ],
)
def test_views_are_those_of_training(data, capsys, source, augment):
    recipe = ["--views", source, "--augment", augment, "--tokens-per-sample", "300"]
    assert main(["views", "--data-bin", str(data), *recipe, "--start", "3", "--count", "6", "--epoch", "2"]) == 0
    output, err = capsys.readouterr()
    assert err == ""
    settings = {"views": source, "augment": augment, "tokens_per_sample": 300}
    expected = views_in_training(data, range(3, 9), epoch=2, **settings)
    shown = [unmarked(line) for line in printed(output)]
    assert shown == expected and len(shown) >= 12
    # the negative controls: another epoch, another seed
    if augment != "none":
        assert shown[::2] != shown[1::2], "the two views of a text are draws of their own"
        assert shown != views_in_training(data, range(3, 9), epoch=1, **settings)
        assert shown != views_in_training(data, range(3, 9), epoch=2, seed=2, **settings)
    marks = {"<del>": "del", "<mask>": "slice|mask-span", "{+": "reorder|eda", "\u2192": "subs|eda", "[+": "eda"}
    for mark, names in marks.items():
        assert (mark in "".join(printed(output))) == bool(re.search(names, augment)), mark
    assert all(symbol in output for symbol in ("\n#3", "\n#8", augment.partition(":")[0].partition("/")[0]))


def test_swaps_and_deletions_of_whole_words_need_no_table(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("\n".join(sentences(200, 3)) + "\n")
    folder = tmp_path / "bin"
    prepare = ["prepare", str(tmp_path / "text.txt"), "--dest", str(folder), "--vocab-size", "304"]
    assert main([*prepare, "--valid-share", "0.1", "--workers", "1"]) == 0
    capsys.readouterr()
    pieces = [line.rpartition(" ")[0] for line in (folder / "dict.txt").read_text().splitlines()]
    assert sum(piece.strip("\u2581") in WORDS for piece in pieces) < len(WORDS) / 2, "most words are several pieces"

    recipe = ["--augment", "eda:alpha=0.4,draw=all,ops=rs-rd", "--count", "30", "--data-bin", str(folder)]
    assert main(["views", *recipe]) == 0
    output = capsys.readouterr().out
    texts = [line.replace("[-", "").replace("-]", "").split() for line in printed(output, "text")]
    views = [unmarked(line) for line in printed(output)]
    assert len(views) == 60
    for text, view in zip(texts, views, strict=True):
        assert Counter(view) <= Counter(text) and view
    kept = sum(map(len, views)) / sum(map(len, texts))
    assert 0.5 < kept < 0.7, "a word stays with probability 0.6"
    assert any(view != [word for word in text if word in view] for text, view in zip(texts, views, strict=True))
    assert views == views_in_training(folder, range(30), augment=recipe[1], tokenizer=load_tokenizer(folder))
    for ops in ("sr-rd", "rs-ri"):
        rejected(capsys, ["views", *recipe[2:], "--augment", f"eda:ops={ops}"], "synonyms.npz: no synonym table here")


def test_typed_text(data, capsys):
    texts = [" ".join(WORDS[:12]), f"{WORDS[20]} unheard {WORDS[21]}"]
    known = [texts[0], texts[0], *[texts[1].replace("unheard", "<unk>")] * 2]
    command = ["views", "--data-bin", str(data), "--text", *texts, "--augment"]
    assert main([*command, "none"]) == 0
    output = capsys.readouterr().out
    assert printed(output) == known and not printed(output, "text")
    assert main([*command, "reorder:pairs=0"]) == 0  # an augmentation that happens to change nothing
    assert capsys.readouterr().out.count(texts[0]) == 4
    assert main([*command, "del-word:ratio=0.5"]) == 0
    output = capsys.readouterr().out
    assert [" ".join(unmarked(line)) for line in printed(output, "text")] == known
    assert all("<del>" in line for line in printed(output)) and "#1\n" in output


@pytest.mark.parametrize("mode", ["none", "complete", "complete_doc"])
def test_blocks(data, capsys, mode):
    settings = {"sample_break_mode": mode, "tokens_per_sample": 30, "augment": "reorder", "seed": 7}
    recipe = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["views", "--data-bin", str(data), *recipe, "--start", "2", "--count", "1"]) == 0
    task, dataset = training_set(data, **settings)
    dataset.set_epoch(1)
    output, (instance,) = capsys.readouterr().out, instances(dataset[2])
    for line, view in zip(printed(output), [instance.anchor, *instance.positives], strict=True):
        symbols = [task.dictionary[token] for token in view[1:]]
        assert unmarked(line) == (symbols[:-1] if symbols[-1] == "</s>" else symbols)
    assert "</s>" in output, "the block joins no sentences"


def test_views_that_training_cuts(data, capsys):
    recipe = "--augment subs:ratio=1 --tokens-per-sample 12 --count 30".split()
    assert main(["views", "--data-bin", str(data), *recipe]) == 0
    shown = printed(capsys.readouterr().out)
    cut = [line.endswith(" ... (cut at 12 tokens)") for line in shown]
    assert any(cut) and not all(cut)
    shown = [unmarked(line.removesuffix(" ... (cut at 12 tokens)")) for line in shown]
    assert shown == views_in_training(data, range(30), augment="subs:ratio=1", tokens_per_sample=12)


def test_colour(data, capsys, monkeypatch):
    outputs = []
    for is_terminal, no_color in ((False, ""), (True, "1"), (True, "")):
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal)
        assert main(["views", "--data-bin", str(data), "--augment", "del-word"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == re.sub("\033\\[[0-9;]*m", "", outputs[2]) != outputs[2]


def test_typed_lines_are_one_document(data, capsys):
    texts = [" ".join(WORDS[start : start + 4]) for start in (0, 10, 20)]
    command = ["views", "--data-bin", str(data), "--text", *texts, "--views"]
    assert main([*command, "neighbor"]) == 0
    output = capsys.readouterr().out
    assert printed(output) == [texts[0], texts[1], texts[1], texts[2]]
    assert "span 1  tokens 0 to 4, anchor" in output and "span 2  tokens 4 to 8, adjacent" in output
    assert main([*command, "cloze:before=1,after=2,keep=0", "--start", "1", "--count", "1"]) == 0
    output = capsys.readouterr().out
    assert printed(output) == [texts[1], f"{texts[0]} {texts[2]}"]
    assert "tokens 4 to 8, anchor" in output and "tokens 0 to 12, overlapping" in output
    command.append("span:anchors=1,min=12,max=12")
    assert main(command) == 0
    assert printed(capsys.readouterr().out)[0] == " ".join(texts)
    refused = [*command, "--document-boundary", "line", "--short-documents", "error"]
    rejected(capsys, refused, "(line 1) has 4 tokens, fewer than the 12 tokens")
