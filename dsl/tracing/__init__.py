"""The Python front end: flows as decorated functions, traced into the same AST that the text front end parses."""

from .definitions import Definition, FlowDefinition, define, flow
from .functions import (
    abs,
    adamw,
    causal_lm,
    clamp,
    comb,
    count,
    ema,
    exp,
    expand,
    frozen,
    keep,
    ln,
    log_sigmoid,
    max,
    maximum,
    mean,
    min,
    minimum,
    quantile,
    rank,
    read,
    reward_model,
    sigmoid,
    sqrt,
    state,
    std,
    step,
    stop_gradient,
    sum,
    value_model,
    var,
    where,
)
from .imports import use
from .loading import flows_of, load_flow
from .placement import (
    a100,
    a100_40,
    a100_80,
    a800,
    b200,
    cluster,
    cpu,
    gb200,
    h20,
    h100,
    h100_96,
    h200,
    h800,
    l40s,
    local,
    nodes,
    place,
    put,
)
from .sizes import Prompts, Samples, Steps, Tokens
from .statements import collect, every, keep_rows, metric, minimize, update, when
from .values import Model, State, Value

__all__ = [
    "Definition", "FlowDefinition", "Model", "Prompts", "Samples", "State", "Steps", "Tokens", "Value", "a100",
    "a100_40", "a100_80", "a800", "abs", "adamw", "b200", "causal_lm", "clamp", "cluster", "collect", "comb", "count",
    "cpu", "define", "ema", "every", "exp", "expand", "flow", "flows_of", "frozen", "gb200", "h100", "h100_96", "h20",
    "h200", "h800", "keep", "keep_rows", "l40s", "ln", "load_flow", "local", "log_sigmoid", "max", "maximum", "mean",
    "metric", "min", "minimize", "minimum", "nodes", "place", "put", "quantile", "rank", "read", "reward_model",
    "sigmoid", "sqrt", "state", "std", "step", "stop_gradient", "sum", "update", "use", "value_model", "var", "when",
    "where",
]  # fmt: skip
