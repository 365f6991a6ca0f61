"""What a command line names: files and flows, and values of parameters."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from ..dsl.modules import STD
from .graph import LARGEST_INT, Constant, Size


class BadSetting(ValueError):
    """A `--set` that can't be read."""


def split_target(text: str) -> tuple[Path, str | None]:
    """`FILE` or `FILE:FLOW`; `std/ppo.flow` names a file of the standard library where there is no such file."""
    head, colon, tail = text.rpartition(":")
    path, name = (Path(head), tail) if colon and head and "/" not in tail else (Path(text), None)
    if not path.exists() and path.parts[:1] == ("std",):
        path = STD.joinpath(*path.parts[1:])
    return path, name


def parse_settings(settings: Sequence[str]) -> dict[str, Constant]:
    """`NAME=VALUE` settings: numbers, sizes with units (`128prompts`), true, false, anything else text."""
    out: dict[str, Constant] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise BadSetting(f"`--set {setting}` isn't NAME=VALUE, such as `group=16` or `batch=128prompts`")
        out[name] = _constant(value)
    return out


def _constant(text: str) -> Constant:
    if text in ("true", "false"):
        return text == "true"
    size = re.fullmatch(r"(\d+)\s*(prompts|samples|tokens|steps)", text)
    if size:
        return Size(int(size[1]), size[2])
    try:
        return int(text) if abs(int(text)) <= LARGEST_INT else float(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text.strip("\"'")
    return number if math.isfinite(number) else text  # text, which no number's parameter takes
