"""The first page of help, printed before anything else is imported."""

from collections.abc import Sequence

from kv_cache import __version__

COMMANDS = """commands, each with a --help of its own:
  run           measure (also without a command's name)
  capacity      how many users, or requests/s, meet the SLOs
  precondition  bring a drive into the state in which it will be used
  probe         measure a device alone        twin       fio does the I/O of a run
  calibrate     a machine's profile           predict    a run, by such a profile
  verify        is a result intact, and do its numbers follow from its counts?
  compare       do results differ?            report     pages, tables, logs of results
  plot          pictures of results           sweep      a run for each cell of a grid
  lab           policies, without time        sim        clusters, in virtual time
  compile       the engine of lab and sim as machine code
  mlperf        the official sequence: run, check, summarize
  trace         stats, plot, fit, convert     datasets   public traces
  config        the configuration in effect           completion   for a shell
  serve         all of this on a page, and an API"""

ABOUT_RUN = "Measure how fast storage is for the KV caches of LLM serving."

USAGE = "kv-cache.py [--config FILE] [--model NAME] [--num-users N] [option ...]"

FIRST_PAGE = f"""usage: {USAGE}

{ABOUT_RUN}

  kv-cache.py                                           a first run: 90 s, 8 GiB of temporary files
  kv-cache.py --config quick --cache-dir /mnt/nvme/kv   the same on the device that you mean
  kv-cache.py probe --cache-dir /mnt/nvme/kv            the device alone, by object size and depth

the ten options that matter most:
  --cache-dir DIR             directory on the device to be measured, or s3://bucket/prefix
  --config FILE               YAML, or a shipped configuration such as quick; flags override it
  --model NAME                whose KV cache is moved: a built-in name or a config.json
  --num-users N               synthetic users that ask at the same time
  --trace FILE                replay these requests instead of synthetic users
  --semantics serving         keep prefixes as an engine does; mlperf = as the reference
  --storage-capacity-gb X     what the cache may keep on storage, in GiB; see also --gpu-mem-gb
                              and --cpu-mem-gb
  --duration S                seconds that are measured, after --warmup S
  --trials N                  runs with other seeds, and the interval between them
  --output FILE               where the result goes; --results-dir DIR keeps records and a page too

  --help-all                  all options, each with its unit, bounds and default
  --version                   the version

{COMMANDS}

Sizes named gb are GiB (2^30 bytes), as in the reference; 10GB and 5m are read as they say. Flags
may be shortened as long as they stay unambiguous. What a number means: docs/metrics.md; exit codes:
docs/reference/exit-codes.md; --set, environment variables: docs/reference/options-grammar.md.
"""

VERSION = f"kv-cache {__version__}\n"


def first_words(argv: Sequence[str]) -> str | None:
    """What a command line asks for that needs nothing else to be imported."""
    match [word for word in argv if word != "run"]:
        case ["-h" | "--help"]:
            return FIRST_PAGE
        case ["--version"]:
            return VERSION
    return None
