#!/bin/sh
# Makes tiers.csv, tiers.json and tiers.png in this directory again, in half a minute: nothing is
# measured, and the same version of the program makes the same numbers on every machine.
#
#     docs/reports/tiers.sh
#
# $PYTHON is what runs the program; the picture needs matplotlib.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}

study() {
    "$python" "$root/kv-cache.py" lab --seeds 10 --block-kib 4 --tier-scales 1,0.5,0.25 \
        --tiers gpu=128KB:20us:80MB/s,overflow=256KB:60us:40MB/s,host=1MB:400us:8MB/s,nvme=8MB:2500us:2MB/s \
        --prefetch none,successor "$@" > /dev/null
}

cd "$here"
study --pattern all --residency fp16,int4 \
    --policies lru,windowed,heavy-hitter,heavy-hitter:use_weight=1.5:regret_weight=6,cost-aware,regret-aware \
    --dequant int4=29 \
    --dequant-source "kv-hierarchy-lab: 0.03 ms a page of 1 KiB" --csv tiers.csv
study --pattern rag_burst,prefetch_friendly --policies lru,heavy-hitter,regret-aware \
    -o tiers.json --plot tiers.png
