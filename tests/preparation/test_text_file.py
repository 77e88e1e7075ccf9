"""``prepare --text-only`` and ``--sample``: the corpus as a text file, whole or not at all."""

import errno
from collections import Counter
from pathlib import Path

import pytest

from fairseq_clear.errors import UserError
from fairseq_clear.preparation.prepare_settings import PrepareSettings
from fairseq_clear.preparation.preparing import write_text
from tests.preparation.corpora import canonical, documents, write_corpus


def text_of(dest: Path, *inputs: Path, **options: object) -> str:
    write_text(PrepareSettings(inputs=inputs, dest=dest, text_only=True, **options))  # type: ignore[arg-type]
    return dest.read_text(encoding="utf-8")


def test_destinations_of_text(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "in.txt", 5)
    before = corpus.read_bytes()
    for options, message in (
        ({"dest": corpus}, "exists already"),
        ({"dest": corpus, "overwrite": True}, "is in --dest"),
        ({"dest": tmp_path / "out.gz"}, "give a name that ends in .txt"),
        ({"dest": tmp_path, "overwrite": True}, "give a name that ends in .txt"),
        ({"dest": tmp_path / "no" / "out.txt"}, "No such file"),
        ({"dest": tmp_path / "out.txt", "valid": (corpus,)}, "both input and --valid|leave --valid out"),
    ):
        with pytest.raises(UserError, match=message):
            write_text(PrepareSettings(inputs=(corpus,), text_only=True, **options))  # type: ignore[arg-type]
    assert corpus.read_bytes() == before and sorted(path.name for path in tmp_path.iterdir()) == ["in.txt"]
    (tmp_path / "out.txt").write_text("old")
    assert text_of(tmp_path / "out.txt", corpus, overwrite=True).encode() == before


@pytest.mark.parametrize("failure", [RuntimeError("bug"), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_failures_half_way_leave_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    corpus = write_corpus(tmp_path / "in.txt", 5)
    reached = []

    def broken(*arguments: object) -> None:
        reached.append(sorted(path.name for path in tmp_path.iterdir()))
        raise failure

    monkeypatch.setattr("fairseq_clear.preparation.preparing.os.replace", broken)
    with pytest.raises(UserError if isinstance(failure, OSError) else type(failure), match="No space left|bug|^$"):
        text_of(tmp_path / "out.txt", corpus)
    assert any(name.startswith(".out.txt.partial.") for name in reached[0])  # the negative control: something was there
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_a_sample_has_so_many_sentences_in_order_and_in_their_documents(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "in.txt", 40)
    made = documents(40)
    home = {line: number for number, lines in enumerate(made) for line in lines}
    text = text_of(tmp_path / "a.txt", corpus, sample=50)
    parts = [part.split("\n") for part in text.rstrip("\n").split("\n\n")]
    assert sum(map(len, parts)) == 50
    assert all(len({home[line] for line in part}) == 1 for part in parts)
    numbers = [home[part[0]] for part in parts]
    assert numbers == sorted(set(numbers)) and len(numbers) > 10
    assert text_of(tmp_path / "b.txt", corpus, sample=50) == text
    assert text_of(tmp_path / "c.txt", corpus, sample=50, seed=2) != text
    everything = sum(map(len, made))
    assert text_of(tmp_path / "d.txt", corpus, sample=everything) == canonical(made)
    with pytest.raises(UserError, match=f"the input has {everything} sentences; give a smaller number"):
        text_of(tmp_path / "e.txt", corpus, sample=everything + 1)


def test_every_sentence_is_as_likely(tmp_path: Path) -> None:
    corpus = tmp_path / "in.txt"
    corpus.write_text("\n\n".join(map(str, range(8))) + "\n")
    counts: Counter[str] = Counter()
    for seed in range(200):
        counts.update(text_of(tmp_path / "o.txt", corpus, sample=2, seed=seed, overwrite=True).split())
    assert len(counts) == 8 and all(abs(count - 50) < 5 * (200 * 0.25 * 0.75) ** 0.5 for count in counts.values())


def test_samples_must_have_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--sample 0: must be 1 or more"):
        text_of(tmp_path / "o.txt", write_corpus(tmp_path / "in.txt", 5), sample=0)
