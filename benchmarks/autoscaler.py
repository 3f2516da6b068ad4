"""The picture of docs/explanation/finding-the-limit.md: users that the autoscaler chose in an open
loop, in virtual time, on a device that becomes three times slower and then eight times faster.

    python benchmarks/autoscaler.py [--output docs/images/autoscaler-open-loop.svg]

One server takes 30.7 ms for a request and each user asks every 4 s, give or take a fifth, so that
130 users, then 43, then 347 are served. The line of version 0.7.0 is what this run was there.
"""

import argparse
import re
import sys
from itertools import pairwise
from pathlib import Path

from matplotlib import rcParams
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.simulation.test_autoscaler_open_loop import EVEN, Run, most_users

ROOT = Path(__file__).resolve().parents[1]
CHANGES = ((0, 1.0), (300, 1 / 3), (600, 8 / 3), (900, 8 / 3))
"""From this second on the device is so many times as fast."""
BEFORE = (
    "10 > 12 (16 s) > 14 (32 s) > 16 (46 s) > 19 (60 s) > 22 (72 s) > 26 (84 s) > 31 (96 s) > 37 "
    "(108 s) > 44 (118 s) > 52 (128 s) > 62 (138 s) > 74 (148 s) > 88 (158 s) > 105 (168 s) > 126 "
    "(178 s) > 151 (188 s) > 138 (200 s) > 132 (210 s) > 126 (220 s) > 113 (230 s) > 90 (240 s) > "
    "101 (268 s) > 107 (296 s) > 104 (306 s) > 101 (320 s) > 90 (344 s) > 72 (400 s) > 57 (518 s) "
    "> 45 (623 s) > 36 (640 s) > 40 (668 s) > 42 (696 s) > 43 (724 s) > 47 (812 s) > 56 (840 s) > "
    "67 (868 s) > 80 (896 s) "
)
_STEP = re.compile(r"> (\d+) \((\d+) s\)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default=ROOT / "docs/images/autoscaler-open-loop.svg")
    target = Path(parser.parse_args().output)
    factors = [factor for _, factor in CHANGES[1:-1]]
    run = Run(10, factors=factors, at_s=[at_s for at_s, _ in CHANGES[1:-1]]).drive(CHANGES[-1][0])
    rcParams["svg.hashsalt"] = "autoscaler"
    figure = Figure(figsize=(9, 4.2), layout="tight")
    axes = figure.subplots()
    for (begin_s, factor), (end_s, _) in pairwise(CHANGES):
        limit, name = most_users(EVEN, factor), "" if begin_s else "what the device serves, ±15 %"
        axes.hlines(limit, begin_s, end_s, colors="#b0413e", linestyles="dashed", label=name)
        axes.fill_between(
            (begin_s, end_s), 0.85 * limit, 1.15 * limit, color="#b0413e", alpha=0.12, linewidth=0
        )
    old = [(0, 10), *((int(second), int(users)) for users, second in _STEP.findall(BEFORE))]
    for name, color, steps in (
        ("0.7.0", "#8a8a8a", old),
        ("now", "#1f5fa8", [(w.end_ns / 1e9, w.gauges.users or 0) for w in run.windows]),
    ):
        seconds, users = zip(*steps, strict=True)
        axes.step(seconds, users, where="post", color=color, label=name, linewidth=1.4)
    axes.set(xlabel="s", ylabel="users", xlim=(0, CHANGES[-1][0]), ylim=(0, None))
    axes.legend(loc="upper left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, metadata={"Date": None})
    print(run.path)


if __name__ == "__main__":
    main()
