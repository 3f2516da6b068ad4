"""What the autoscaler is set to, and what it orders."""

from collections.abc import Mapping
from enum import StrEnum
from math import inf
from typing import Any

from msgspec import Struct

from kv_cache.core.units import ns_to_s


class ScaleMode(StrEnum):
    QOS = "qos"
    CAPACITY = "capacity"


class Action(StrEnum):
    UP = "scale_up"
    DOWN = "scale_down"
    STOP = "stop"


class AutoscaleRules(Struct, frozen=True, kw_only=True):
    """`windows_per_sample` windows are a sample. `consecutive_samples_required` samples in a row
    must show the same before a step, and `cooldown_samples` after a step are not used. A pool of
    `longest_samples` is judged by what it shows, sure or not."""

    min_users: int = 1
    max_users: int = 10_000
    scale_up_factor: float = 1.2
    scale_down_factor: float = 0.8
    windows_per_sample: int = 2
    consecutive_samples_required: int = 2
    cooldown_samples: int = 3
    longest_samples: int = 30
    target_saturation: float = 0.8

    @property
    def longest_windows(self) -> int:
        return self.longest_samples * self.windows_per_sample

    def is_short(self, windows: int) -> bool:
        """Less than a third of the longest pool: only what is plain can be seen in it."""
        return 3 * windows < self.longest_windows

    def is_long(self, windows: int) -> bool:
        return windows >= self.longest_windows

    @property
    def least_windows(self) -> int:
        return self.consecutive_samples_required * self.windows_per_sample

    @property
    def cooldown_windows(self) -> int:
        return self.cooldown_samples * self.windows_per_sample

    def more(self, users: int, stride: float = inf, *, doubles: bool = False) -> int:
        """Return one step up, of at most this share of them and of at least one user; `doubles`
        where nothing is near a limit."""
        step = min(stride, max(self.scale_up_factor - 1, 1.0 if doubles else 0))
        return min(self.max_users, max(users + 1, int(users * (1 + step))))

    def fewer(self, users: int, stride: float = inf) -> int:
        step = min(stride, 1 - self.scale_down_factor)
        return max(self.min_users, min(users - 1, int(users * (1 - step))))


class Order(Struct, frozen=True, kw_only=True):
    """What a mode wants: other users, or the end of the run."""

    users: int
    reason: str
    evidence: Mapping[str, Any]
    stops: bool = False


class Decision(Struct, frozen=True, kw_only=True):
    """An order to the driver, and the evidence that it was taken on: plain values, as in results.
    On `stop`, `users` is where the peak was."""

    at_ns: int
    mode: ScaleMode
    action: Action
    users_before: int
    users: int
    reason: str
    evidence: Mapping[str, Any]


def decision_row(decision: Decision) -> dict[str, Any]:
    """Return one decision as results have it; `at_s` is seconds since the run's origin."""
    return {
        "at_s": ns_to_s(decision.at_ns),
        "mode": decision.mode.value,
        "action": decision.action.value,
        "users_before": decision.users_before,
        "users": decision.users,
        "reason": decision.reason,
        "evidence": dict(decision.evidence),
    }
