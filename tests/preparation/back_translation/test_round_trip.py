"""Trained models: paraphrases keep the meaning and change the wording, and lines stay where they are."""

import argparse
import json
from pathlib import Path

import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.cli.prepare import BackTranslate, Translate
from fairseq_clear.preparation.back_translation.translating import translate_file
from fairseq_clear.preparation.back_translation.translation_settings import RoundTrip
from tests.preparation.back_translation.toys import languages, train_toys

pytestmark = pytest.mark.slow


def kept_and_changed(originals: list[str], results: list[str]) -> tuple[float, float]:
    """Share of the sentences whose meaning is kept, and of those whose wording is changed."""
    cleaned = [" ".join(text.replace("\0", "").split()) for text in originals]
    pairs = [(text, result) for text, result in zip(cleaned, results, strict=True) if text]
    kept = sum(languages.parse(text) == languages.parse(result) for text, result in pairs)
    return kept / len(pairs), sum(text != result for text, result in pairs) / len(pairs)


def test_meaning_is_kept_and_wording_changed(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    toys = train_toys(tmp_path_factory)
    originals = (toys / "text.txt").read_text().split("\n")[:100]
    originals[10] = originals[50] = ""
    originals[20] = originals[20].replace(" ", "\t")
    originals[30] = originals[30].replace(" ", "\u2028", 1) + "\r"
    originals[40] = "\0 \t"
    (tmp_path / "text").write_bytes("\n".join(originals).encode())
    files = {"input": tmp_path / "text", "output": tmp_path / "out"}
    models = {"forward": str(toys / "english-gerlan"), "backward": str(toys / "gerlan-english")}
    report = translate_file(RoundTrip(**files, **models, chunk_lines=16, device="cpu"))
    assert report is not None
    content = (tmp_path / "out").read_bytes().decode()
    assert len(content.splitlines()) == content.count("\n") == 100
    results = content.split("\n")[:-1]
    kept, changed = kept_and_changed(originals, results)
    assert kept >= 0.9 and changed >= 0.9
    assert kept_and_changed(originals, [*results[1:], results[0]])[0] < 0.05  # other lines do not mean the same
    assert results[10] == results[50] == results[40] == ""
    assert report["blank"] == 3 and report["unchanged"] == 97 - round(changed * 97)
    assert 5 < report["self_bleu"] < 50 and report["length_ratio"] == pytest.approx(1, abs=0.02)
    assert report["forward"]["unknown"] == report["kept"] == 0


# The commands


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
