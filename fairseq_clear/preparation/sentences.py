"""Running text to one sentence a line, by ``sentencex`` (Wikimedia's; rules for 300 languages, no download)."""

from collections.abc import Callable, Iterable, Iterator

from fairseq_clear.errors import UserError

MAX_PARAGRAPH_CHARACTERS = 1_000_000  # text without any blank line is split in portions, so that memory stays flat


def sentence_splitter(language: str) -> Callable[[str], list[str]]:
    """Return a function from a text to its sentences, stripped, empty ones dropped.

    Raises:
        UserError: sentencex is not installed; the message names the extra.
    """
    try:
        import sentencex
    except ImportError:
        raise UserError("--split-sentences needs sentencex; pip install 'fairseq_clear[split]'") from None

    def split(text: str) -> list[str]:
        return [stripped for sentence in sentencex.segment(language, text) if (stripped := sentence.strip())]

    return split


def split_units(units: Iterable[str | None], mode: str, language: str) -> Iterator[str | None]:
    """Split the text among units into sentences (see ``corpus`` for units).

    Args:
        units: lines, blank lines and borders of documents.
        mode: ``lines`` splits every line on its own; ``paragraphs`` first joins hard-wrapped lines up to a blank one.
        language: code of the splitter's rules, such as ``en``.
    """
    split = sentence_splitter(language)
    for unit in join_paragraphs(units) if mode == "paragraphs" else units:
        if unit:
            # a line break inside would end the sentence early once it is written
            yield from (" ".join(sentence.splitlines()) for sentence in split(unit))
        else:
            yield unit


def join_paragraphs(units: Iterable[str | None]) -> Iterator[str | None]:
    """Join consecutive lines by a space, up to a blank line, a border, or a million characters."""
    lines: list[str] = []
    size = 0
    for unit in units:
        if not unit or size > MAX_PARAGRAPH_CHARACTERS:
            if lines:
                yield " ".join(lines)
            lines, size = [], 0
        if unit:
            lines.append(unit)
            size += len(unit)
        else:
            yield unit
    if lines:
        yield " ".join(lines)
