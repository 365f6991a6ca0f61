"""`flowc`: check, compile, format, explain."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ..dsl.diagnostics import Diagnostic, FlowError, in_order, render, to_json
from .compilation import Checked, Source, check_flow, choose_flow, compile_flow, load_source, schedule_flow
from .graph import Constant, Size

STAGES = ("ast", "graph", "plan")
MISSING = frozenset({"W0401", "W0402"})
"""Warnings of files that aren't on this machine; a run can't do without them."""


def parser() -> argparse.ArgumentParser:
    """The command line of flowc."""
    p = argparse.ArgumentParser(prog="flowc", description="Check, compile, format and explain flows.")
    commands = p.add_subparsers(dest="command", required=True)
    for name, help in (("check", "report what is wrong with a flow"), ("compile", "compile a flow to a plan")):
        c = commands.add_parser(name, help=help)
        _source_options(c)
        if name == "compile":
            c.add_argument(
                "--target",
                choices=("single",),
                default="single",
                help="single: one controller's imperative schedule (default)",
            )
            c.add_argument("--emit", choices=STAGES, help="print what a stage left, as text (or JSON)")
            c.add_argument("-o", "--output", type=Path, help="where to write the plan (default: standard output)")
            c.add_argument("--require-sources", action="store_true", help=argparse.SUPPRESS)
    f = commands.add_parser("fmt", help="format flows in their canonical style")
    f.add_argument("flows", nargs="+", help=".flow files, or algo.py:FLOW, which is printed as .flow")
    f.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a file would change")
    f.add_argument("--stdout", action="store_true", help="print instead of writing the file")
    f.add_argument("--format", choices=("text", "json"), default="text")
    e = commands.add_parser("explain", help="explain an error, or how a flow will run")
    e.add_argument("what", help="an error or warning such as E0201, or a flow")
    e.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    e.add_argument("--format", choices=("text", "json"), default="text")
    return p


def _source_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("flow", help="a .flow file, FILE.flow:FLOW, or algo.py:FLOW")
    p.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter, e.g. batch=128prompts"
    )
    p.add_argument("--format", choices=("text", "json"), default="text", help="how to report")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status: 0 well, 1 refused, 2 wrong usage."""
    args = parser().parse_args(argv)
    try:
        match args.command:
            case "check":
                return _check(args)
            case "compile":
                return _compile(args)
            case "fmt":
                from .formatting import format_files

                return format_files(args.flows, check=args.check, stdout=args.stdout, as_json=args.format == "json")
        from .explain import explain

        return explain(args)
    except OSError as error:
        print(f"flowc: can't read `{error.filename}`: {error.strerror}", file=sys.stderr)
    except UnicodeDecodeError as error:
        print(f"flowc: the file isn't UTF-8 text: {error.reason} at byte {error.start}", file=sys.stderr)
    except BadSetting as error:
        print(f"flowc: {error}", file=sys.stderr)
    except BrokenPipeError:
        return 0
    return 2


# ---------------------------------------------------------------- check and compile


def _check(args: argparse.Namespace) -> int:
    """Check the named flow, or every flow of the file."""
    path, name = split_target(args.flow)
    names = [name] if name else [None] if path.suffix == ".py" else list(load_source(path).module.flows()) or [None]
    diagnostics: list[Diagnostic] = []
    sources: dict[str, str] = {}
    for each in names:
        source, found = attempt(path, each, args.set if len(names) == 1 else [])
        diagnostics += [d for d in found if d not in diagnostics]
        sources |= source.loader.sources if source else {}
    report(diagnostics, sources, args.format)
    failed = any(d.is_error for d in diagnostics)
    if args.format == "text":
        shown = ", ".join(n for n in names if n) or path.name
        print(
            f"{path}: {_counted(diagnostics)}" if diagnostics else f"{path}: {shown} ok",
            file=sys.stderr if failed else sys.stdout,
        )
    return int(failed)


def _compile(args: argparse.Namespace) -> int:
    path, name = split_target(args.flow)
    source: Source | None = None
    try:
        source = load_source(path, name)
        checked = _checked(source, name, args.set)
        if args.require_sources:
            _require_sources(checked)
        text = _emitted(checked, args)
    except FlowError as error:
        report(error.diagnostics, source.loader.sources if source else {}, args.format)
        return 1
    report(checked.warnings, source.loader.sources, args.format, quiet_json=True)
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


