"""How messages call the values of a plan: by the user's names, and what has none by its expression."""

from ...compiler.plan import Instruction, Operand, Plan, original
from ...compiler.plan import Value as Name

PREFIX = {"neg": "-", "not": "not "}
PART = ".part"
DEPTH = 3
"""How deep an expression is written out; what is below is `…`."""


class Names:
    """Names are written out once each: a run tells the others where it is at every instruction."""

    def __init__(self, plan: Plan) -> None:
        self._made: dict[str, Instruction] = {}
        self._told: dict[int, tuple[Instruction, str]] = {}
        for x in plan.walk():
            self._made.setdefault(_plain(x.out), x)

    def __call__(self, operand: Operand, depth: int = DEPTH) -> str:
        """An operand as the user knows it."""
        if isinstance(operand, bool):
            return str(operand).lower()
        if not isinstance(operand, Name):
            return f'"{operand}"' if isinstance(operand, str) else str(operand)
        name = _plain(operand.ref)
        made = self._made.get(name)
        if not name.startswith("%"):
            return name
        return "…" if made is None or depth == 0 else self._expression(made, depth - 1)

    def instruction(self, i: Instruction) -> str:
        """What an instruction does, as a message about a wait calls it."""
        if id(i) not in self._told:
            self._told[id(i)] = i, self._doing(i)
        return self._told[id(i)][1]

    def _doing(self, i: Instruction) -> str:
        match i.op:
            case "move":
                return f"the move of {', '.join(f'`{self(v)}`' for v in i.args.values())} to {i.mesh}"
            case "weights":
                return f"the weights of `{i.attrs['model']}` to {i.mesh}"
            case "update":
                return f"the update of `{i.attrs['model']}`"
            case "metric" | "record":
                return f"the metric `{i.attrs['metric']}`"
            case "when" | "every" | "collect" | "announce" | "next_state" | "next_model" | "snapshot":
                return f"a `{i.op}`"
        return f"`{self(Name(i.out))}`"

    def _expression(self, made: Instruction, depth: int) -> str:
        args = [self(a, depth) for a in made.args.values()]
        match made.op:
            case "field":
                return f"{args[0]}.{made.attrs['field']}"
            case "map":
                return _pointwise(made.attrs["fn"], args)
            case "reduce":
                return f"{made.attrs['fn']}({self(made.args['x'], depth)})"
            case "call":
                return f"{made.attrs['operator']}({', '.join(args)})"
            case "collected" | "all_reduce" | "share" | "own" | "spread":
                return args[0]
            case "state" | "step":
                return str(made.attrs.get("state", "step"))
        model = made.attrs.get("model")
        return f"{model}.{made.op}({args[0]})" if model and args else f"{made.op}({', '.join(args)})"


def _plain(name: str) -> str:
    """A copy on a mesh, or a partial result, is called as the value is."""
    return original(name).removesuffix(PART)


def _pointwise(fn: str, args: list[str]) -> str:
    if fn in PREFIX:
        return PREFIX[fn] + args[0]
    if len(args) == 2 and (not fn.isalpha() or fn in ("and", "or")) and "_" not in fn:
        return f"{args[0]} {fn} {args[1]}"
    return f"{fn}({', '.join(args)})"
