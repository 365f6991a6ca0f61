"""The shape of a model by what a flow calls it: a directory, a hub id in the local cache, or a well-known name."""

import re

from ...dsl.diagnostics import nearest
from ..facts import Places, model_facts
from .config import shape_of_config
from .data import ModelShape, ShapeError
from .table import KNOWN, SAME

VARIANTS = re.compile(
    r"-(instruct|chat|it|base|pt|hf|math|coder|preview|zero|thinking|sft|dpo|\d{4})(?=-|$)|(?<=\d)b-v[0-9.]+(?=-|$)"
)
"""Parts of a name that leave the shape as it is."""


def shape_named(path: str, places: Places | None = None) -> ModelShape:
    """The shape of the model at a path, or of a hub id or name such as `Qwen/Qwen2.5-7B-Instruct` or `llama-3.1-8b`.

    A config.json that is here or in the local cache comes first. Raises ShapeError, saying how to give a shape.
    """
    facts = model_facts(path, places) if places else None
    if facts:
        return shape_of_config(facts.path / "config.json", path)
    name = plain_name(path)
    found = known_within(name)
    if found:
        return found
    near = nearest(name, [*KNOWN, *SAME])
    raise ShapeError(
        f"the shape of model `{path}` isn't known" + (f" (`{near}` is)" if near else "") + ": "
        "give a directory that holds its config.json, or download it into the local cache once; "
        "weights aren't needed"
    )


def known_within(name: str) -> ModelShape | None:
    """The well-known model that a name is of, or that it says it was made of: `skywork-reward-v2-qwen3-0.6b`."""
    parts = (k for k in [*KNOWN, *SAME] if re.search(rf"(^|-){re.escape(k)}(-|$)", name))
    best = max(parts, key=len, default=None)
    return KNOWN[SAME.get(best, best)] if best else None


def plain_name(path: str) -> str:
    """The name of a model without owner and what leaves its shape as it is: `meta-llama/Llama-3.1-8B-Instruct`."""
    name = path.rstrip("/").rpartition("/")[2].lower().replace("_", "-")
    name = re.sub(r"^meta-|^codellama-(?=7b|13b|70b)", lambda m: "" if m[0] == "meta-" else "llama-2-", name)
    if name in KNOWN or name in SAME:
        return name
    return re.sub(VARIANTS, lambda m: "b" if m[0].startswith("b") else "", name)
