"""The text front end: what each construct becomes, and where its nodes say they stand."""

import dataclasses
import pprint
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardflow.dsl.ast import (
    Arg,
    Assign,
    Attr,
    Binary,
    Bool,
    Call,
    Def,
    Every,
    Expr,
    Flow,
    FromImport,
    Import,
    ImportedName,
    Index,
    Module,
    Name,
    Node,
    Num,
    Param,
    Place,
    PlaceLine,
    Str,
    Unary,
    Update,
)
from shardflow.dsl.diagnostics import FlowError
from shardflow.dsl.parser import parse, parse_expr
from shardflow.dsl.source import Span

DATA = Path(__file__).parent.parent / "data"
FILES = sorted(DATA.glob("*.flow"))
A, B, C = Name("a"), Name("b"), Name("c")


def flow_body(*lines: str) -> tuple[Node, ...]:
    """The statements of a flow with these lines."""
    text = "flow f():\n" + "".join(f"    {line}\n" for line in lines)
    (flow,) = parse(text, "f.flow").body
    assert isinstance(flow, Flow)
    return flow.body


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_acceptance_flows_parse(path: Path) -> None:
    assert parse(path.read_text(encoding="utf-8"), str(path)).body


def test_the_syntax_tree_of_a_file(golden: Callable[[str, str], None]) -> None:
    text = (DATA / "std-example.flow").read_text(encoding="utf-8")
    golden("ast/std-example.txt", pprint.pformat(parse(text, "std-example.flow"), width=110) + "\n")


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("64 prompts", Num(64, "prompts")),
        ("64prompts", Num(64, "prompts")),
        ("1_000", Num(1000)),
        ("1e-6", Num(1e-6)),
        (".5", Num(0.5)),
        ("true", Bool(True)),
        (r"'it\'s \x41\n'", Str("it's A\n")),
        ("a or b and not c", Binary("or", A, Binary("and", B, Unary("not", C)))),
        ("not a == b", Unary("not", Binary("==", A, B))),
        ("-a ** b", Unary("-", Binary("**", A, B))),
        ("a ** -b", Binary("**", A, Unary("-", B))),
        ("a ** b ** c", Binary("**", A, Binary("**", B, C))),
        ("a - b - c", Binary("-", Binary("-", A, B), C)),
        ("-a * b", Binary("*", Unary("-", A), B)),
        ("a + b // c % a", Binary("+", A, Binary("%", Binary("//", B, C), A))),
        ("(a < b) == c", Binary("==", Binary("<", A, B), C)),
        ("policy.next", Attr(Name("policy"), "next")),
        ("a.where.prompt", Attr(Attr(A, "where"), "prompt")),
        ("f(where=c, by=prompt)", Call(Name("f"), (Arg(C, "where"), Arg(Name("prompt"), "by")))),
        ("f(lambda=a)", Call(Name("f"), (Arg(A, "lambda"),))),
        ("where(a, b, c)", Call(Name("where"), (Arg(A), Arg(B), Arg(C)))),
        ("keep(a, where=b)", Call(Name("keep"), (Arg(A), Arg(B, "where")))),
        ("f(a,)()", Call(Call(Name("f"), (Arg(A),)))),
    ],
)
def test_expressions(text: str, expr: Expr) -> None:
    assert parse_expr(text) == expr


@pytest.mark.parametrize("text", ["", "a b", "a\nb", "a = b", "flow f():\n    x = 1"])
def test_one_expression_is_one_expression(text: str) -> None:
    with pytest.raises(FlowError):
        parse_expr(text)


def test_imports() -> None:
    text = "import a.b as c\nfrom std import (k1,  # one\n    k2 as k,\n)\n"
    assert parse(text, "f.flow").body == (
        Import("a.b", "c"),
        FromImport("std", (ImportedName("k1"), ImportedName("k2", "k"))),
    )


def test_parameters_and_both_forms_of_def() -> None:
    short, block = parse("def f(a, b: float = 1) = a\ndef g(x):\n    'doc'\n    y = x\n    return y\n", "f.flow").body
    assert short == Def("f", (Param("a"), Param("b", "float", Num(1))), (), A)
    assert block == Def("g", (Param("x"),), (Assign("y", Name("x")),), Name("y"), "doc")


def test_blocks() -> None:
    update, every, by_name = flow_body(
        *("update m(adamw(lr=1), epochs=4):", "    minimize a"),
        *("every 20 steps:", "    next m = a"),
        *("every period:", "    metric x = a"),
    )
    assert isinstance(update, Update) and [a.name for a in update.args] == [None, "epochs"]
    assert isinstance(every, Every) and every.period == Num(20, "steps")
    assert isinstance(by_name, Every) and by_name.period == Name("period")


def test_place() -> None:
    text = "place f on lab:\n    m.update on nodes[0:2], micro=8192 tokens\n    ref with m.update\n    r on local\n"
    target = Attr(Name("m"), "update")
    assert parse(text, "f.flow").body == (
        Place(
            "f",
            Name("lab"),
            (
                PlaceLine(target, mesh=Index(Name("nodes"), 0, 2), options=(Arg(Num(8192, "tokens"), "micro"),)),
                PlaceLine(Name("ref"), beside=target),
                PlaceLine(Name("r"), mesh=Name("local")),
            ),
        ),
    )


def test_docstrings_lose_their_indentation_and_keep_their_backslashes() -> None:
    module = parse('"""First \\beta\n\n      more\n    """\nflow f():\n    """Own."""\n    x = 1\n', "f.flow")
    assert module.doc == "First \\beta\n\nmore"
    assert isinstance(module.body[0], Flow) and module.body[0].doc == "Own."


def test_line_ends_and_a_byte_order_mark_do_not_matter() -> None:
    text = "flow f():\n    x = 1\n"
    assert parse("\ufeff" + text.replace("\n", "\r\n"), "f.flow") == parse(text, "f.flow")
    assert parse(text.rstrip("\n"), "f.flow") == parse(text, "f.flow")


def test_an_empty_file_is_an_empty_module() -> None:
    assert parse("", "f.flow") == Module(()) == parse("\n\n# only this\n", "f.flow")


# ---------------------------------------------------------------- spans


def nodes(node: object) -> Iterator[Node]:
    """All nodes of a tree."""
    if isinstance(node, tuple):
        for item in node:
            yield from nodes(item)
    if isinstance(node, Node):
        yield node
        for field in dataclasses.fields(node):
            yield from nodes(getattr(node, field.name))


def quoted(span: Span, text: str) -> str:
    lines = text.split("\n")[span.line - 1 : span.end_line]
    lines[-1] = lines[-1][: span.end_column - 1]
    return "\n".join([lines[0][span.column - 1 :], *lines[1:]])


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_span_of_an_expression_holds_that_expression(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for node in nodes(parse(text, str(path))):
        assert node.span.path == str(path)
        if isinstance(node, Name):
            assert quoted(node.span, text) == node.id
        elif isinstance(node, Expr) and not isinstance(node, Index):
            assert parse_expr(quoted(node.span, text)) == node


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_span_of_a_statement_holds_its_block_and_its_name(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for item in parse(text, str(path)).body:
        assert parse(quoted(item.span, text), str(path)).body == (item,)
        if isinstance(item, (Flow, Def)):
            assert quoted(item.name_span, text) == item.name
