"""What admission policies go by, wherever one is chosen: a run's tiers, a cluster's places."""

from dataclasses import dataclass

from kv_cache.config.schema import opt
from kv_cache.core.units import MIB
from kv_cache.policy.admission import ADMISSION, AdmissionRules

TAKES = (
    "What a tier takes: everything; no object above admission_max_mib (size); what is offered for "
    "the second time (second-hit); what was used more often than what leaves for it (frequency); "
    "the first admission_max_depth blocks of a sequence (depth)"
)


@dataclass(frozen=True, kw_only=True)  # without slots, so that it may be one of two bases
class AdmissionConfig:
    """Part of a section that has an admission policy."""

    admission: str = opt("always", TAKES, choices=ADMISSION)
    admission_max_mib: float = opt(
        16.0, "With size: the largest object that is admitted", unit="MiB", above=0, high=2**30,
        read_when=".admission=size",
    )  # fmt: skip
    admission_max_depth: int = opt(
        64, "With depth: blocks from the beginning of a sequence that are admitted", unit="blocks",
        low=1, high=10**9, read_when=".admission=depth",
    )  # fmt: skip
    admission_memory: int = opt(
        65_536, "With second-hit and frequency: contents that a tier remembers", low=16, high=2**26,
        read_when=".admission=second-hit|frequency",
    )  # fmt: skip
    admission_floor: int = opt(
        1, "With frequency: uses that are enough where nothing has to leave", low=1, high=15,
        read_when=".admission=frequency",
    )  # fmt: skip

    def admission_rules(self) -> AdmissionRules:
        return AdmissionRules(
            max_bytes=int(self.admission_max_mib * MIB),
            max_depth=self.admission_max_depth,
            memory=self.admission_memory,
            floor=self.admission_floor,
        )
