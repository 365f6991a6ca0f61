"""The simulator: a run of a decision, event by event, with drawn lengths and failures."""

from .durations import Durations, sampled
from .replicas import Replicas
from .result import Options, Result
from .simulation import Simulation
from .trace import trace_events, trace_json

__all__ = ["Durations", "Options", "Replicas", "Result", "Simulation", "sampled", "trace_events", "trace_json"]
