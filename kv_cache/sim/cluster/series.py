"""The state of a cluster over time, in bounded memory: beyond N points, two become one."""

from array import array
from typing import TYPE_CHECKING

from kv_cache.config.scenario import Scenario
from kv_cache.core.units import NS_PER_MS, NS_PER_S
from kv_cache.sim.cluster.flight import DECODE, DECODE_QUEUE, PREFILL, QUEUED, TRANSFER
from kv_cache.sim.cluster.outcome import ClusterSeries

if TYPE_CHECKING:
    from kv_cache.sim.cluster.cluster import Cluster

SAMPLES = 3  # the rank of a sample: after all else of its instant

SUMMED = ("output_tokens", "prefill_tokens", "finished", "rejected", "aborted")
"""Columns that count what happened since the point before; tokens of a run of steps count when the
run ends."""


OF_AN_INSTANCE = ("waiting", "decoding", "hbm_blocks")
"""Columns of each instance with `watch.series_per_instance`: `waiting.0` and so on."""


class Sampler:
    """Samples while anything goes on."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        watch = cluster.scenario.watch
        self._points = watch.series_points
        interval_ns = round(watch.series_interval_ms * NS_PER_MS) or _guess_ns(cluster.scenario)
        self.series = ClusterSeries(interval_ns=interval_ns)
        self._totals = dict.fromkeys(SUMMED, 0)
        self._each = range(cluster.topology.instances if watch.series_per_instance else 0)
        for number in self._each:
            for name in OF_AN_INSTANCE:
                self.series.columns[f"{name}.{number}"] = array("q")

    def begin(self) -> None:
        self._cluster.loop.at(0, SAMPLES, self._sample)

    def _sample(self, _: None) -> None:
        self._take()
        columns = self.series.columns
        if len(columns["at_ns"]) >= self._points:
            self._join()
        loop = self._cluster.loop
        if loop.pending:
            interval = self.series.interval_ns
            loop.at(loop.now_ns - loop.now_ns % interval + interval, SAMPLES, self._sample)

    def _take(self) -> None:
        cluster, columns = self._cluster, self.series.columns
        phases = cluster.counts.phases
        columns["at_ns"].append(cluster.loop.now_ns)
        columns["waiting"].append(phases[QUEUED].count)
        columns["central_queue"].append(len(cluster.central))
        columns["prefilling"].append(phases[PREFILL].count)
        columns["decode_queue"].append(phases[DECODE_QUEUE].count)
        columns["decoding"].append(phases[DECODE].count)
        columns["transferring"].append(phases[TRANSFER].count)
        columns["hbm_blocks"].append(cluster.storage.watches["hbm"].total)
        requests = cluster.counts.requests
        now = (
            cluster.counts.output_tokens,
            cluster.counts.prefill_tokens,
            requests.finished,
            requests.rejected.total(),
            requests.aborted.total(),
        )
        for name, total in zip(SUMMED, now, strict=True):
            columns[name].append(total - self._totals[name])
            self._totals[name] = total
        for number in self._each:
            there = cluster.instances.get(number)
            levels = (0, 0, 0)
            if there is not None:
                levels = (len(there.waiting), there.decoding + len(there.joining), there.pool.used)
            for name, level in zip(OF_AN_INSTANCE, levels, strict=True):
                columns[f"{name}.{number}"].append(level)

    def _join(self) -> None:
        """Double the interval: keep the points on its grid, with what was counted before them."""
        series = self.series
        series.interval_ns *= 2
        interval, columns = series.interval_ns, series.columns
        kept = [i for i, at_ns in enumerate(columns["at_ns"]) if at_ns % interval == 0]
        last = len(columns["at_ns"]) - 1
        for name, values in columns.items():
            if name in SUMMED:
                edges = zip([-1, *kept], kept, strict=False)
                joined = array("q", (sum(values[low + 1 : high + 1]) for low, high in edges))
                if kept[-1] < last:
                    self._totals[name] -= sum(values[kept[-1] + 1 :])
            else:
                joined = array("q", (values[i] for i in kept))
            values[:] = joined


def _guess_ns(scenario: Scenario) -> int:
    """Divide the time that the arrivals take, if it is known, into the points of a series."""
    workload, points = scenario.workload, scenario.watch.series_points
    if not workload.rate_per_s or workload.concurrency:
        return NS_PER_MS
    return max(NS_PER_MS, round(workload.drawn_requests / workload.rate_per_s / points * NS_PER_S))
