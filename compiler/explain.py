"""`flowc explain`: the page of a diagnostic, or how a flow will run and why."""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..dsl.diagnostics import FlowError
from .batch import count_rows
from .compilation import compile_flow, load_source
from .plan import Instruction, Plan
from .spread import move_lines, names_shown, phase_lines, shown_as, spread_facts

PAGES = Path(__file__).parent / "errors"
"""One Markdown page per diagnostic: what it means, a failing example and a mended one."""


def explain(args: argparse.Namespace) -> int:
    """Print a page, or the explanation of a flow."""
    if re.fullmatch(r"[EW]\d{4}", args.what):
        return _explain_code(args.what, args.format)
    from .commands import check_ranks, checked_for, report
    from .targets import split_target

    path, name = split_target(args.what)
    check_ranks(args)
    source = None
    try:
        source = load_source(path, name)
        plan = compile_flow(checked_for(source, name, args))
    except FlowError as error:
        report(error.diagnostics, source.loader.sources if source else {}, args.format)
        return 1
    facts = flow_facts(plan)
    print(json.dumps(facts, indent=2) if args.format == "json" else "\n".join(_lines(facts)))
    return 0


def _explain_code(code: str, format: str) -> int:
    page = PAGES / f"{code}.md"
    if not page.is_file():
        known = sorted(p.stem for p in PAGES.glob("*.md"))
        if format == "json":
            print(json.dumps({"code": code, "page": None, "known": known}))
        print(f"flowc: no diagnostic {code}; they are {', '.join(known)}", file=sys.stderr)
        return 2
    text = page.read_text(encoding="utf-8")
    print(json.dumps({"code": code, "page": text}) if format == "json" else text)
    return 0


# ---------------------------------------------------------------- flows


def flow_facts(plan: Plan) -> dict[str, Any]:
    """What a step of the plan does: the batch arithmetic, each update's passes and micro-batches, what runs ahead.

    Of a plan for many ranks also where phases run, how many rows a rank gets, and what moves.
    """
    rows, called = count_rows(plan), names_shown(plan)
    return {
        "flow": plan.flow,
        "target": plan.target,
        "batches": list({i.out: _batch(i, rows) for i in _sources(plan)}.values()),
        "updates": [_update(i, rows) for i in plan.walk() if i.op == "update"],
        "ahead": [
            {"steps": a.staleness, "values": list(dict.fromkeys(shown_as(k, called) for k in a.keeps))}
            for a in plan.ahead
        ],
        **(spread_facts(plan, rows) if plan.target == "multi" else {}),
        **({"placement": plan.decision} if plan.decision else {}),
    }


def _sources(plan: Plan) -> list[Instruction]:
    """What is read or drawn, without the copies on other meshes."""
    return [i for i in plan.walk() if i.op in ("read", "generate") and "@" not in i.out]


def _batch(i: Instruction, rows: Mapping[str, int | None]) -> dict[str, Any]:
    if i.op == "read":
        return {"value": i.out, "rows": rows[f"{i.out}.prompt"] if "batch" in i.attrs else "all", "of": i.attrs["path"]}
    new_tokens = i.args["max_new_tokens"]
    shown = new_tokens if isinstance(new_tokens, int) else "per prompt"
    return {"value": i.out, "per row": i.attrs.get("n", 1), "rows": rows.get(i.attrs["rows"]), "new tokens": shown}


def _update(i: Instruction, rows: Mapping[str, int | None]) -> dict[str, Any]:
    loss = i.attrs["loss"]
    batch = rows.get(loss["roots"][0]) if loss["roots"] else None
    size = i.attrs.get("minibatch") or batch
    parts = i.attrs.get("minibatches") or (max(1, batch // size) if batch and size else None)
    return {
        "model": i.attrs["model"],
        "batch": batch,
        "minibatches": parts,
        "epochs": i.attrs["epochs"],
        "optimizer steps": parts * i.attrs["epochs"] if parts else None,
        "micro-batch tokens": i.attrs["micro"],
        "never cuts": ", ".join(loss["uncut"]),
        "passes": 2 if loss["two_passes"] else 1,
        "why": loss["two_passes"] or "the loss is linear in its sums, and their denominators are known beforehand",
    }


# ---------------------------------------------------------------- as text


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"flow {facts['flow']}" + (f" on {_counted(facts['ranks'], 'rank')}" if "ranks" in facts else "")
    for batch in facts["batches"]:
        yield f"  batch   {batch['value']:<10} {_batch_line(batch)}"
    for update in facts["updates"]:
        first, *rest = _update_lines(update)
        yield f"  update  {update['model']:<10} {first}"
        yield from (" " * 21 + line for line in rest)
    for ahead in facts["ahead"]:
        steps = _counted(ahead["steps"], "step")
        yield f"  ahead   {', '.join(ahead['values']):<10} made {steps} before the step that reads it"
    if "ranks" in facts and "placement" not in facts:
        yield from (f"  phase   {line}" for line in phase_lines(facts))
        yield from (f"  moves   {line}" for line in move_lines(facts))
    if "placement" in facts:
        yield from _placement_lines(facts["placement"])


def _placement_lines(decision: Mapping[str, Any]) -> Iterator[str]:
    from msgspec import convert

    from .search.decision import Decision
    from .search.explained import decision_lines

    return decision_lines(convert(decision, Decision))


def _batch_line(batch: Mapping[str, Any]) -> str:
    rows = batch["rows"]
    if "of" in batch:
        return f"{'the whole file' if rows == 'all' else f'{rows} prompts'} of {batch['of']}"
    count = (
        f"{rows // batch['per row']} × {batch['per row']} = {rows} samples"
        if isinstance(rows, int)
        else f"{batch['per row']} per row"
    )
    return f"{count}, up to {batch['new tokens']} new tokens each"


def _update_lines(update: Mapping[str, Any]) -> Iterator[str]:
    parts, epochs = update["minibatches"], update["epochs"]
    times = f" × {epochs} epochs" if epochs > 1 else ""
    if parts:
        steps = _counted(update["optimizer steps"], "optimizer step")
        yield f"{update['batch'] or 'all'} prompts in {_counted(parts, 'minibatch', 'es')}{times} = {steps}"
    else:
        yield f"minibatches of what is there at run time{times}"
    cut = f"never cutting a row of {update['never cuts']}" if update["never cuts"] else "all of a minibatch at once"
    yield f"micro-batches of up to {update['micro-batch tokens']} tokens, {cut}"
    yield f"{'two passes' if update['passes'] == 2 else 'one pass'}: {update['why']}"


def _counted(number: int, word: str, plural: str = "s") -> str:
    return f"{number} {word}{plural if number != 1 else ''}"
