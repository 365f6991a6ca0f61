"""The passes, in order. Each is a function of one file; `--emit STAGE` prints what it left.

elaborate   AST → graph: names, parameters, definitions, constants
infer       dtypes and axes
check       everything else that must hold before anything starts
simplify    equal calls once, and what an update doesn't change outside of it
record      what every run logs by itself
prune       what nothing needs is dropped
schedule    an order that reads every version before it is replaced, and what runs ahead
emit        graph → Plan for one process
lay out     Plan → Plan for many ranks: where values lie, and the moves between
"""
