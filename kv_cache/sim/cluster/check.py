"""The laws of a simulated cluster, checked on its state: a broken one ends the run.

Numbers are those of docs/explanation/simulation-laws.md. Nothing here changes anything.
"""

from collections import Counter
from typing import TYPE_CHECKING

from kv_cache.sim.cluster.flight import ENDED

if TYPE_CHECKING:
    from kv_cache.sim.cluster.cluster import Cluster


def check(cluster: "Cluster", checks: Counter[str]) -> None:
    """What holds between any two events."""
    ended = cluster.finished + cluster.rejected.total() + cluster.aborted.total()
    assert cluster.arrived == ended + len(cluster.alive), "a request was lost, or ended twice"
    assert sum(cluster.phases[:ENDED]) == len(cluster.alive), "the phases do not add up"
    checks["requests"] += 1
    for place in cluster.places.values():
        place.check()
    checks["capacity"] += 1
    total = sum(p.used for key, p in cluster.places.items() if key[0] == "hbm")
    assert total == cluster.watches["hbm"].total, "the blocks in HBM do not add up"
    for instance in cluster.instances.values():
        instance.check()
    checks["instances"] += 1


def check_end(cluster: "Cluster", checks: Counter[str]) -> None:
    """What holds when nothing is left to do."""
    assert not cluster.alive, f"{len(cluster.alive)} requests never ended"
    for place in cluster.places.values():
        assert place.private == place.pinned == 0, "memory was left behind"
    assert cluster.network.in_flight == 0, "a transfer never ended"
    assert cluster.concurrency_ns == cluster.spent_ns, "Little's law is broken"
    checks["end"] += 1
