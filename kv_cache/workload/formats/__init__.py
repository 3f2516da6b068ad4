"""Readers of trace files: one module a format, all into the same row.

A new format is a module and a line in the table; its laws are in `base`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from kv_cache.workload.formats.azure import Azure
from kv_cache.workload.formats.base import TraceFormat
from kv_cache.workload.formats.burstgpt import BurstGpt
from kv_cache.workload.formats.mooncake import Mooncake

TRACE_FORMATS: Mapping[str, TraceFormat] = MappingProxyType(
    {
        "azure": Azure(),
        "burstgpt": BurstGpt(),
        "mooncake": Mooncake(),
    }
)
