"""The spec grammar: what it reads, what it writes back, and its errors."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_clear.errors import UserError
from fairseq_clear.spec import Knob, Step, check_knobs, check_name, format_spec, format_value, parse_spec

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,6}", fullmatch=True).filter(lambda name: name != "none")
VALUES = st.from_regex(r"[A-Za-z0-9._-]{1,6}", fullmatch=True)
KNOBS = st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True), VALUES, max_size=3)
STEPS = st.builds(Step, NAMES, st.lists(VALUES, max_size=2).map(tuple), KNOBS)
SPECS = st.lists(st.lists(STEPS, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple)


@pytest.mark.slow
@given(SPECS)
def test_what_is_written_is_read_back(spec):
    text = format_spec(spec)
    assert parse_spec(text) == spec
    assert format_spec(parse_spec(text)) == text
    assert re.fullmatch(r"[A-Za-z0-9._:,=+/-]*", text), "a character that a shell could treat specially"


@given(SPECS, st.data())
@settings(max_examples=50, deadline=None)
def test_spaces_around_parts_do_not_matter(spec, data):
    text = format_spec(spec)
    places = [match.start() for match in re.finditer("[:,=+/]", text)]
    place = data.draw(st.sampled_from([0, len(text), *places]))
    assert parse_spec(text[:place] + " " + text[place:]) == spec


def test_every_part_of_the_grammar():
    spec = parse_spec("paraphrase:de,zh-cn,n=2+del-word/none")
    assert spec == ((Step("paraphrase", ("de", "zh-cn"), {"n": "2"}), Step("del-word")), ())
    assert parse_spec("") == parse_spec(" ") == parse_spec("none") == ((),) and format_spec(((),)) == "none"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a++b", "'' is not a name"),
        ("Del-Word", "'Del-Word' is not a name"),
        ("a:", "cannot read ''"),
        ("a:x=", "cannot read 'x='"),
        ("a:x$y", "cannot read 'x$y'"),
        ("a:x=1,de", "'de' comes after a knob"),
        ("a:x=1,x=2", "a is given x twice"),
        ("none+a", "'none' cannot be joined"),
        ("a+none:x=1", "'none' cannot be joined"),
    ],
)
def test_malformed_text_names_the_flag_and_the_place(text, said):
    with pytest.raises(UserError) as error:
        parse_spec(text, flag="--augment")
    assert str(error.value).startswith(f"--augment {text!r}: ")
    assert said in str(error.value)


KNOB_TABLE = {"ratio": Knob(0.7, float, 0, 1), "spans": Knob(5, int, 0), "language": Knob("de", str)}


def test_knobs_are_read_by_their_kind_and_defaults_filled_in():
    checked = check_knobs(Step("x", (), {"spans": "3", "ratio": "1e-1"}), KNOB_TABLE, flag="--f")
    assert checked == {"ratio": 0.1, "spans": 3, "language": "de"}
    assert list(checked) == list(KNOB_TABLE) and type(checked["spans"]) is int
    ends = {"ratio": "1", "spans": "0"}  # the ends of a range are in it
    checked = check_knobs(Step("x", ("0.5",), ends), KNOB_TABLE, flag="--f", allow_values=True)
    assert checked == {"ratio": 1, "spans": 0, "language": "de"}


TAKES = r"; it takes ratio: .*; spans: .*default 5\); language: a word"


@pytest.mark.parametrize(
    ("step", "table", "said"),
    [
        *(
            (Step("x", (), {"ratio": text}), KNOB_TABLE, f"x:ratio={text} is not a number from 0 to 1{TAKES}")
            for text in ("1.01", "-0.1", "nan", "many")
        ),
        *(
            (Step("x", (), {"spans": text}), KNOB_TABLE, f"x:spans={text} is not a whole number, 0 or more{TAKES}")
            for text in ("-1", "2.5", "1_0", "1" + 20 * "0")
        ),
        (Step("x", (), {"k": "inf"}), {"k": Knob(1.0)}, ".*is not a number"),
        (Step("x", (), {"k": "4"}), {"k": Knob(1, int, 1, 3)}, ".*is not a whole number from 1 to 3"),
        (Step("x", (), {"k": "3"}), {"k": Knob(1.0, float, None, 2)}, ".*is not a number, 2 or less"),
        (Step("x", (), {"rate": "1"}), KNOB_TABLE, f"x has no knob 'rate'{TAKES}"),
        (Step("x", (), {"rate": "1"}), {}, "x has no knob 'rate'; it takes no knobs$"),
        (Step("x", ("0.5",)), KNOB_TABLE, f"x takes no value without a name, got '0.5'{TAKES}"),
    ],
)
def test_bad_knobs_name_what_is_valid(step, table, said):
    with pytest.raises(UserError, match=f"^--f: {said}"):
        check_knobs(step, table, flag="--f")


def test_unknown_names_name_what_is_valid():
    check_name(Step("b"), ["a", "b"], flag="--f")
    with pytest.raises(UserError, match="^--f: there is no 'c'; choose from a, b$"):
        check_name(Step("c"), ["a", "b"], flag="--f")


@given(st.one_of(st.integers(1 - 2**31, 2**31 - 1), st.floats(-(2.0**30), 2.0**30)))
@settings(deadline=None)
def test_written_values_are_short_and_read_back(value):
    text = format_value(value)
    assert Knob(value, type(value)).read(text) == value
    assert "+" not in text and not text.endswith(".0")


def test_words_that_a_knob_chooses_from():
    one, some = Knob("a", str, choices=("a", "b")), Knob("a-b", str, choices=("a", "b"), several=True)
    assert (one.read("b"), some.read("b"), some.read("b-a"), Knob("x", str).read("any")) == ("b", "b", "b-a", "any")
    assert (one.accepts, some.accepts) == ("one of a, b", "some of a, b, joined by '-'")
    for knob, text in ((one, "c"), (one, "a-b"), (some, "a-a"), (some, "a-c"), (some, "")):
        with pytest.raises(ValueError):
            knob.read(text)
