import argparse
import json
import sys
from pathlib import Path

import pytest

from fairseq_clear.cli.back_translate import BackTranslate
from fairseq_clear.cli.main import main
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, ModelSource, Search
from tests.preparation.back_translation.toys import train_toys

FILES = ("--input", "in", "--output", "out", "--forward", "f", "--backward", "b")


def parse(*flags: str) -> BackTranslateSettings:
    parser = argparse.ArgumentParser()
    BackTranslate.add_arguments(parser)
    return BackTranslate.from_flags(parser.parse_args([*FILES, *flags])).runs[0]


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_toys(tmp_path_factory)


def test_defaults_are_those_of_the_settings() -> None:
    expected = BackTranslateSettings(
        input=Path("in"), output=Path("out"), forward=ModelSource("f"), backward=ModelSource("b")
    )
    assert parse() == expected


def test_every_flag_arrives() -> None:
    flags = "--sampling backward --sampling-topk 9 --temperature 0.8 --beam 2 --lenpen 1.1 --max-len-a 2 --max-len-b 9"
    others = "--forward-codes c --backward-data d --bpe none --tokenizer moses --num-shards 4 --shard-id 3 --fp16"
    running = "--device cuda:1 --max-tokens 99 --batch-size 7 --chunk-lines 5 --workers 3 --threads 2 --seed 6"
    settings = parse(*f"{flags} {others} {running} --too-long copy --overwrite".split())
    assert settings.search == Search(
        beam=2, sampling="backward", sampling_topk=9, temperature=0.8, lenpen=1.1, max_len_a=2.0, max_len_b=9
    )
    assert settings.forward == ModelSource("f", None, Path("c"))
    assert settings.backward == ModelSource("b", Path("d"), None)
    assert (settings.bpe, settings.tokenizer, settings.too_long) == ("none", "moses", "copy")
    assert (settings.num_shards, settings.shard_id, settings.fp16, settings.overwrite) == (4, 3, True, True)
    numbers = (settings.max_tokens, settings.batch_size, settings.chunk_lines, settings.workers, settings.threads)
    assert numbers == (99, 7, 5, 3, 2) and (settings.device, settings.seed) == ("cuda:1", 6)
    assert parse("--sampling").search.sampling == "both"


def test_several_languages_are_one_run_each() -> None:
    """Values in one flag, or the flag again; each model with its own dictionaries and languages."""
    models = ["--forward", "f1", "f2", "--backward", "b1", "--backward", "b2", "--output", "o1", "o2", "--copies", "3"]
    models += ["--forward-languages", "en:de", "en:zh"]
    parser = argparse.ArgumentParser()
    BackTranslate.add_arguments(parser)
    runs = BackTranslate.from_flags(parser.parse_args(["--input", "in", "--show", "2", *models])).runs
    sources = [(run.forward, run.backward, run.output, run.copies, run.show) for run in runs]
    assert sources == [
        (ModelSource("f1", languages=("en", "de")), ModelSource("b1"), Path("o1"), 3, 2),
        (ModelSource("f2", languages=("en", "zh")), ModelSource("b2"), Path("o2"), 3, 2),
    ]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--forward g", "--backward: 1 given, but 2 --forward"),
        ("--forward g --backward c", "--output: 1 given, but 2 --forward"),
        ("--forward g --backward c --output out", "--output: names a file twice"),
        ("--forward g --backward c --output p --backward-codes k", "--backward-codes: 1 given, but 2 --backward"),
        ("--copies 0", "--copies 0"),
    ],
)
def test_models_and_outputs_that_do_not_fit_are_one_line(flags: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse(*flags.split()).check()


def test_languages_that_are_no_pair_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--forward-languages", "eng_Latn")
    assert "'eng_Latn' is not SOURCE:TARGET" in capsys.readouterr().err


@pytest.mark.slow
def test_two_languages_in_one_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each language has its file and its report; an error of the second is found before the first translates."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "two_languages.py").write_text(
        "class Prefix:\n    def __init__(self, mark): self.mark = mark\n"
        "    def translate(self, texts): return [self.mark + text for text in texts]\n"
        "def there(): return Prefix('x')\ndef first(): return Prefix('1')\ndef second(): return Prefix('2')\n"
    )
    (tmp_path / "in.txt").write_text("a b\n\nc\n")
    common = ["back-translate", "--input", "in.txt", "--device", "cpu", "--forward", *["two_languages:there"] * 2]
    outputs = ["--output", "de.txt", "zh.txt"]
    assert main([*common, *outputs, "--backward", "two_languages:first", "nowhere:second"]) == 2
    assert "cannot import nowhere" in capsys.readouterr().err and not (tmp_path / "de.txt").exists()
    assert main([*common, *outputs, "--backward", "two_languages:first", "two_languages:second"]) == 0
    assert (tmp_path / "de.txt").read_text() == "1xa b\n\n1xc\n"
    assert (tmp_path / "zh.txt").read_text() == "2xa b\n\n2xc\n"
    shown = capsys.readouterr().out
    for name in ("de.txt", "zh.txt"):
        assert (tmp_path / f"{name}.report.txt").read_text() in shown
    assert "-> 1xa b" in shown and "-> 2xc" in shown


