"""The schemas of all kinds of documents but runs, whose schemas all begin with `RUN`."""

from kv_cache.result import capacity, lab, preconditioning, sweep, trace, trials
from kv_cache.result.published import RANKS
from kv_cache.result.simulation import document as simulation

RUN = "kv-cache-result/"
"""How the schema of every run's result begins: all of them are readable."""

KINDS = (
    trials.SCHEMA,
    preconditioning.SCHEMA,
    capacity.SCHEMA,
    RANKS,
    lab.SCHEMA,
    simulation.SCHEMA,
    trace.SCHEMA,
    sweep.SCHEMA,
)
