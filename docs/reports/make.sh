#!/bin/sh
# Makes the report in this directory again, on this machine: a run of about 90 s, its page, and a
# screenshot. Nothing else should use the machine or its disk meanwhile.
#
#     docs/reports/make.sh [CACHE_DIR]
#
# CACHE_DIR is on the device that is measured, and must be empty or not there. $PYTHON is what runs
# the program, $CHROMIUM what takes the picture; without a Chromium the old picture stays.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=$(realpath -m "${1:-$root/kv-report-cache}")
python=${PYTHON:-$root/.venv/bin/python}
chromium=${CHROMIUM:-chromium}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

cd "$work"
"$python" "$root/kv-cache.py" run --config quick --cache-dir "$cache" --no-progress \
    --fio-export job.fio --output result.json

# The same document without the line breaks, which are four fifths of the file.
"$python" -c 'import sys, orjson
with open(sys.argv[1], "rb") as whole, open(sys.argv[2], "wb") as short:
    short.write(orjson.dumps(orjson.loads(whole.read())))' result.json "$here/result.json"
cp job.fio "$here/job.fio"
"$python" "$root/kv-cache.py" verify "$here/result.json"
cd "$here"
"$python" "$root/kv-cache.py" report result.json -o report.html
if command -v "$chromium" > /dev/null; then
    "$chromium" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage \
        --hide-scrollbars --force-color-profile=srgb --user-data-dir="$work/profile" \
        --virtual-time-budget=3000 --window-size=1280,1440 --screenshot="$here/report.png" \
        "file://$here/report.html" > "$work/chromium.log" 2>&1 ||
        { cat "$work/chromium.log" >&2; exit 1; }
    echo "shot  report.png"
fi
