"""The schemas of all kinds of documents that are shown by a view."""

RUN = "kv-cache-result/"
"""How the schema of every run's result begins: all of them are readable."""

TRIALS = "kv-cache-trials/2"
PRECONDITIONING = "kv-cache-precondition/1"
CAPACITY = "kv-cache-capacity/2"
RANKS = "kv-cache-ranks/2"
LAB = "kv-cache-lab/2"
LAB_TIERS = "kv-cache-lab-tiers/1"
SIM = "kv-cache-sim/2"
TRACE = "kv-cache-trace-stats/1"
SWEEP = "kv-cache-sweep/2"

KINDS = (TRIALS, PRECONDITIONING, CAPACITY, RANKS, LAB, LAB_TIERS, SIM, TRACE, SWEEP)
"""Those that `report` and `plot` read, beside runs."""
