"""Pictures show the scores of a report, what was logged, STS by layer against the encoder's own poolings, and pairs."""

import sys

import numpy as np
import pytest

from fairseq_clear.cli.main import main
from fairseq_clear.errors import UserError
from fairseq_clear.evaluation.encoders import CachedEncoder
from fairseq_clear.evaluation.plots import curve_panels, draw_bars, draw_lines, draw_map, map_pairs, score_layers
from fairseq_clear.evaluation.reports import Row
from fairseq_clear.evaluation.sts import cosine, spearman
from fairseq_clear.evaluation.sts_data import Pairs
from fairseq_clear.evaluation.training_log import read_log
from tests.conftest import WORDS, rejected, sentences
from tests.evaluation.test_training_log import LINES, record, write
from tests.evaluation.toys import Words

ROWS = [Row("a", {"STS-B": 80.0, "RTE": 60.0}, deviations={"RTE": 2.0}), Row("b", {"STS-B": 70.0, "RTE": 50.0})]


def test_bars_are_the_scores():
    axis = draw_bars(ROWS, ["STS-B", "RTE"]).axes[0]
    bars = [container for container in axis.containers if hasattr(container, "patches")]
    assert [[bar.get_width() for bar in group] for group in bars] == [[80.0, 60.0], [70.0, 50.0]]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["STS-B", "RTE"]
    assert axis.get_xlim()[0] <= 0
    assert bars[0].errorbar.lines[2][0].get_segments()[1][:, 0].tolist() == [58.0, 62.0]


def test_what_two_runs_logged_is_in_the_same_panels(tmp_path):
    plain = [record("train", at, "train", loss=12 - at / 10) for at in (10, 20)]  # no record within epochs
    logs = {"_$x^{$": read_log(write(tmp_path, LINES)), "MLM alone": read_log(write(tmp_path, plain, "mlm.log"))}
    figure = draw_lines(curve_panels(logs), "updates")
    lines = {axis.get_ylabel(): [line.get_xydata().tolist() for line in axis.lines] for axis in figure.axes}
    # the update that was logged again after resuming counts once, as it was logged last
    assert lines == {
        "loss": [[[20, 11.5]], [[10, 11], [20, 10]]],
        "mlm loss": [[[10, 9], [20, 7.5]], [[20, 8.5]]],
        "contrastive loss": [[[10, 5], [20, 4]], [[20, 4.5]]],
        "alignment": [[[10, 0.2], [20, 0.35]]],
        "uniformity": [[[10, -1], [20, -2]]],
    }
    shown = {text.get_text() for text in figure.legends[0].get_texts()}
    assert shown == {"_$x^{$, train", "_$x^{$, valid", "MLM alone, train"}
    figure.savefig(tmp_path / "drawn.svg")  # the name of a run may be no formula
    assert len({line.get_color() for axis in figure.axes for line in axis.lines}) == 3
    with pytest.raises(UserError, match="run: has no finite value of loss, mlm_loss"):
        curve_panels({"fine": {"valid": {10.0: {"loss": 1.0}}}, "run": {"valid": {10.0: {"bleu": 1.0}}}})


