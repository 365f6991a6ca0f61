"""What the text front end refuses: each code with a failing and a mended example, and several errors in one file."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from shardflow.dsl.diagnostics import FlowError, Report, render
from shardflow.dsl.parser import parse, parse_with_report

DATA = Path(__file__).parent.parent / "data"


def in_flow(*lines: str) -> str:
    return "flow f(data, a=1, b=2, c=3):\n" + "".join(f"    {line}\n" for line in lines)


EXAMPLES: list[tuple[str, str, str, str]] = [
    # code, case, failing, mended
    ("E0001", "missing-operator", in_flow("x = a b"), in_flow("x = a * b")),
    ("E0001", "ends-early", in_flow("x = a +"), in_flow("x = a + b")),
    ("E0001", "misspelt-keyword", in_flow('modle m = causal_lm("p")'), in_flow('model m = causal_lm("p")')),
    ("E0001", "block-on-one-line", in_flow("when a > b: x = 1"), in_flow("when a > b:", "    x = 1")),
    ("E0001", "no-parameters", "flow f:\n    x = 1\n", "flow f():\n    x = 1\n"),
    ("E0001", "two-imports", "import a, b\n", "import a\nimport b\n"),
    ("E0002", "tab", "flow f():\n\tx = 1\n\ty = 2\n", "flow f():\n    x = 1\n    y = 2\n"),
    ("E0003", "open-string", in_flow('x = read("a)'), in_flow('x = read("a")')),
    ("E0003", "open-docstring", 'flow f():\n    """Doc.\n    x = 1\n', 'flow f():\n    """Doc."""\n    x = 1\n'),
    ("E0003", "escape", in_flow(r'x = g("\d")'), in_flow(r'x = g("\\d")')),
    ("E0003", "number", in_flow("x = 10k"), in_flow("x = 10000")),
    ("E0004", "unclosed", in_flow("x = g(a, (b + c)", "y = a"), in_flow("x = g(a, (b + c))", "y = a")),
    ("E0004", "closes-nothing", in_flow("x = g(a))"), in_flow("x = g(a)")),
    ("E0004", "mismatch", in_flow("x = g(a]"), in_flow("x = g(a)")),
    ("E0005", "quote", in_flow("x = read(“a.jsonl”)"), in_flow('x = read("a.jsonl")')),
    ("E0005", "continuation", in_flow("x = a \\", "    + b"), in_flow("x = (a", "    + b)")),
    ("E0006", "no-block", in_flow("x = a", "    y = b"), in_flow("x = a", "y = b")),
    ("E0006", "dedent", "flow f():\n    x = 1\n  y = 2\n", "flow f():\n    x = 1\n    y = 2\n"),
    ("E0006", "top-level", "  import a\n", "import a\n"),
    ("E0007", "empty", in_flow("when a > b:"), in_flow("when a > b:", "    x = 1")),
    ("E0007", "no-return", "def f(x):\n    y = x\n", "def f(x):\n    y = x\n    return y\n"),
    ("E0008", "when", in_flow("when a > b", "    x = 1"), in_flow("when a > b:", "    x = 1")),
    ("E0008", "def", "def f(x)\n    return x\n", "def f(x):\n    return x\n"),
    ("E0009", "model", 'model m = causal_lm("p")\n', in_flow('model m = causal_lm("p")')),
    ("E0009", "def", in_flow("def f(x) = x"), "def f(x) = x\n"),
    ("E0009", "return", in_flow("return a"), in_flow("metric x = a")),
    ("E0009", "early-return", "def f(x):\n    return x\n    y = x\n", "def f(x):\n    y = x\n    return x\n"),
    ("E0009", "placement", in_flow("m.update on nodes[0]"), "place f on lab:\n    m.update on nodes[0]\n"),
    ("E0010", "when", in_flow("when a = b:", "    x = 1"), in_flow("when a == b:", "    x = 1")),
    ("E0010", "argument", in_flow("x = keep(a, where=b = c)"), in_flow("x = keep(a, where=b == c)")),
    ("E0011", "chain", in_flow("x = a < b <= c"), in_flow("x = a < b and b <= c")),
    ("E0012", "ternary", in_flow("x = a if c > 0 else b"), in_flow("x = where(c > 0, a, b)")),
    ("E0013", "ampersand", in_flow("x = (a > 0) & (b > 0)"), in_flow("x = a > 0 and b > 0")),
    ("E0013", "order", in_flow("x = a =< b"), in_flow("x = a <= b")),
    ("E0013", "tilde", in_flow("x = ~a"), in_flow("x = not a")),
    ("E0014", "tuple", in_flow("x = (a, b)"), in_flow("x = a", "y = b")),
    ("E0014", "list", in_flow("x = [a, b]"), in_flow("x = a", "y = b")),
    ("E0014", "dict", in_flow("x = {a: b}"), in_flow("x = g(a=b)")),
    ("E0014", "subscript", in_flow("x = a[0]"), in_flow("x = keep(a, where=rank(a, by=prompt) == 0)")),
    ("E0015", "true", in_flow("x = read(data, all=True)"), in_flow("x = read(data, all=true)")),
    ("E0015", "none", in_flow("x = read(data, epochs=None)"), in_flow("x = read(data)")),
    ("E0016", "assign", in_flow("state = a"), in_flow("state_ = a")),
    ("E0016", "use", in_flow("x = model + 1"), in_flow("x = model_ + 1")),
    ("E0016", "parameter", "def f(where=1) = where\n", "def f(where_=1) = where_\n"),
    ("E0016", "python", in_flow("lambda = 0.95"), in_flow("lambda_ = 0.95")),
    ("E0017", "augmented", in_flow("x += a"), in_flow("y = x + a")),
    ("E0017", "targets", in_flow("x, y = g(a)"), in_flow("r = g(a)", "x = r.x", "y = r.y")),
    ("E0017", "chained", in_flow("x = y = a"), in_flow("x = a", "y = a")),
    ("E0017", "expression", in_flow("g(a)"), in_flow("x = g(a)")),
    ("E0017", "comparison", in_flow("x == a"), in_flow("x = a")),
    ("E0018", "if", in_flow("if a > b:", "    x = 1"), in_flow("when a > b:", "    x = 1")),
    ("E0018", "for", in_flow("for x in a:", "    y = x"), in_flow("y = a")),
    ("E0018", "lambda", in_flow("x = g(lambda y: y)"), "def h(y) = y\n" + in_flow("x = g(h(a))")),
    ("E0018", "star", "from std import *\n", "from std import k1, k3\n"),
    ("E0019", "order", in_flow("x = g(n=1, a)"), in_flow("x = g(a, n=1)")),
    ("E0019", "twice", in_flow("x = g(a, n=1, n=2)"), in_flow("x = g(a, n=1)")),
    ("E0019", "required", "flow f(a=1, b):\n    x = b\n", "flow f(b, a=1):\n    x = b\n"),
]
IDS = [f"{code}-{case}" for code, case, _, _ in EXAMPLES]


