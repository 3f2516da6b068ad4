"""Writes the sample traces, always the same: `python datasets/generate.py [directory]`."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(directory: Path = HERE) -> None:
    # The checkout need not be installed to make its data.
    sys.path.insert(0, str(HERE.parent))
    from kv_cache.workload.samples import SAMPLES, sample_bytes

    for name in SAMPLES:
        path = directory / name
        path.write_bytes(sample_bytes(name))
        sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:2]))
