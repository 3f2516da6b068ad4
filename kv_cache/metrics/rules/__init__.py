"""The rules of the passport: one function each, by what it judges, and their table.

A rule looks at the evidence of a run and says, in one sentence with the numbers and a way out, what
it found. Numbers V1 to V21 are those of a catalogue of faults that published measurements had; from
V22 on they are ours. Evidence, thresholds and consequences: `docs/reference/passport.md`.

Two principles decide between *suspect* and *invalid*. What makes a number better than the device
is, or leaves out a part of the run, is invalid. What makes it worse, or cannot be seen, is suspect.
"""

from collections.abc import Mapping

from kv_cache.metrics.evidence import Rule
from kv_cache.metrics.rules.client import client, harness_lag, schedule
from kv_cache.metrics.rules.completeness import completeness
from kv_cache.metrics.rules.content import amplification, payload, storage_share, verification
from kv_cache.metrics.rules.counters import accounted_device, device_counters, ledger
from kv_cache.metrics.rules.gaps import gaps
from kv_cache.metrics.rules.machine import (
    clocks,
    foreign_io,
    interposed_calls,
    real_io,
    throttled_host,
)
from kv_cache.metrics.rules.object_storage import of_files
from kv_cache.metrics.rules.page_cache import direct_io, page_cache
from kv_cache.metrics.rules.sample import least_sample
from kv_cache.metrics.rules.stack import durability, memory_foot, unseen_foot
from kv_cache.metrics.rules.steady_state import proven_steady

RULES: Mapping[str, tuple[str, Rule]] = {
    "V1": ("page cache", of_files("V1", page_cache)),
    "V2": ("payload", payload),
    "V3": ("direct I/O", of_files("V3", direct_io)),
    "V4": ("interposed calls", of_files("V4", interposed_calls)),
    "V5": ("accounted device", of_files("V5", accounted_device)),
    "V6": ("ledger", ledger),
    "V11": ("amplification", amplification),
    "V12": ("completeness", completeness),
    "V13": ("client", client),
    "V14": ("steady state", proven_steady),
    "V15": ("schedule", schedule),
    "V18": ("storage share", storage_share),
    "V19": ("device counters", of_files("V19", device_counters)),
    "V21": ("clocks", clocks),
    "V22": ("verification", verification),
    "V23": ("foreign I/O", of_files("V23", foreign_io)),
    "V24": ("throttled host", throttled_host),
    "V25": ("harness lag", harness_lag),
    "V26": ("real I/O", real_io),
    "V27": ("memory under the storage", of_files("V27", memory_foot)),
    "V28": ("unseen foot", of_files("V28", unseen_foot)),
    "V29": ("gaps", gaps),
    "V30": ("least sample", least_sample),
    "V31": ("durability", of_files("V31", durability)),
}
"""Every rule by its number. V7 to V10, V16, V17 and V20 are faults of a benchmark's making and
not of a run; how this program avoids them is in `docs/reference/passport.md`."""