def refused(text: str) -> list[str]:
    """The codes of a file's errors, in order."""
    with pytest.raises(FlowError) as caught:
        parse(text, "f.flow")
    return [d.code for d in caught.value.diagnostics]


@pytest.mark.parametrize(("code", "case", "failing", "mended"), EXAMPLES, ids=IDS)
def test_each_refusal_has_one_code_and_a_way_out(code: str, case: str, failing: str, mended: str) -> None:
    assert set(refused(failing)) == {code}
    parse(mended, "f.flow")


def test_the_messages(golden: Callable[[str, str], None]) -> None:
    parts = []
    for code, case, failing, _ in EXAMPLES:
        report = Report()
        parse_with_report(failing, "f.flow", report)
        parts += [f"=== {code} {case}", *(render(d, {"f.flow": failing}) for d in report.diagnostics), ""]
    golden("syntax_errors.txt", "\n".join(parts))


def test_every_code_has_an_example() -> None:
    assert {code for code, *_ in EXAMPLES} == {f"E00{n:02}" for n in range(1, 20)}


def test_all_errors_of_a_file_are_reported() -> None:
    text = in_flow("x = a if b else c", "when a = b:", "    y = True", "z = g(a", "w = [1]") + "model m = g()\n"
    assert refused(text) == ["E0012", "E0010", "E0015", "E0004", "E0014", "E0009"]


def test_a_missing_colon_hides_nothing_and_costs_nothing() -> None:
    report = Report()
    module = parse_with_report("flow f()\n    when a > b\n        x = True\n    y = 1\n", "f.flow", report)
    assert [d.code for d in report.diagnostics] == ["E0008", "E0008", "E0015"]
    assert module == parse_with_report("flow f():\n    when a > b:\n        x = [\n    y = 1\n", "f.flow", Report())


def test_an_unreadable_header_does_not_make_its_block_wrong() -> None:
    assert refused("flwo f():\n    model m = g()\n    x = 1\n") == ["E0001"]
    assert refused("@flow\ndef f(x):\n    return x\n") == ["E0018"]
    assert refused(in_flow("for x in y:", "    metric z = 1")) == ["E0018"]


def test_an_unclosed_bracket_ends_before_the_next_statement() -> None:
    text = in_flow("update m(adamw(lr=1):", "    x = g(a,", "          b", "    minimize x", "y = None")
    assert refused(text) == ["E0004", "E0015"]


def test_an_unclosed_bracket_is_not_closed_by_a_later_one() -> None:
    text = in_flow("x = g(a", "metric y = b)", "z = None")
    assert refused(text) == ["E0004", "E0004", "E0015"]


def test_the_good_part_of_a_broken_file_is_kept() -> None:
    report = Report()
    module = parse_with_report("import a\nimport 1\nflow f():\n    x = [\n    y = 2\n", "f.flow", report)
    assert module == parse("import a\nflow f():\n    y = 2\n", "f.flow")
    assert len(report.diagnostics) == 2


def test_the_words_for_what_is_allowed() -> None:
    report = Report()
    parse_with_report("flow f():\n    x = (a b)\n", "f.flow", report)
    (found,) = report.diagnostics
    assert found.message == "unexpected `b` after `a`"
    assert found.label == "expected an operator or `)`"


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_are_refused_not_crashed_on(seed: int) -> None:
    rng = random.Random(seed)
    text = (DATA / "std-example.flow").read_text(encoding="utf-8")
    for _ in range(6):
        at = rng.randrange(len(text))
        piece = rng.choice(["", "(", ")", '"', "\n", "    ", ":", "=", "if ", "[", "\t", ",", '"""'])
        text = text[:at] + piece + text[at + rng.randrange(4) :]
    report = Report()
    parse_with_report(text, "f.flow", report)
    for found in report.diagnostics:
        assert render(found, {"f.flow": text})
