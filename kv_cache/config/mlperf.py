"""The three workloads of MLPerf Storage v3.0's KV-cache benchmark (section 6 of its rules)."""

from collections.abc import Mapping
from dataclasses import dataclass

EDITION = "MLPerf Storage v3.0 (Rules.md of 1 July 2026)"
"""The rules that are judged and added up by."""

SEED = 42
"""The seed of rank 0 in a CLOSED submission; the others' are that plus their rank."""

TRIALS = 3
"""Scored repeats of each option in a CLOSED submission."""

OPTION_DELAY_S = 90.0
"""Between one option and the next in a CLOSED submission; the rules know none between trials."""


LAUNCHERS_DELAY_S = 20.0
"""What the launcher of v3.0 rests, and refuses to change in CLOSED: rule 6.6.1 has it so, where
6.3.2.1 has 90 s."""

PUBLISHED: Mapping[str, object] = {
    "gpu_backend.memory_fraction": 0.9,
    "validation_limits.max_cpu_memory_gb": 16384.0,
    "validation_limits.max_gpu_memory_gb": 1024.0,
    **{
        f"model_configs.{model}.{name}": value
        for model, sizes in {
            "llama3.1-8b": ("Llama 3.1 8B", 32, 4096, 32),
            "llama3.1-70b-instruct": ("Llama 3.1 70B Instruct", 80, 8192, 64),
        }.items()
        for name, value in zip(
            ("name", "num_layers", "hidden_dim", "num_heads", "kv_heads", "dtype"),
            (*sizes, 8, "float16"),
            strict=True,
        )
    },
}
"""What the reference's own `config.yaml`, which its launcher names in every run, sets otherwise
than the defaults here. None of it has an effect on the official options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MlperfOption:
    """One workload. A client (an MPI rank) has all of it; a system is loaded by more clients."""

    name: str
    model: str
    users: int
    cpu_mem_gib: int
    max_concurrent_allocs: int
    gpu_mem_gib: int = 0
    duration_s: float = 300
    generation_mode: str = "none"

    def overrides(self) -> dict[str, object]:
        """The options of a run that the rules fix, by dotted path."""
        return {
            "run.model": self.model,
            "run.num_users": self.users,
            "run.duration_s": self.duration_s,
            "run.generation_mode": self.generation_mode,
            "tiers.gpu_mem_gib": self.gpu_mem_gib,
            "tiers.cpu_mem_gib": self.cpu_mem_gib,
            "schedule.max_concurrent_allocs": self.max_concurrent_allocs,
        }


MLPERF_OPTIONS: Mapping[int, MlperfOption] = {
    1: MlperfOption(
        name="Max Storage Stress",
        model="llama3.1-8b",
        users=200,
        cpu_mem_gib=0,
        max_concurrent_allocs=16,
    ),
    2: MlperfOption(
        name="Storage Throughput",
        model="llama3.1-8b",
        users=100,
        cpu_mem_gib=4,
        max_concurrent_allocs=16,
    ),
    3: MlperfOption(
        name="Large Model",
        model="llama3.1-70b-instruct",
        users=70,
        cpu_mem_gib=0,
        max_concurrent_allocs=4,
    ),
}
"""By the number that the launcher gives them. (The reference of April 2026 had no limit on
allocations in option 2.)"""
