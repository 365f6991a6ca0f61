"""`flowc graph`: the picture of a flow, of a plan or of a placement decision."""

import argparse
import json
import sys
from pathlib import Path

from ...dsl.diagnostics import FlowError
from ..commands import check_ranks, checked_for, report
from ..compilation import Source, compile_flow, load_source
from ..plan import Plan
from ..targets import BadSetting, split_target
from . import FORMATS, BadPicture, Scene, draw

DEFAULT = ".dot"
"""What goes to standard output."""


def graph_command(args: argparse.Namespace) -> int:
    """Draw what is named, into the file that `-o` names. Returns the exit status."""
    output: Path | None = args.output
    if output and output.suffix.lower() not in FORMATS:
        raise BadSetting(f"`-o {output}`: its ending says what to write: {', '.join(FORMATS)}")
    check_ranks(args)
    try:
        scene = scene_of(args)
    except BadPicture as error:
        raise BadSetting(str(error)) from None
    if scene is None:
        return 1
    text = _drawn(scene, output)
    if output:
        output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


def scene_of(args: argparse.Namespace) -> Scene | None:
    """What a command line names; None if the flow was refused, which has been reported. Raises BadPicture."""
    return _of_json(Path(args.flow)) if args.flow.endswith(".json") else _of_flow(args)


def _drawn(scene: Scene, output: Path | None) -> str:
    try:
        return draw(scene, output.suffix if output else DEFAULT)
    except BadPicture as error:
        raise BadSetting(str(error)) from None


def _of_json(path: Path) -> Scene:
    """The scene of a file: of a placement decision, or of a plan."""
    from .. import plan
    from ..search.decision import decode
    from .decided import decided

    data = path.read_bytes()
    try:
        if _is_plan(data):
            return _of_plan(plan.decode(data))
        return decided(decode(data))
    except ValueError as error:
        raise BadPicture(f"`{path}` can't be drawn: {error}") from None


def _is_plan(data: bytes) -> bool:
    """Whether JSON looks like a plan, rather than like a decision."""
    try:
        found = json.loads(data)
    except ValueError:
        return False
    return isinstance(found, dict) and "program" in found


def _of_flow(args: argparse.Namespace) -> Scene | None:
    """The scene of a flow; None if it was refused, which has been reported."""
    path, name = split_target(args.flow)
    source: Source | None = None
    try:
        source = load_source(path, name)
        checked = checked_for(source, name, args)
        plan = compile_flow(checked)
    except FlowError as error:
        report(error.diagnostics, source.loader.sources if source else {}, args.format)
        return None
    report(checked.warnings, source.loader.sources, args.format, quiet_json=True)
    return _of_plan(plan)


def _of_plan(plan: Plan) -> Scene:
    """The placement that a plan holds, with its times; else what its meshes say."""
    from msgspec import convert

    from ..search.decision import Decision
    from .decided import decided
    from .planned import links, planned

    return decided(convert(plan.decision, Decision), links(plan)) if plan.decision else planned(plan)
