"""`flowc check` and `flowc compile`, and how diagnostics are reported."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..dsl import ast
from ..dsl.diagnostics import Diagnostic, FlowError, in_order, render, to_json
from ..dsl.printer import format_module
from .cli import STAGES
from .compilation import Checked, Source, check_flow, choose_flow, compile_flow, load_source
from .passes.check.place import Target
from .plan import Plan
from .targets import BadSetting, parse_settings, split_target

RANK = "rank:"
MISSING = {"W0401": "E0404", "W0402": "E0405"}
"""Warnings of files that aren't on this machine, and the errors they are for a run, which can't do without them."""

# ---------------------------------------------------------------- check and compile


def check_command(args: argparse.Namespace) -> int:
    """Check the named flow, or every flow of the file."""
    path, name = split_target(args.flow)
    names = _flows(path, name)
    if args.set and len(names) > 1:
        raise BadSetting(f"`--set` needs one flow: write `{path}:{names[0]}`, for example")
    diagnostics: list[Diagnostic] = []
    sources: dict[str, str] = {}
    for each in names:
        source, found = attempt(path, each, args.set)
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


def _flows(path: Path, name: str | None) -> list[str | None]:
    """The flows to check: the named one, else all of a `.flow` file."""
    if name or path.suffix == ".py":
        return [name]
    return [*load_source(path).module.flows()] or [None]


def compile_command(args: argparse.Namespace) -> int:
    path, name = split_target(args.flow)
    _check_options(args)
    source: Source | None = None
    try:
        source = load_source(path, name)
        checked = checked_for(source, name, args)
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


def _check_options(args: argparse.Namespace) -> None:
    """Raise BadSetting for options that say nothing, or nothing together."""
    if args.emit and args.emit not in STAGES and not args.emit.startswith(RANK):
        raise BadSetting(f"`--emit {args.emit}`: it is one of {', '.join(STAGES)} or {RANK}N")
    if args.emit and args.emit.startswith(RANK) and args.target != "multi":
        raise BadSetting(f"`--emit {args.emit}` is of a plan for many ranks: give `--target multi` too")
    check_ranks(args)
    if args.cluster is not None and args.target != "multi":
        raise BadSetting("`--cluster` places a plan for many ranks: give `--target multi` too")
    if args.emit == "decision" and args.cluster is None:
        raise BadSetting("`--emit decision` is of a placement: give `--cluster 16xH100` too")


def check_ranks(args: argparse.Namespace) -> None:
    """Raise BadSetting for a number of ranks that can't be, or of a plan for one process."""
    if args.ranks is not None and args.cluster is not None:
        raise BadSetting("`--ranks` and `--cluster` both say how many ranks there are: leave one out")
    if args.ranks is not None and args.target != "multi":
        raise BadSetting("`--ranks` is for plans of many ranks: give `--target multi` too")
    if args.ranks is not None and args.ranks < 1:
        raise BadSetting(f"`--ranks` is at least 1, not {args.ranks}")


def _checked(source: Source, name: str | None, settings: Sequence[str], target: Target | None = None) -> Checked:
    return check_flow(source, choose_flow(source, name), parse_settings(settings), target)


def checked_for(source: Source, name: str | None, args: argparse.Namespace) -> Checked:
    """The flow checked for the target of a command line, and with `--cluster` placed there. Raises FlowError."""
    if args.cluster is None and not any((args.prompt_tokens, args.response_tokens, args.model, args.runnable)):
        return _checked(source, name, args.set, Target(args.target, args.ranks))
    from .planning import placed, wishes_of  # only now: a check needs none of the search

    if getattr(args, "require_sources", False):  # for a run, which needs them
        checked = _checked(source, name, args.set, Target(planned=True))
    else:
        checked = checked_to_plan(source, name, args.set)
    return placed(checked, wishes_of(args, checked))  # which may name a cluster of the file


def checked_to_plan(source: Source, name: str | None, settings: Sequence[str]) -> Checked:
    """The flow checked for a placement, which needs neither data nor weights: no warning of missing ones."""
    try:
        checked = _checked(source, name, settings, Target(planned=True))
    except FlowError as error:
        raise FlowError([d for d in error.diagnostics if d.code not in MISSING]) from None
    return replace(checked, warnings=tuple(d for d in checked.warnings if d.code not in MISSING))


def _require_sources(checked: Checked) -> None:
    """For a run, a missing data file or model directory is an error. A hub id may still be fetched."""
    places = checked.source.places
    missing = [d for d in checked.warnings if d.code in MISSING and not places.is_hub_id(_named(d))]
    if missing:
        raise FlowError([replace(d, code=MISSING[d.code]) for d in missing])


def _named(warning: Diagnostic) -> str:
    """The path a warning of a missing file names first."""
    match = re.search(r"`([^`]+)`", warning.message)
    return match[1] if match else ""


def _emitted(checked: Checked, args: argparse.Namespace) -> str:
    match args.emit:
        case "ast":
            return _ast(checked, args.format)
        case "graph":
            from .printing import graph_json, graph_text

            graph = checked.scheduled.graph
            return json.dumps(graph_json(graph), indent=2) + "\n" if args.format == "json" else graph_text(graph)
        case "decision":
            return json.dumps(checked.extras["decision"], indent=2) + "\n"
    from .plan import encode
    from .plan.text import plan_text

    plan = compile_flow(checked)
    if args.emit and args.emit.startswith(RANK):
        return _rank(plan, args.emit.removeprefix(RANK), args.format)
    if args.emit == "plan" and args.format == "text" and not args.output:
        return plan_text(plan)
    return encode(plan).decode()


def _rank(plan: Plan, number: str, format: str) -> str:
    """What one rank of a plan does."""
    from .plan import encode, project
    from .plan.text import rank_text

    if not number.isdecimal() or int(number) >= plan.ranks:
        ranks = f"ranks 0 to {plan.ranks - 1}" if plan.ranks > 1 else "rank 0 alone"
        raise BadSetting(f"`--emit {RANK}{number}`: this plan is for {ranks}")
    projected = project(plan, int(number))
    return encode(projected).decode() if format == "json" else rank_text(projected, int(number))


def _ast(checked: Checked, format: str) -> str:
    if format == "json":
        from dataclasses import asdict

        return json.dumps(asdict(checked.flow), indent=2, default=str) + "\n"
    return format_module(ast.Module((checked.flow,)))


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
