"""Logical lines: what is joined, where comments go, and what the scanner costs."""

from shardflow.dsl.diagnostics import Report
from shardflow.dsl.lines import Line, Tree, line_tree


def tree(text: str) -> Tree:
    report = Report()
    found = line_tree(text, "f.flow", report)
    assert not report.diagnostics
    return found


def words(line: Line) -> list[str]:
    return [token.value for token in line.tokens]


def test_brackets_join_lines_and_tokens_keep_their_places() -> None:
    (line,) = tree("x = f(a,\n      b)\n").lines
    assert words(line) == ["x", "=", "f", "(", "a", ",", "b", ")"]
    assert [(t.line, t.column) for t in line.tokens[-3:]] == [(1, 8), (2, 7), (2, 8)]


def test_comments_ride_on_the_line_that_follows() -> None:
    first, second = tree("# a\nx = (1  # b\n     + 2)  # c\n\n#d\n\ny = 3").lines
    assert (first.leading, first.trailing, first.blank_before) == (("# a", "# b"), "# c", False)
    assert (second.leading, second.trailing, second.blank_before) == (("# d", ""), None, True)


def test_comments_at_the_end_of_a_block_belong_to_it() -> None:
    found = tree("when a:\n    x = 1\n    # in\n# out\n")
    (block,) = found.lines
    assert block.closing == ("# in",)
    assert found.closing == ("# out",)


def test_the_tree_follows_indentation() -> None:
    outer, last = tree("a = 1\nwhen b:\n  when c:\n      d = 2\n  e = 3\nf = 4\n").lines[1:]
    assert [words(line)[0] for line in outer.children] == ["when", "e"]
    assert [words(line)[0] for line in outer.children[0].children] == ["d"]
    assert words(last)[0] == "f"


def test_reserved_words_are_names_after_a_dot_and_as_options() -> None:
    (line,) = tree("x = m.next(where=keep(a))").lines
    assert [t.type for t in line.tokens if t.value in ("next", "where", "keep")] == ["NAME", "NAME", "KEEP"]


def test_a_bracket_in_a_string_or_a_comment_is_no_bracket() -> None:
    assert len(tree('x = "("\ny = 1  # (\n').lines) == 2