TEXTS = [text for text in sentences(80, seed=6) if text]
RNG = np.random.default_rng(2)
HALF = len(TEXTS) // 2
SCORES = RNG.permutation(np.repeat([0.0, 1.0, 2.5, 4.0, 5.0], HALF // 5 + 1)[:HALF])
DATA = Pairs(tuple(TEXTS[:HALF]), tuple(TEXTS[HALF : 2 * HALF]), SCORES)


@pytest.mark.parametrize("prompt", [None, {"include_prompt": True}, {"include_prompt": False}])
def test_each_point_is_what_that_pooling_scores(prompt, encoder, monkeypatch):
    if prompt is not None:
        monkeypatch.setattr(encoder, "prompts", {"any": f"{WORDS[0]} {WORDS[1]} "})
        monkeypatch.setattr(encoder, "default_prompt_name", "any")
        monkeypatch.setattr(encoder.model.args, "sentence_settings", prompt, raising=False)
    result = score_layers(encoder, DATA, batch_size=7)
    assert list(result) == ["cls", "mean"] and [len(scores) for scores in result.values()] == [2, 2]

    def expected(pooling):
        vectors = [encoder.encode(texts, pooling=pooling) for texts in (DATA.first, DATA.second)]
        return 100 * spearman(cosine(*vectors), SCORES)

    for block in (1, 2):
        assert result["mean"][block - 1] == pytest.approx(expected(f"layer:{block}"), abs=0.05)
    # [CLS] of so small a model gives cosines that differ by 1e-7: pairs change places by rounding
    assert result["cls"][-1] == pytest.approx(expected("cls"), abs=0.4)
    assert abs(result["mean"][0] - result["cls"][0]) > 0.5


def test_pairs_are_the_highest_and_the_lowest_without_doubles():
    class Recorded(Words):
        def encode(self, texts, batch_size=32):
            asked.extend(texts)
            return super().encode(texts)

    asked: list[str] = []
    map_pairs(Recorded(), DATA, 4)
    gold = dict(zip(zip(DATA.first, DATA.second, strict=True), SCORES, strict=True))
    assert [gold[pair] for pair in zip(asked[::2], asked[1::2], strict=True)] == [5.0] * 4 + [0.0] * 4
    doubles = Pairs(("a", "a", "b", "c", "d"), ("a", "b", "b", "d", "e"), np.arange(5.0))
    with pytest.raises(UserError, match="--pairs 2: there are 3 different pairs"):
        map_pairs(Words(), doubles, 2)


def test_the_map_has_near_texts_near_and_is_the_same_each_time():
    same = [(text, text + " ") for text in TEXTS[:12]]
    apart = list(zip(TEXTS[12:24], TEXTS[24:36], strict=True))
    first, second = zip(*same, *apart, strict=True)
    pairs = Pairs(first, second, np.repeat([5.0, 0.0], 12))
    one = map_pairs(CachedEncoder(Words(), name="words"), pairs, 12)
    assert one.shape == (24, 2, 2) and np.isfinite(one).all()
    length = np.linalg.norm(one[:, 0] - one[:, 1], axis=1)
    assert length[:12].mean() < length[12:].mean() / 2
    again = map_pairs(CachedEncoder(Words(), name="words"), pairs, 12)
    np.testing.assert_array_equal(one, again)
    figure = draw_map({"words": one, "other": again})
    np.testing.assert_array_equal(figure.axes[0].lines[13].get_xydata(), one[13])


# The command


@pytest.mark.slow
def test_curves(tmp_path, capsys, monkeypatch):
    command = ["plot", "curves", str(write(tmp_path, LINES)), "--output", str(tmp_path / "curves.png")]
    assert main([*command, "--labels", "run"]) == 0
    assert capsys.readouterr() == (f"wrote {tmp_path / 'curves.png'}\n", "")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    rejected(capsys, command, "with the extra eval")


@pytest.mark.slow
def test_layers_and_embedding(tmp_path, capsys, checkpoint, data_bin):
    rows = [f"{one}\t{two}\t{score}\n" for one, two, score in zip(DATA.first, DATA.second, SCORES, strict=True)]
    (tmp_path / "pairs.tsv").write_text("".join(rows))
    flags = ["--encoder", str(checkpoint), "--data-bin", str(data_bin), "--tokenizer", "whitespace", "--device", "cpu"]
    data = ["--sts-file", str(tmp_path / "pairs.tsv"), "--labels", "tiny"]
    assert main(["plot", "layers", *flags, *data, "--output", str(tmp_path / "layers.svg")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny, cls: ") and lines[1].startswith("tiny, mean: ")
    assert (tmp_path / "layers.svg").read_bytes().startswith(b"<?xml")
    flags = ["--encoder", "tests.evaluation.toys:Words", *data]
    assert main(["plot", "embedding", *flags, "--pairs", "5", "--output", str(tmp_path / "words.pdf")]) == 0
    assert (tmp_path / "words.pdf").read_bytes().startswith(b"%PDF")
