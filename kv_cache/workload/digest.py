"""The planned schedule in one number, which shows whether two runs send the same requests."""

import hashlib
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from kv_cache.core.request import Request

DIGEST_REQUESTS = 1024
DIGEST_BLOCKS = 32_768
"""Of requests of a thousand blocks each a few dozen tell plans apart as well, and the run waits."""


class ScheduleDigest(NamedTuple):
    """`requests` of the plan went into `sha256`."""

    sha256: str
    requests: int


def schedule_digest(plan: Iterator[Request], max_requests: int = 0) -> ScheduleDigest:
    """Return SHA-256 over the first planned requests: instants, classes, sizes and keys.

    Over all of a run of up to 1024 requests (`max_requests`, 0 = no limit), else the first 1024;
    over fewer where these have 32,768 blocks together.
    """
    digest = hashlib.sha256()
    count = blocks = 0
    for request in islice(plan, min(max_requests or DIGEST_REQUESTS, DIGEST_REQUESTS)):
        head = (
            request.intended_ns,
            request.user,
            request.conversation,
            request.turn,
            request.qos.value,
            request.prompt_tokens,
            request.output_tokens,
            request.shared,
            request.new_from,
            request.tail_tokens,
        )
        digest.update("|".join(map(str, head)).encode())
        for block in request.blocks:
            digest.update(block.key + block.nbytes.to_bytes(8, "little"))
        count, blocks = count + 1, blocks + len(request.blocks)
        if blocks >= DIGEST_BLOCKS:
            break
    return ScheduleDigest(digest.hexdigest(), count)
