"""Flows of the tests, compiled stage by stage."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardflow.compiler.compilation import Checked, check_flow, choose_flow, compile_flow, load_source
from shardflow.compiler.graph import Constant, Graph, Node
from shardflow.compiler.passes.check.place import Target
from shardflow.compiler.passes.schedule import Scheduled
from shardflow.compiler.plan import Plan
from shardflow.dsl.diagnostics import Diagnostic, FlowError

PAGES = Path(__file__).parent / "pages"

HEAD = """\
import rewards
from std import k1, k3, whiten, z

flow tune():
    model policy = causal_lm("tiny")
    prompts = read("train.jsonl", batch=8 prompts)
    rollout = policy.generate(prompts, n=4, max_new_tokens=32)
    reward = rewards.exact_match(rollout.text, prompts.answer)
"""

UPDATE = """\
    update policy(adamw(lr=1e-6)):
        minimize -mean(policy.logprobs(rollout) * reward)
"""


def flow(body: str = "", *, update: bool = True) -> str:
    """A flow with a policy, prompts, a rollout and a reward, with `body` and (or in it) an update."""
    return HEAD + textwrap.indent(textwrap.dedent(body).strip("\n") + "\n", "    ") + (UPDATE if update else "")


@dataclass(frozen=True)
class Workbench:
    """Compiles texts in a folder that holds `train.jsonl`, `rewards.py` and the models `tiny` and `other`."""

    folder: Path

    def write(self, text: str, name: str = "case.flow") -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def checked(
        self, text: str, name: str | None = None, target: str = "single", ranks: int | None = None, **settings: Constant
    ) -> Checked:
        source = load_source(self.write(text))
        return check_flow(source, choose_flow(source, name), settings, Target(target, ranks))

    def graph(self, text: str, name: str | None = None, **settings: Any) -> Graph:
        return self.checked(text, name, **settings).graph

    def scheduled(self, text: str, name: str | None = None) -> Scheduled:
        return self.checked(text, name).scheduled

    def plan(self, text: str, name: str | None = None, **options: Any) -> Plan:
        """options: a target, ranks, and settings of the flow."""
        return compile_flow(self.checked(text, name, **options))

    def found(self, text: str, name: str | None = None, **options: Any) -> Sequence[Diagnostic]:
        """Everything that compiling the text reports, in order."""
        try:
            checked = self.checked(text, name, **options)
            compile_flow(checked)
            return checked.warnings
        except FlowError as error:
            return error.diagnostics

    def codes(self, text: str, name: str | None = None, **options: Any) -> list[str]:
        return [d.code for d in self.found(text, name, **options)]


def underlined(found: Diagnostic, text: str) -> str:
    """What the diagnostic's span covers, of its first line."""
    assert found.span
    line = text.splitlines()[found.span.line - 1]
    end = found.span.end_column if found.span.end_line == found.span.line else len(line) + 1
    return line[found.span.column - 1 : end - 1]


def one(graph: Graph, op: str, name: str | None = None) -> Node:
    """The only node of that operator (and name)."""
    (node,) = (n for n in graph.walk() if n.op == op and name in (None, n.name))
    return node
