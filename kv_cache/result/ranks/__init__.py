"""One result of several ranks that ran together, made of the ranks' own results.

    part.py      one rank's result: what came of it, and whether it counts
    merged.py    the document: sums, merged histograms, and the ranks' results whole
    rules.py     whether all of it is one measurement: the rules R1 to R8
    checked.py   the merge done again, for `verify`

Percentiles come from merged histograms and are never averaged; what cannot be merged is null, or
is not there. Everything is a function of the ranks' results and of what the crew saw, so that
it can be done again from the document alone.
"""

from kv_cache.result.ranks.checked import recheck_ranks
from kv_cache.result.ranks.merged import merged_document

__all__ = ["merged_document", "recheck_ranks"]