def _checked(source: Source, name: str | None, settings: Sequence[str]) -> Checked:
    return check_flow(source, choose_flow(source, name), parse_settings(settings))


def _require_sources(checked: Checked) -> None:
    """For a run, a missing data file or model directory is an error. A hub id may still be fetched."""
    missing = [d for d in checked.warnings if d.code in MISSING and not _may_be_fetched(d)]
    if missing:
        raise FlowError([Diagnostic("E" + d.code[1:], d.message, d.span, d.label, d.notes, d.help) for d in missing])


def _may_be_fetched(warning: Diagnostic) -> bool:
    """Whether what is missing is spelled as a hub id: `owner/name`, no suffix of a data file."""
    match = re.search(r"`([^`]+)`", warning.message)
    return (
        bool(match)
        and bool(re.fullmatch(r"[\w-]+/[\w.-]+", match[1]))
        and not re.search(r"\.(jsonl?|csv|parquet)$", match[1])
    )


def _emitted(checked: Checked, args: argparse.Namespace) -> str:
    match args.emit:
        case "ast":
            return _ast(checked, args.format)
        case "graph":
            from .printing import graph_text

            return graph_text(schedule_flow(checked).graph)
    from .plan import encode
    from .plan.text import plan_text

    plan = compile_flow(checked, args.target)
    if args.emit == "plan" and args.format == "text" and not args.output:
        return plan_text(plan)
    return encode(plan).decode()


def _ast(checked: Checked, format: str) -> str:
    if format == "json":
        from dataclasses import asdict

        return json.dumps(asdict(checked.flow), indent=2, default=str) + "\n"
    from ..dsl import ast
    from ..dsl.printer import format_module

    return format_module(ast.Module((checked.flow,)))


# ---------------------------------------------------------------- targets and settings


class BadSetting(ValueError):
    """A `--set` that can't be read."""


def split_target(text: str) -> tuple[Path, str | None]:
    """`FILE` or `FILE:FLOW`; `std/ppo.flow` names a file of the standard library where there is no such file."""
    head, colon, tail = text.rpartition(":")
    path, name = (Path(head), tail) if colon and head and "/" not in tail else (Path(text), None)
    if not path.exists() and path.parts[:1] == ("std",):
        from ..dsl.modules import STD

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
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text.strip("\"'")


# ---------------------------------------------------------------- reports


def attempt(path: Path, name: str | None, settings: Sequence[str]) -> tuple[Source | None, Sequence[Diagnostic]]:
    """Check one flow and return all diagnostics instead of raising."""
    source: Source | None = None
    try:
        source = load_source(path, name)
        return source, _checked(source, name, settings).warnings
    except FlowError as error:
        return source, error.diagnostics


def report(diagnostics: Sequence[Diagnostic], sources: dict[str, str], format: str, quiet_json: bool = False) -> None:
    """Print diagnostics: as text on standard error, as JSON on standard output."""
    if format == "json":
        if diagnostics or not quiet_json:
            stream = sys.stderr if quiet_json else sys.stdout
            print(json.dumps([to_json(d) for d in in_order(diagnostics)], indent=2), file=stream)
        return
    for diagnostic in in_order(diagnostics):
        print(render(diagnostic, _with_files(diagnostic, sources)), end="\n\n", file=sys.stderr)


def _with_files(diagnostic: Diagnostic, sources: dict[str, str]) -> dict[str, str]:
    """Texts to quote from; a file that failed to load is read again."""
    spans = [diagnostic.span, *(n.span for n in diagnostic.notes)]
    missing = [s.path for s in spans if s and s.path not in sources and Path(s.path).is_file()]
    return {**sources, **{p: Path(p).read_text(encoding="utf-8", errors="replace") for p in missing}}


def _counted(diagnostics: Sequence[Diagnostic]) -> str:
    errors = sum(d.is_error for d in diagnostics)
    warnings = len(diagnostics) - errors
    parts = [f"{n} {w}{'s' if n > 1 else ''}" for n, w in ((errors, "error"), (warnings, "warning")) if n]
    return ", ".join(parts)
