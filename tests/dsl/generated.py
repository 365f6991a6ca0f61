"""Hypothesis strategies for modules: every construct of the language, with comments where an author can put them."""

import string
from typing import Any

from hypothesis import strategies as st

from shardflow.dsl.ast import (
    Arg,
    Assign,
    Attr,
    Binary,
    Bool,
    Call,
    ClusterDecl,
    Collect,
    Def,
    Every,
    Expr,
    Flow,
    FromImport,
    Import,
    ImportedName,
    Index,
    Keep,
    Metric,
    Minimize,
    ModelDecl,
    Module,
    Name,
    Next,
    Num,
    Param,
    Place,
    PlaceLine,
    StateDecl,
    Str,
    Unary,
    Update,
    When,
)
from shardflow.dsl.literals import clean_doc
from shardflow.dsl.tokens import FOREIGN
from shardflow.dsl.vocabulary import KEYWORDS

words = st.text(string.ascii_lowercase + "_", min_size=1, max_size=4)
names = words.filter(lambda w: w not in KEYWORDS | FOREIGN)
any_names = words | st.sampled_from(sorted(KEYWORDS | {"prompt", "token"}))
paths = st.lists(names, min_size=1, max_size=2).map(".".join)
units = st.none() | st.sampled_from(["prompts", "tokens"]) | names
numbers = st.integers(0, 10**12) | st.floats(0, allow_infinity=False, allow_nan=False)
texts = st.text(max_size=8)
printable = st.characters(exclude_categories=["Cc", "Cs"])
operators = st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "and", "or"])
atoms: st.SearchStrategy[Expr] = st.one_of(
    st.builds(Num, numbers, units), st.builds(Str, texts), st.builds(Bool, st.booleans()), st.builds(Name, names)
)


def arguments(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Arg, ...]]:
    """Positional arguments, then options, each once."""
    positional = st.lists(st.builds(Arg, values), max_size=2)
    options = st.lists(st.builds(Arg, values, any_names), max_size=2, unique_by=lambda a: a.name)
    return st.tuples(positional, options).map(lambda parts: (*parts[0], *parts[1]))


def larger(values: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(Binary, operators, values, values),
        st.builds(Unary, st.sampled_from(["-", "not"]), values),
        st.builds(Attr, values, any_names),
        st.builds(Call, values | st.sampled_from([Name("where"), Name("keep")]), arguments(values)),
    )


exprs = st.recursive(atoms, larger, max_leaves=12)
docs = st.none() | st.lists(st.text(printable, max_size=12), max_size=3).map(lambda lines: clean_doc("\n".join(lines)))
comments = st.text(string.ascii_lowercase + '"\\(:', max_size=6).map(lambda text: f"# {text}".rstrip())
above = st.lists(comments | st.just(""), max_size=4).map(
    lambda texts: tuple(t for i, t in enumerate(texts) if t or (i and texts[i - 1]))
)
below = above.map(lambda texts: texts[:-1] if texts and not texts[-1] else texts)
PLAIN: dict[str, Any] = {"leading": above, "trailing": st.none() | comments, "blank_before": st.booleans()}
BLOCK: dict[str, Any] = {**PLAIN, "closing": below}


def parameters() -> st.SearchStrategy[tuple[Param, ...]]:
    """Required ones first, each name once."""
    params = st.builds(Param, names, st.none() | paths, st.none() | exprs)
    return st.lists(params, max_size=4, unique_by=lambda p: p.name).map(
        lambda found: tuple(sorted(found, key=lambda p: p.default is not None))
    )


def several(items: st.SearchStrategy[Any], least: int = 1) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, min_size=least, max_size=3).map(tuple)


simple = st.one_of(
    *(st.builds(kind, names, exprs, **PLAIN) for kind in (Assign, ModelDecl, StateDecl, Next, Metric, Keep)),
    st.builds(Minimize, exprs, **PLAIN),
)


def blocks(bodies: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(Update, names, arguments(exprs), several(bodies), **BLOCK),
        st.builds(Collect, arguments(exprs), several(bodies), **BLOCK),
        st.builds(When, exprs, several(bodies), **BLOCK),
        st.builds(Every, exprs, several(bodies), **BLOCK),
    )


targets: st.SearchStrategy[Expr] = st.builds(Name, names) | st.builds(Attr, st.builds(Name, names), any_names)
meshes = st.one_of(
    st.builds(Name, names), st.builds(Index, st.builds(Name, names), st.integers(0, 9), st.none() | st.integers(0, 9))
)
options = st.lists(st.builds(Arg, exprs, any_names), max_size=2, unique_by=lambda a: a.name).map(tuple)
placements = st.builds(PlaceLine, targets, mesh=meshes, options=options, **PLAIN) | st.builds(
    PlaceLine, targets, beside=targets, **PLAIN
)
members = several(st.builds(ImportedName, names, st.none() | names))
items = st.one_of(
    st.builds(Import, paths, st.none() | names, **PLAIN),
    st.builds(FromImport, paths, members, **PLAIN),
    st.builds(ClusterDecl, names, exprs, **PLAIN),
    st.builds(Def, names, parameters(), several(st.builds(Assign, names, exprs, **PLAIN), 0), exprs, docs, **BLOCK),
    st.builds(Flow, names, parameters(), several(st.recursive(simple, blocks, max_leaves=4)), docs, **BLOCK),
    st.builds(Place, paths, exprs, several(placements), **BLOCK),
)
modules = st.builds(Module, several(items, 0), docs, closing=below)