def test_beam_is_five_and_one_where_words_are_drawn() -> None:
    assert [Search().beam_in(which) for which in ("forward", "backward")] == [5, 5]
    assert [Search(sampling="backward").beam_in(which) for which in ("forward", "backward")] == [5, 1]
    assert Search(beam=100, sampling="both").beam_in("forward") == 100


def test_threads_are_as_said_or_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairseq_clear.preparation.back_translation.translation_settings.available_cores", lambda: 12)
    for wanted, flags, threads in ((None, (), 4), ("2", (), 2), ("2", ("--threads", "5"), 5), ("2,1", (), 4)):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if wanted:
            monkeypatch.setenv("OMP_NUM_THREADS", wanted)
        assert parse("--workers", "3", *flags).threads_each == threads


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--sampling-topk 3", "add --sampling"),
        ("--sampling --sampling-topk 3 --sampling-topp 0.5", "exclude each other"),
        ("--sampling --sampling-topp 1.5", "--sampling-topp 1.5"),
        ("--temperature 0", "--temperature 0"),
        ("--beam 0", "--beam 0"),
        ("--max-len-a 0 --max-len-b 0", "no word at all"),
        ("--num-shards 2 --shard-id 2", "--shard-id 2"),
        ("--workers 0", "--workers 0"),
        ("--chunk-lines 0", "--chunk-lines 0"),
        ("--seed -1", "--seed -1"),
    ],
)
def test_flags_out_of_range_are_one_line(flags: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse(*flags.split()).check()


@pytest.mark.slow
def test_command(toys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shards and their merge equal one call; the report is printed and written; errors are one line."""
    source = tmp_path / "text"
    source.write_text("".join((toys / "text.txt").read_text().splitlines(keepends=True)[:40]) + "\n")
    models = ("--forward", toys / "english-gerlan", "--backward", toys / "gerlan-english", "--chunk-lines", "8")
    command = ("back-translate", "--input", source, *models, "--device", "cpu")

    def here(*flags: str, output: str = "out") -> int:
        return main([*map(str, command), "--output", str(tmp_path / output), *flags])

    assert here() == 0
    done = capsys.readouterr()
    assert "self-BLEU" in done.out and "41 lines, 1 of them blank" in done.out and done.err == ""
    report = json.loads((tmp_path / "out.report.json").read_text())
    assert report["lines"] == 41 and (tmp_path / "out.report.txt").read_text() in done.out
    assert here() == 0 and "already complete" in capsys.readouterr().out
    for shard in ("0", "1"):
        assert here("--num-shards", "2", "--shard-id", shard, output="parts") == 0
    assert here("--num-shards", "2", "--merge", output="parts") == 0
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "out").read_bytes()
    capsys.readouterr()
    assert here("--beam", "2") == 2
    refusal = capsys.readouterr().err
    assert refusal.count("\n") == 1 and "--overwrite" in refusal
