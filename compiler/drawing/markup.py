"""Elements of SVG and HTML as text. Everything that comes from a flow is escaped here."""

import re
from html import escape
from typing import TypeAlias

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")
"""Characters that XML can't hold."""


class Markup(str):
    """Text that is markup already."""


Child: TypeAlias = str | None
Attribute: TypeAlias = str | float | None


def tag(name: str, *children: Child, **attributes: Attribute) -> Markup:
    """An element. `class_` and `stroke_width` become `class` and `stroke-width`; a None leaves its attribute out."""
    given = "".join(f' {_name(k)}="{quoted(_value(v))}"' for k, v in attributes.items() if v is not None)
    inner = "".join(c if isinstance(c, Markup) else quoted(c) for c in children if c is not None)
    return Markup(f"<{name}{given}>{inner}</{name}>")


def joined(*parts: Child) -> Markup:
    """Several elements and texts after each other."""
    return Markup("\n".join(p if isinstance(p, Markup) else quoted(p) for p in parts if p))


def quoted(text: str) -> str:
    """A text as markup shows it."""
    return escape(CONTROL.sub("\ufffd", text), quote=True)


def number(x: float) -> str:
    """A coordinate: one decimal at most."""
    return f"{x:.1f}".removesuffix(".0").replace("-0.0", "0")


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else number(value)
