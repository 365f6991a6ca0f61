"""The passes, in order. Each is a function of one file; `--emit STAGE` prints what it left.

elaborate   AST → graph: names, parameters, definitions, constants
infer       dtypes and axes
check       everything else that must hold before anything starts
record      what every run logs by itself
simplify    equal calls once, what an update doesn't change outside of it, unused values dropped
schedule    an order that reads every version before it is replaced, and what runs ahead
emit        graph → Plan
"""
