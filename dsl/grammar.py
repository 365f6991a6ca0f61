"""The LALR tables of `grammar.lark`: made once per user, loaded once per process."""

import os
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark
from lark.lexer import Lexer

from .build import Builder


class _Tokens(Lexer):  # type: ignore[misc]  # untyped in lark
    """Hands our tokens to lark as they are."""

    def __init__(self, conf: object) -> None:
        pass

    def lex(self, data: Any) -> Any:
        return iter(data)


@cache
def line_grammar() -> Any:
    """The parser of one logical line: `.parse(tokens, start=...)`, start `line`, `placement` or `lone_expr`."""
    return Lark(
        Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8"),
        parser="lalr",
        lexer=_Tokens,
        start=["line", "placement", "lone_expr"],
        keep_all_tokens=True,
        maybe_placeholders=False,
        transformer=Builder(),
        cache=_cache_file() or False,
    )


def _cache_file() -> str | None:
    """Where lark keeps the tables: making them takes ten times as long as loading them.

    In the user's own folder, since lark unpickles the file; lark compares the grammar's hash and ignores a broken file.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardflow"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # read-only, or no home at all
        return None
    return str(folder / "grammar.lark.tables")
