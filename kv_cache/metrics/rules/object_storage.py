"""What object storage leaves to judge: rules about files and devices have nothing to say of it."""

from collections.abc import Iterator, Mapping

from kv_cache.core.units import human_bytes
from kv_cache.metrics.evidence import Evidence, Rule, Thresholds
from kv_cache.metrics.judging import Look, invalid, nothing, suspect, unknown, well
from kv_cache.metrics.rules.page_cache import above_the_link
from kv_cache.metrics.rules.readings import on_objects, percent

_ON_OBJECTS: Mapping[str, str] = {
    "V1": "object storage: no page cache of this machine lies before it; caches of the server's "
    "are a part of what is measured",
    "V3": "object storage: there are no files that could be read past a page cache",
    "V4": "object storage: bytes go through the sockets of a library, and the calls for files that "
    "could be faked are not used",
    "V5": "object storage: no device of this machine counts the bytes; V6 compares them with the "
    "network, and the server's own counters can stand beside the result",
    "V19": "object storage: there is no device of this machine to count the bytes",
    "V27": "object storage: what lies below the server is not this machine's to see",
    "V28": "object storage: the server is the end that is measured",
    "V31": "object storage: when an object is durable is the server's word",
    "V23": "object storage: what others ask of the server cannot be seen from here",
}
"""Rules about files and devices, and why they have nothing to say."""


def of_files(number: str, rule: Rule) -> Rule:
    """The rule, where storage is files on a device."""

    def judged(e: Evidence, t: Thresholds) -> Iterator[Look]:
        if on_objects(e):
            yield nothing(_ON_OBJECTS[number])
            if number == "V1":
                yield from above_the_link(e, t)
        else:
            yield from rule(e, t)

    return judged


def against_network(
    e: Evidence, t: Thresholds, claimed: float, kind: str, past: str
) -> Iterator[Look]:
    """What the machine's interfaces carried cannot be less than what we say; it may be more, as
    they are everybody's."""
    carried = e.number(f"ledger.{kind}.network_bytes")
    if e.flag("ledger.server_here") is not False:
        yield unknown(
            f"the server of objects is on this machine, where nothing counts what was {past} on "
            "its way; compare with the server's own counters"
        )
    elif carried is None:
        yield unknown(f"what the network carried of the {human_bytes(claimed)} {past} is not known")
    elif carried < claimed * (1 - t.counter_tolerance):
        yield invalid(
            f"the network interfaces carried {human_bytes(carried)}, less than the "
            f"{human_bytes(claimed)} that we say were {past}: something on the way answered "
            "instead of the server, or our count is wrong; look for a caching proxy"
        )
    else:
        yield well(
            f"the network interfaces carried {percent(carried / claimed)} of the "
            f"{human_bytes(claimed)} {past} (headers, and what others moved, included)"
        )


def uploads_sent(e: Evidence, t: Thresholds) -> Iterator[Look]:
    """Parts of an upload count once the client has taken them, which may be long before they are
    sent: those that wait as the window closes are too much, unless as many did as it opened. Calls
    of a library that the kernel does not count say nothing."""
    side = "ledger.write"
    claimed, calls = e.numbers(side, "claimed_bytes", "calls_bytes")
    written, calls_then, queued = e.numbers(
        side, "window_claimed_bytes", "window_calls_bytes", "window_queued_bytes"
    )
    if claimed is None or calls is None or calls < claimed * (1 - t.counter_tolerance):
        return
    if written is None or calls_then is None or queued is None or written < t.enough_bytes:
        return
    sent = calls_then - queued
    if sent < written * (1 - t.counter_tolerance):
        yield suspect(
            f"of {human_bytes(written)} that count as written in the window only "
            f"{human_bytes(sent)} came to the other end of the sockets in it: parts of uploads "
            "count before they are sent; use a --warmup as long as some uploads, or a longer "
            "--duration"
        )
