"""`flowc fmt`: the canonical style, in place."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ..dsl.diagnostics import FlowError, render, to_json
from ..dsl.parser import parse
from ..dsl.printer import format_module


def format_files(targets: Sequence[str], *, check: bool, stdout: bool, as_json: bool) -> int:
    """Format `.flow` files in place; a traced flow (`algo.py:grpo`) is printed. Returns the exit status."""
    results = [_format(target, check=check, stdout=stdout, as_json=as_json) for target in targets]
    if as_json:
        print(json.dumps(results, indent=2))
    failed = any(r["errors"] for r in results)
    return int(failed or (check and any(r["changed"] for r in results)))


def _format(target: str, *, check: bool, stdout: bool, as_json: bool) -> dict[str, object]:
    from .targets import split_target

    path, name = split_target(target)
    text = path.read_text(encoding="utf-8")
    try:
        formatted = _formatted(path, name, text)
    except FlowError as error:
        if not as_json:
            for d in error.diagnostics:
                print(render(d, {str(path): text}), file=sys.stderr)
        return {"file": str(path), "changed": False, "errors": [to_json(d) for d in error.diagnostics]}
    traced = path.suffix == ".py"
    changed = not traced and formatted != text
    if (traced or stdout) and not as_json:
        sys.stdout.write(formatted)
    elif changed and not check and not stdout:
        path.write_text(formatted, encoding="utf-8")
    if changed and not as_json and not stdout:
        print(f"{'would reformat' if check else 'reformatted'} {path}")
    return {"file": str(path), "changed": changed, "errors": []}


def _formatted(path: Path, name: str | None, text: str) -> str:
    if path.suffix == ".py":
        from ..dsl.tracing import load_flow

        return format_module(load_flow(str(path), name or ""))
    return format_module(parse(text, str(path)))
