"""The lexer of SQL: every spelling of a token, and texts that no one should write."""

import pytest

from tidegate.model.sql import TokenKind, is_broken, split, tokens


def read(text):
    return [(token.kind.value, token.value) for token in tokens(text)]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("select", "word", "SELECT"),
        ("列1", "word", "列1"),
        ("1a", "word", "1A"),
        ("`a``b`", "name", "a`b"),
        ("'it''s'", "string", "it's"),
        ('"a""b"', "string", 'a"b'),
        ("'a\"\"b'", "string", 'a""b'),
        ("'a\nb'", "string", "a\nb"),
        ("_UTF8MB4'é'", "string", "é"),
        ("_utf8mb4 'é'", "string", "é"),
        ("n'é'", "string", "é"),
        ("x'0fF'", "bytes", "00ff"),
        ("_utf8mb4 X'41'", "bytes", "41"),
        ("0x1", "bytes", "01"),
        ("b'101'", "bytes", "05"),
        ("0b100000000", "bytes", "0100"),
        ("x''", "bytes", ""),
        ("5000", "number", "5000"),
        ("1.5e+10", "number", "1.5e+10"),
        (".5", "number", ".5"),
        (";", "mark", ";"),
        ("'open", "broken", ""),
        ("'a''", "broken", ""),
        ("`open", "broken", ""),
    ],
)
def test_one_token(text, kind, value):
    assert read(text) == [(kind, value)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a/* b */c", "A C"),
        ("a -- b\nc", "A C"),
        ("a # b\nc", "A C"),
        ("a /*T! b */ c", "A B C"),
        ("a /*T![x,y_z] b */ c", "A B C"),
        ("a /*!50100 b */ c", "A B C"),
        ("a /* b", "A"),
        ("t.1a", "T . 1A"),
        ("5--3", "5 - - 3"),
        ("a/b*c", "A / B * C"),
    ],
)
def test_what_is_between_tokens(text, words):
    assert " ".join(token.value for token in tokens(text)) == words


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ALTER TABLE `t` COMMENT = 'a\\nb'", "a\\nb"),
        ("ALTER TABLE `t` COMMENT = 'a\\'", "a\\"),
        ("alter table t comment = 'a\\nb'", "a\nb"),
        ("alter table t comment = 'a\\'b'", "a'b"),
        ("alter table t comment = 'a\\\\'", "a\\"),
        ("alter table t comment = 'a\\%\\_'", "a\\%\\_"),
        ("alter table t comment = 'a\\'", "a\\"),
        ('ALTER TABLE `t` COMMENT = "a\\tb"', "a\tb"),
        ("ALTER TABLE `t` ADD `c` varchar(9) DEFAULT 'a\\tb'", "a\tb"),
    ],
)
def test_a_backslash_is_plain_in_what_tidb_restored_and_escapes_elsewhere(text, value):
    assert [token.value for token in tokens(text) if token.kind is TokenKind.STRING] == [value]


def test_only_words_and_marks_are_compared_with_keywords():
    assert [token.key for token in tokens("drop `drop` 'drop' 5 (")] == ["DROP", "", "", "", "("]


def test_parts_are_cut_at_marks_that_are_in_no_brackets():
    parts = split(tokens("a (b, c), d,, (e)"))
    assert [" ".join(token.text for token in part) for part in parts] == [
        *("a ( b , c )", "d", "( e )"),
    ]


def test_no_more_tokens_are_read_than_asked_for():
    assert len(tokens("," * 1000, most=10)) == 10


def test_an_open_quote_is_told():
    assert is_broken(tokens("a 'b"))
    assert not is_broken(tokens("a 'b'"))


@pytest.mark.parametrize(
    "piece",
    ["/*", "'", '"', "`", "\\", "(", "--", "/*T![", "'\\", "_a ", "_", "x'", "0x", "1.", "1e", "*"],
)
def test_a_hostile_text_is_read_in_one_pass(piece):
    assert tokens(piece * 50_000) is not None
