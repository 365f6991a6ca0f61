"""The search for a placement: problem, candidates, solver, decision."""
