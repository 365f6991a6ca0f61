from .diagnostics import Diagnostic
def explain(tokens, token, accepts):
    return Diagnostic("E0001", f"unexpected {token.value!r} expected {sorted(accepts)}", tokens[-1].span if token.type=="$END" else token.span)
