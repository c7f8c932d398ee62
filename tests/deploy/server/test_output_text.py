"""Text while it is generated: sent text is final, and no stop string is sent."""

from hypothesis import given, strategies as st

from specexp.deploy.server.texts import OutputText


def as_bytes(tokens):
    """A byte a token, so that a character may take several."""
    return bytes(tokens).decode("utf-8", errors="replace")


def write(text, stop=(), taken_every=1):
    written, tokens, pieces = OutputText(as_bytes, stop), [], []
    for number, byte in enumerate(text.encode()):
        tokens.append(byte)
        ended = written(tokens)
        if ended:
            break
        if number % taken_every == 0:
            pieces.append(written.take())
    return "".join([*pieces, written.take(), written.rest()]), pieces


@given(st.text(max_size=30), st.integers(1, 5))
def test_all_pieces_together_are_the_text(text, taken_every):
    assert write(text, (), taken_every)[0] == text


@given(st.text(max_size=30), st.lists(st.integers(1, 6)))
def test_pieces_of_several_tokens_together_are_the_text(text, sizes):
    written, data, pieces = OutputText(as_bytes), text.encode(), []
    for size in [*sizes, len(data)]:
        written.extend(data[:size])
        data = data[size:]
        pieces.append(written.take())
    assert "".join([*pieces, written.rest()]) == text


@given(st.text("abé", max_size=20), st.lists(st.text("abé", min_size=1, max_size=4), max_size=3), st.integers(1, 5))
def test_the_text_ends_in_front_of_the_first_stop_string(given_text, stop, taken_every):
    text = given_text
    ends = [text[:end] for end in range(len(text) + 1) if any(text[:end].endswith(one) for one in stop)]
    if ends:  # as soon as one is complete, in front of the longest that is
        text = min(ends[0][: ends[0].find(one)] for one in stop if one in ends[0])
    assert write(given_text, stop, taken_every)[0] == text


@given(
    st.text("abé", max_size=12),
    st.lists(st.text("abé", min_size=1, max_size=4), max_size=3),
    st.integers(0, 8),
    st.lists(st.integers(1, 6)),
)
def test_stops_and_min_tokens_do_not_depend_on_how_many_tokens_arrive_at_once(text, stop, min_tokens, sizes):
    def written(sizes):
        output, data = OutputText(as_bytes, stop, min_tokens), text.encode()
        for size in [*sizes, len(data)]:
            if not output._stopped:
                output.extend(data[:size])
                data = data[size:]
        return output.rest()

    assert written(sizes) == written([1] * len(text.encode()))


def test_a_stop_string_that_ends_in_the_first_tokens_is_not_found_later():
    output = OutputText(as_bytes, ["ab", "a long one"], 2)
    output.extend(b"abc")
    assert output.rest() == "abc"


def test_incomplete_characters_and_possible_stop_strings_wait():
    assert write("é€")[1] == ["", "é", "", "", "€"]
    assert write("a\n\nb", ["\n\n\n"])[1] == ["a", "", "", "\n\nb"]
    written = OutputText(as_bytes)
    assert not written([0xE2])
    assert (written.take(), written.rest()) == ("", "\ufffd")
