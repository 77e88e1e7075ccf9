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
    flags = "--max-len-a 2 --seed 6 --fp16 --tokenizer moses --overwrite".split()
    common = {
        "max_len_a": 2.0, "seed": 6, "fp16": True, "tokenizer": "moses", "overwrite": True, "input": Path("in"),
        "output": Path("out"),
    }  # fmt: skip
    one = parse(Translate, *flags, *"--model m --model-languages en:pt --sampling".split())
    assert one == Translate(**common, model="m", model_languages=("en", "pt"), sampling=0)
    two = parse(BackTranslate, *flags, *"--forward f --backward b --backward-languages pt:en --copies 3".split())
    assert two == BackTranslate(**common, forward="f", backward="b", copies=3, backward_languages=("pt", "en"))
    assert [flags.beam_width for flags in (one, two)] == [1, 5]  # one where words are drawn
    assert [path.name for path in two.files] == ["out.0", "out.1", "out.2"]


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
