"""`flowc explain`: the page of a diagnostic, or how a flow will run and why."""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..dsl.diagnostics import FlowError, suggest
from .compilation import check_flow, choose_flow, compile_flow, load_source
from .plan import Instruction, Plan

PAGES = Path(__file__).parent / "errors"
"""One Markdown page per diagnostic: what it means, a failing example and a mended one."""


def explain(args: argparse.Namespace) -> int:
    """Print a page, or the explanation of a flow."""
    if re.fullmatch(r"[EW]\d{4}", args.what):
        return _explain_code(args.what, args.format)
    from .commands import report
    from .targets import parse_settings, split_target

    path, name = split_target(args.what)
    source = None
    try:
        source = load_source(path, name)
        plan = compile_flow(check_flow(source, choose_flow(source, name), parse_settings(args.set)))
    except FlowError as error:
        report(error.diagnostics, source.loader.sources if source else {}, args.format)
        return 1
    facts = flow_facts(plan)
    print(json.dumps(facts, indent=2) if args.format == "json" else "\n".join(_lines(facts)))
    return 0


def _explain_code(code: str, format: str) -> int:
    page = PAGES / f"{code}.md"
    if not page.is_file():
        print(f"flowc: no diagnostic {code}; {suggest(code, (p.stem for p in PAGES.glob('*.md')))}", file=sys.stderr)
        return 2
    text = page.read_text(encoding="utf-8")
    print(json.dumps({"code": code, "page": text}) if format == "json" else text)
    return 0


# ---------------------------------------------------------------- flows


def flow_facts(plan: Plan) -> dict[str, object]:
    """What a step of the plan does: the batch arithmetic, each update's passes and micro-batches, what runs ahead."""
    return {
        "flow": plan.flow,
        "batches": [_batch(i) for i in plan.walk() if i.op in ("read", "generate")],
        "updates": [_update(i, plan) for i in plan.walk() if i.op == "update"],
        "ahead": [{"steps": a.staleness, "values": list(a.keeps)} for a in plan.ahead],
    }


def _batch(i: Instruction) -> dict[str, object]:
    if i.op == "read":
        rows = "the whole file" if i.attrs.get("all") else i.attrs["batch"]
        return {"value": i.out, "rows": rows, "of": i.attrs["path"]}
    return {"value": i.out, "rows": f"{i.attrs.get('n', 1)} per row", "new tokens": str(i.args["max_new_tokens"])}


def _update(i: Instruction, plan: Plan) -> dict[str, object]:
    loss = i.attrs["loss"]
    return {
        "model": i.attrs["model"],
        "epochs": i.attrs["epochs"],
        "minibatch": i.attrs.get("minibatch") or i.attrs.get("minibatches") or "the whole batch",
        "micro-batch tokens": i.attrs["micro"],
        "never cuts": loss["unit"] or "the minibatch",
        "passes": 2 if loss["two_passes"] else 1,
        "why": loss["two_passes"] or "the loss is linear in its sums, whose denominators are known beforehand",
    }


def _lines(facts: Mapping[str, object]) -> Iterator[str]:
    yield f"flow {facts['flow']}"
    for title in ("batches", "updates", "ahead"):
        entries = facts[title]
        assert isinstance(entries, list)
        for entry in entries:
            shown = ", ".join(f"{k}: {v}" for k, v in entry.items())
            yield f"  {title.rstrip('s') if title != 'batches' else 'batch'}  {shown}"
