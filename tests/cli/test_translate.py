"""The flags of ``translate`` and ``back-translate``, and what the commands print."""

import argparse
import json
from pathlib import Path

import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.cli.translate import BackTranslate, Translate
from tests.preparation.back_translation.toys import train_toys


def parse(kind: type[Translate] | type[BackTranslate], *flags: str) -> Translate | BackTranslate:
    parser = argparse.ArgumentParser()
    kind.add_arguments(parser)
    return kind.from_flags(parser.parse_args(["--input", "in", "--output", "out", *flags]))


def test_every_flag_arrives() -> None:
    flags = "--beam 2 --max-len-a 2 --max-len-b 9 --seed 6 --device cuda:1 --fp16 --max-tokens 99 --chunk-lines 5"
    common = {
        "beam": 2, "max_len_a": 2.0, "max_len_b": 9, "seed": 6, "device": "cuda:1", "fp16": True, "max_tokens": 99,
        "chunk_lines": 5, "tokenizer": "moses", "overwrite": True, "input": Path("in"), "output": Path("out"),
    }  # fmt: skip
    both = f"{flags} --tokenizer moses --overwrite".split()
    one = parse(Translate, *both, *"--model m --model-languages en:pt --sampling".split())
    assert one == Translate(**common, model="m", model_languages=("en", "pt"), sampling=0)
    two = parse(BackTranslate, *both, *"--forward f --backward b --backward-languages pt:en --copies 3".split())
    assert two == BackTranslate(**common, forward="f", backward="b", copies=3, backward_languages=("pt", "en"))
    assert [path.name for path in two.files] == ["out.0", "out.1", "out.2"]


@pytest.mark.parametrize(
    ("flags", "width"), [((), 5), (("--beam", "9"), 9), (("--sampling",), 1), (("--sampling", "7"), 1)]
)
def test_beam_is_five_and_one_where_words_are_drawn(flags: tuple[str, ...], width: int) -> None:
    assert parse(Translate, "--model", "m", *flags).beam_width == width


@pytest.mark.parametrize(
    "flag",
    [
        "--beam 0",
        "--model-languages eng_Latn",
    ],
)
def test_flags_out_of_range_exit_with_two(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["translate", "--input", "in", "--output", "out", "--model", "m", *flag.split()])
    except SystemExit as ended:
        status = ended.code
    shown = capsys.readouterr().err
    assert status == 2 and all(word in shown for word in flag.split())


@pytest.mark.slow
def test_commands(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One direction, then the other one, gives the text of the round trip; the report is printed; errors are one line."""
    toys = train_toys(tmp_path_factory)
    source, there, back = tmp_path / "text", toys / "english-gerlan", toys / "gerlan-english"
    source.write_text("".join((toys / "text.txt").read_text().splitlines(keepends=True)[:40]) + "\n")

    def call(command: str, text: Path, output: str, *flags: object) -> int:
        files = ("--input", text, "--output", tmp_path / output, "--chunk-lines", 8, "--device", "cpu")
        return main([command, *map(str, (*files, *flags))])

    assert call("back-translate", source, "out", "--forward", there, "--backward", back) == 0
    done = capsys.readouterr()
    assert "self-BLEU" in done.out and "41 lines, 1 of them blank" in done.out and done.err == ""
    assert json.loads((tmp_path / "out.report.json").read_text())["lines"] == 41
    assert call("translate", source, "there", "--model", there) == 0
    assert call("translate", tmp_path / "there", "back", "--model", back) == 0
    assert (tmp_path / "back").read_bytes() == (tmp_path / "out").read_bytes()
    capsys.readouterr()
    assert call("back-translate", source, "out", "--forward", there, "--backward", there, "--overwrite") == 2
    assert "--backward must translate in the opposite direction" in capsys.readouterr().err
    assert call("translate", source, "there", "--model", there, "--beam", 2) == 2
    refusal = capsys.readouterr().err
    assert refusal.count("\n") == 1 and "--overwrite" in refusal
