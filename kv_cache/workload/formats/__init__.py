"""Readers of trace files: one module a format, all into the same row.

A new format is a module and a line in the table; its laws are in `base`.
"""

from kv_cache.extensions import Catalogue, an_instance
from kv_cache.workload.formats.agentic import Agentic
from kv_cache.workload.formats.azure import Azure
from kv_cache.workload.formats.base import TraceFormat
from kv_cache.workload.formats.blkparse import Blkparse
from kv_cache.workload.formats.burstgpt import BurstGpt
from kv_cache.workload.formats.canonical import LAYOUTS
from kv_cache.workload.formats.fio_iolog import FioLog
from kv_cache.workload.formats.five_columns import FiveColumns
from kv_cache.workload.formats.iotrace import IoTrace
from kv_cache.workload.formats.lmcache import LmCache
from kv_cache.workload.formats.mooncake import Mooncake, MooncakeCsv, MooncakeList
from kv_cache.workload.formats.msr import Msr
from kv_cache.workload.formats.qwen import Qwen
from kv_cache.workload.formats.request_objects import RequestObjects, RequestObjectsMs
from kv_cache.workload.formats.request_table import RequestTable, RequestTableMs
from kv_cache.workload.formats.sharegpt import ShareGpt
from kv_cache.workload.formats.splitwise import Splitwise

TRACE_FORMATS: Catalogue[TraceFormat] = Catalogue(
    "kv_cache.trace_formats",
    {
        "azure": Azure(),
        "burstgpt": BurstGpt(),
        **{of.name: of for of in (Mooncake(), MooncakeList(), MooncakeCsv())},
        "qwen": Qwen(),
        "splitwise": Splitwise(),
        "five-columns": FiveColumns(),
        **{of.name: of for of in (RequestTable(), RequestTableMs())},
        **{of.name: of for of in (RequestObjects(), RequestObjectsMs())},
        "sharegpt": ShareGpt(),
        "agentic": Agentic(),
        **{layout.name: layout for layout in LAYOUTS},
        "iotrace": IoTrace(),
        "lmcache": LmCache(),
        "msr": Msr(),
        "blkparse": Blkparse(),
        **{log.name: log for log in (FioLog(3), FioLog(2))},
    },
    an_instance,
)
