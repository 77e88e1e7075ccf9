"""Trained models: paraphrases keep the meaning and change the wording, and lines stay where they are."""

import pytest

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


# "sampling" without a limit would draw improbable words too
@pytest.mark.parametrize(("search", "least"), [({}, 0.95), ({"sampling": 3}, 0.9)], ids=["beam", "top-k"])
def test_meaning_is_kept_and_wording_changed(search, least, tmp_path_factory, tmp_path) -> None:
    toys = train_toys(tmp_path_factory)
    originals = (toys / "text.txt").read_text().split("\n")[:100]
    originals[10] = originals[50] = ""
    originals[20] = originals[20].replace(" ", "\t")
    originals[30] = originals[30].replace(" ", "\u2028", 1) + "\r"
    originals[40] = "\0 \t"
    (tmp_path / "text").write_bytes("\n".join(originals).encode())
    files = {"input": tmp_path / "text", "output": tmp_path / "out"}
    models = {"forward": str(toys / "english-gerlan"), "backward": str(toys / "gerlan-english")}
    report = translate_file(RoundTrip(**files, **models, chunk_lines=16, device="cpu", **search))
    assert report is not None
    content = (tmp_path / "out").read_bytes().decode()
    assert len(content.splitlines()) == content.count("\n") == 100
    results = content.split("\n")[:-1]
    kept, changed = kept_and_changed(originals, results)
    assert kept >= least and changed >= 0.9
    assert kept_and_changed(originals, [*results[1:], results[0]])[0] < 0.05  # other lines do not mean the same
    assert results[10] == results[50] == results[40] == ""
    assert report["blank"] == 3 and report["unchanged"] == 97 - round(changed * 97)
    assert 5 < report["self_bleu"] < 50 and report["length_ratio"] == pytest.approx(1, abs=0.02)
    assert report["forward"]["unknown"] == report["kept"] == 0
