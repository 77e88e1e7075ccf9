"""Several paraphrases of a text: independent samples, or different alternatives of the beam, each in its own file."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.back_translation import translating
from fairseq_clear.preparation.back_translation.round_trip import back_translate, merge_shards
from fairseq_clear.preparation.back_translation.translating import Pass
from fairseq_clear.preparation.back_translation.translation_settings import BackTranslateSettings, Search, copy_paths
from fairseq_clear.preparation.back_translation.translator import Translation
from fairseq_clear.preparation.prepare_settings import PrepareSettings
from fairseq_clear.preparation.preparing import prepare
from tests.preparation.back_translation.test_resuming import killed_at
from tests.preparation.back_translation.test_translating import SETTINGS
from tests.preparation.back_translation.toys import StandIn, toy_settings
from tests.preparation.corpora import sentencepiece_model


class Ranked(StandIn):
    """Returns a beam with each hypothesis twice, with suffix none, 1, 2 ...; or one sample, with the seed as suffix."""

    def translate_batch(self, batch: Sequence[Sequence[int]], seed: int, count: int = 1) -> list[list[Translation]]:
        found = super().translate_batch(batch, seed)
        if self.draws:
            return [[Translation(f"{one.text}{seed % 1000}", False)] for (one,) in found]
        return [
            [Translation(one.text + str(rank // 2) * (rank > 1), False) for rank in range(count)] for (one,) in found
        ]


def settings_of(tmp_path: Path, **others: object) -> BackTranslateSettings:
    text = tmp_path / "text.txt"
    text.write_text("one\n\ntwo words\nthree words here\n\n\nfour\nfive\n")
    return toy_settings(tmp_path, text, tmp_path / "out.txt", chunk_lines=3, **others)


def stand_in(monkeypatch: pytest.MonkeyPatch, draws: Sequence[str] = (), kind: type[StandIn] = Ranked) -> list[StandIn]:
    """Replace both models by stand-ins; those named in ``draws`` draw samples."""
    made: list[StandIn] = []

    def load(settings: BackTranslateSettings, which: str, device: object) -> StandIn:
        model = kind(which=which)
        model.languages = ("en", "xx") if which == "forward" else ("xx", "en")
        model.draws = which in draws
        made.append(model)
        return model

    monkeypatch.setattr(translating, "load_translator", load)
    monkeypatch.setattr("fairseq_clear.preparation.back_translation.round_trip.identity", lambda settings, which: {})
    monkeypatch.setattr("fairseq_clear.preparation.back_translation.round_trip.check_flags", lambda settings: None)
    return made


def copies_of(settings: BackTranslateSettings) -> list[list[str]]:
    return [path.read_text().split("\n")[:-1] for path in settings.output_files]


def test_names_of_the_files_keep_their_suffix() -> None:
    assert copy_paths(Path("a/text.pt.txt"), 1) == [Path("a/text.pt.txt")]
    assert copy_paths(Path("a/text.pt.txt"), 2) == [Path("a/text.pt.0.txt"), Path("a/text.pt.1.txt")]
    assert copy_paths(Path("text"), 2) == [Path("text.0"), Path("text.1")]


def test_alternatives_of_the_beam_differ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch)
    settings = settings_of(tmp_path, copies=3)
    report = back_translate(settings).report
    found = copies_of(settings)
    originals = [line.upper() for line in settings.input.read_text().split("\n")[:-1]]
    assert found == [[line + end if line else "" for line in originals] for end in ("", "1", "2")]
    assert report["lines"] == 8 and report["paraphrases"] == 15 and report["repeated"] == 0
    assert not settings.output.exists()
    alone = replace(settings, copies=1, output=tmp_path / "alone")
    back_translate(alone)
    assert alone.output.read_text().split("\n")[:-1] == found[0]
    assert back_translate(settings).was_complete
    settings.output_files[1].unlink()
    assert not back_translate(settings).was_complete and copies_of(settings) == found


def test_a_text_with_too_few_alternatives_repeats_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch)
    settings = settings_of(tmp_path, copies=4, search=Search(beam=4))
    report = back_translate(settings).report
    first, second, third, fourth = copies_of(settings)
    assert (third, fourth) == (first, second) and first != second
    assert (
        report["repeated"] == 10
        and "20 paraphrases, 10 equal to another" in (tmp_path / "out.txt.report.txt").read_text()
    )


def test_parts_of_a_long_text_take_their_alternatives_by_rank() -> None:
    model = Ranked(limit=20)
    counts: Counter[str] = Counter()
    texts = {3: ["This is one. This is two."], 5: ["a"]}
    found = Pass(model, SETTINGS).translate(texts, 0, counts, copies=2)  # type: ignore[arg-type]
    assert found == [
        {3: ["THIS IS ONE.", "THIS IS TWO."], 5: ["A"]},
        {3: ["THIS IS ONE.1", "THIS IS TWO.1"], 5: ["A1"]},
    ]


@pytest.mark.parametrize("draws", [["forward"], ["backward"], ["forward", "backward"]])
def test_samples_are_independent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, draws: list[str]) -> None:
    models = stand_in(monkeypatch, draws)
    settings = settings_of(tmp_path, copies=3)
    back_translate(settings)
    found = copies_of(settings)
    for lines in zip(*found, strict=True):
        assert len(set(lines)) == (3 if lines[0] else 1)
    forward, backward = (sum(len(batch) for batch in model.batches) for model in models)
    assert (forward, backward) == (15 if "forward" in draws else 5, 15)
    alone = replace(settings, copies=1, output=tmp_path / "alone")
    back_translate(alone)
    assert alone.output.read_text().split("\n")[:-1] == found[0]


def test_progress_ends_at_the_number_of_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for draws, bad in (([], "\0"), (["forward"], "\0"), (["backward"], "\0"), (["forward", "backward"], "f")):
        stand_in(monkeypatch, draws)
        shown: list[float] = []
        settings = settings_of(tmp_path, copies=3)
        lines = settings.input.read_text().split("\n")[:-1]
        trip = translating.RoundTrip(settings, translating.choose_device("cpu", False), shown.append)
        for one_pass in trip.passes:
            one_pass.model.bad = bad  # type: ignore[attr-defined]
        trip.translate(0, lines)
        assert sum(shown) == pytest.approx(len(lines))
    assert translating.POLL_SECONDS > 0


@pytest.mark.slow
def test_copies_survive_kills_shards_and_merges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, ["backward"])
    settings = settings_of(tmp_path, copies=2)
    report = back_translate(settings).report
    found = copies_of(settings)
    for instant in range(1, 20, 2):
        again = replace(settings, output=tmp_path / f"killed{instant}.txt")
        assert killed_at(instant, lambda: back_translate(again))  # noqa: B023
        back_translate(again)
        assert copies_of(again) == found
    sharded = replace(settings, output=tmp_path / "sharded.txt", num_shards=2)
    for shard in range(2):
        back_translate(replace(sharded, shard_id=shard))
    merged = merge_shards(sharded).report
    assert [path.read_text().split("\n")[:-1] for path in copy_paths(sharded.output, 2)] == found
    assert merged["sums"] == report["sums"] and merged["examples"] == report["examples"] != []
    (tmp_path / "sharded.1.txt.1of2").unlink()
    with pytest.raises(UserError, match=r"sharded\.1\.txt\.1of2 does not exist"):
        merge_shards(replace(sharded, overwrite=True))


def test_copies_that_cannot_be_made_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch)
    with pytest.raises(UserError, match=r"--copies 6: a beam of 5 finds 5 alternatives; add --beam 6 or --sampling"):
        back_translate(settings_of(tmp_path, copies=6))
    monkeypatch.setattr(Ranked, "has_alternatives", False)
    with pytest.raises(UserError, match="--copies 2: --backward .* gives one translation of a text; let its translate"):
        back_translate(settings_of(tmp_path, copies=2))


def test_prepare_reads_the_copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch)
    settings = settings_of(tmp_path, copies=2)
    back_translate(settings)
    pairs = tuple((f"pt{copy}", path) for copy, path in enumerate(settings.output_files))
    model = sentencepiece_model(tmp_path / "given.model")
    texts = {"inputs": (settings.input,), "paraphrase": pairs, "valid_share": 0.3}
    prepare(PrepareSettings(dest=tmp_path / "bin", spm_model=model, workers=1, **texts))
    assert {path.name for path in (tmp_path / "bin" / "paraphrase").iterdir()} == {"pt0", "pt1"}
