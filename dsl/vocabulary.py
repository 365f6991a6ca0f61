"""The closed vocabulary of Flow, as data: what is built in, and which options each construct takes.

Both front ends, the compiler's checks, the formatter and editors read these tables; nothing else decides what is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# fmt: off
KEYWORDS = frozenset({
    "flow", "def", "return", "import", "from", "as", "model", "state", "next", "update", "minimize", "metric",
    "when", "every", "collect", "keep", "where", "place", "on", "cluster", "with", "and", "or", "not", "true",
    "false",
})
# fmt: on
"""Reserved words. After a dot and as option names they are free (`where=c`, `x.next`)."""

AXES = ("prompt", "sample", "token")
"""The kinds of axis, outermost first. A row that `read` gives is a `prompt`."""

UNITS = ("prompts", "samples", "tokens", "steps")
"""The units a size may carry."""

RESERVED = KEYWORDS | frozenset(AXES) | {"step"}
"""Names that a flow may not assign (`keep` and `where` are also functions)."""

REDUCTIONS: Mapping[str, str] = {
    "mean": "the mean; of nothing 0, counted in a metric",
    "sum": "the sum; of nothing 0",
    "std": "the standard deviation, divided by n-1; 0 for one element or all-equal ones",
    "var": "the variance, divided by n-1; 0 for one element or all-equal ones",
    "max": "the largest; of nothing an error",
    "min": "the smallest; of nothing an error",
    "count": "how many elements",
    "quantile": "the q-quantile, linearly interpolated",
}

POINTWISE: Mapping[str, tuple[str, ...]] = {
    "maximum": ("a", "b"),
    "minimum": ("a", "b"),
    "where": ("condition", "a", "b"),
    "clamp": ("x", "lo", "hi"),
    "abs": ("x",),
    "exp": ("x",),
    "ln": ("x",),
    "sqrt": ("x",),
    "sigmoid": ("x",),
    "log_sigmoid": ("x",),
    "stop_gradient": ("x",),
    "comb": ("n", "k"),
}
"""Functions applied element by element, with their parameters."""

STRUCTURAL: Mapping[str, tuple[str, ...]] = {
    "expand": ("x", "to"),
    "rank": ("x", "by"),
    "keep": ("rollout", "where"),
    "read": ("data",),
}
"""Functions that know axes, with their parameters."""

STATE_FUNCTIONS: Mapping[str, tuple[str, ...]] = {"ema": ("target", "source", "decay")}
"""What may stand at the right of `next MODEL =`, besides a model."""

MODEL_CONSTRUCTORS = ("causal_lm", "value_model", "reward_model")
"""Constructors of trainable roles; `frozen(x)` takes one of these or a model."""


@dataclass(frozen=True)
class Option:
    """One named option.

    kind: `int`, `float`, `bool`, `str`, `word` (a bare name out of `choices`), `size` (a number with one of `units`),
        `value` (any expression).
    default: what holds when it isn't given; None where it has none.
    """

    kind: Literal["int", "float", "bool", "str", "word", "size", "value"]
    default: object = None
    units: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    doc: str = ""


Options = Mapping[str, Option]

CONSTRUCTOR_OPTIONS: Options = {
    "dtype": Option(
        "str", None, choices=("float64", "float32", "bfloat16"), doc="weights' dtype; else flowrun's --dtype"
    ),
    "dropout": Option("float", 0.0, doc="dropout probability while updating"),
}

GENERATE_OPTIONS: Options = {
    "n": Option("int", None, doc="samples per row; opens the `sample` axis"),
    "max_new_tokens": Option("value", 256, doc="number, or a value per prompt"),
    "min_new_tokens": Option("int", 0, doc="end-of-sequence is not sampled before this many tokens"),
    "temperature": Option("value", 1.0, doc="0 is greedy"),
    "top_k": Option("int", 0, doc="0 keeps the whole vocabulary"),
    "top_p": Option("float", 1.0, doc="1 keeps the whole distribution"),
    "max_staleness": Option("int", 0, doc="sample with the weights of this many steps ago"),
    "partial": Option("bool", False, doc="let a rollout span several weight versions"),
    "chat": Option("bool", False, doc="wrap a text prompt as one user message of the chat template"),
    "env": Option("value", None, doc="an environment, for several turns"),
    "max_turns": Option("int", None, doc="turns of the environment"),
}

TOKENISED_OPTIONS: Options = {
    "chat": Option("bool", False, doc="wrap a text prompt as one user message of the chat template"),
}
"""Of `logprobs`, `entropy`, `values` and `score` when they take columns (prompt, response)."""

METHODS: Mapping[str, tuple[str, ...]] = {
    "causal_lm": ("generate", "logprobs", "entropy"),
    "value_model": ("values",),
    "reward_model": ("score",),
}
"""The phases each kind of model has."""

READ_OPTIONS: Options = {
    "batch": Option("size", None, units=("prompts",), doc="rows a step takes"),
    "all": Option("bool", False, doc="the whole file"),
    "stream": Option("str", "", doc="another name gives another order of the same file"),
    "epochs": Option("int", None, doc="the run ends after this many passes"),
    "shuffle": Option("bool", True, doc="reshuffle each epoch, by the seed"),
    "split": Option("str", "train", doc="of a Hugging Face dataset"),
    "name": Option("str", None, doc="configuration of a Hugging Face dataset"),
}

UPDATE_OPTIONS: Options = {
    "minibatch": Option("size", None, units=("prompts",), doc="root rows per optimizer step; else the whole batch"),
    "minibatches": Option("int", None, doc="number of minibatches, where a loss has several roots"),
    "epochs": Option("int", 1, doc="passes over the step's batch"),
}

COLLECT_OPTIONS: Options = {
    "rounds": Option("int", 8, doc="rounds at most"),
    "short": Option("word", "error", choices=("error", "skip"), doc="what to do when the rounds gave too few"),
}

OPTIMIZERS: Mapping[str, Options] = {
    "adamw": {
        "lr": Option("value", None, doc="peak learning rate"),
        "beta1": Option("float", 0.9),
        "beta2": Option("float", 0.999),
        "eps": Option("float", 1e-8),
        "weight_decay": Option("float", 0.0),
        "clip_norm": Option("float", 1.0, doc="largest global gradient norm; 0 doesn't clip"),
        "schedule": Option("str", "constant", choices=("constant", "linear", "cosine")),
        "warmup": Option("int", 0, doc="optimizer steps of linear warm-up"),
        "decay": Option("int", None, doc="optimizer steps until the schedule's end"),
        "floor": Option("float", 0.0, doc="the schedule's end, as a fraction of lr"),
    },
}

ROLLOUT_FIELDS: Mapping[str, tuple[str, str]] = {
    "text": ("text", "sample"),
    "length": ("int", "sample"),
    "truncated": ("bool", "sample"),
    "tokens": ("int", "token"),
    "logprobs": ("float", "token"),
    "position": ("int", "token"),
    "last": ("bool", "token"),
    "reward": ("float", "token"),
    "turn": ("int", "token"),
}
"""Fields of a rollout: dtype and the axis they have (`sample` is the prompt itself where no `n=` was given)."""

DEVICES = (
    "local", "cpu", "a100", "a100_40", "a100_80", "a800", "h100", "h100_96", "h800", "h200", "h20", "b200", "gb200",
    "l40s",
)  # fmt: skip
"""Cluster constructors; `local` is what the machine has."""

CLUSTER_OPTIONS: Options = {
    "nodes": Option("int", 1),
    "devices": Option("int", None, doc="devices per node; else as many as is usual for the device"),
    "memory_gb": Option("float", None, doc="memory of a device, GB"),
    "tflops": Option("float", None, doc="dense bf16 TFLOP/s of a device"),
    "bandwidth_gb_per_s": Option("float", None, doc="bandwidth of a device's memory, GB/s"),
    "link_gb_per_s": Option("float", None, doc="from a device to the others of its node, one direction, GB/s"),
    "nic_gb_per_s": Option("float", None, doc="from a device to other nodes, its share of the node's, GB/s"),
    "host_gb_per_s": Option("float", None, doc="between a device and the host's memory, GB/s"),
    "link_latency_us": Option("float", None, doc="a hop inside a node, µs"),
    "nic_latency_us": Option("float", None, doc="a hop between nodes, µs"),
    "engine_sequences": Option("float", None, doc="sequences that an engine runs at once at most"),
}
"""Of cluster constructors. What isn't given is the device's own; the figures are for planning."""

PLACE_OPTIONS: Options = {
    "tp": Option("int", 1, doc="tensor-parallel degree"),
    "pp": Option("int", 1, doc="pipeline-parallel degree"),
    "dp": Option("int", None, doc="data-parallel degree; else as much as the mesh has devices for"),
    "fsdp": Option("int", 1, doc="fully sharded degree"),
    "engine": Option("word", "transformers", choices=("transformers", "vllm"), doc="generation engine"),
    "micro": Option("size", None, units=("tokens",), doc="token budget of one micro-batch"),
    "checkpointing": Option("bool", False, doc="recompute activations in the backward pass"),
    "compile": Option("bool", False, doc="compile the decoder layers"),
    "offload": Option("bool", False, doc="keep weights in host memory when idle"),
}
