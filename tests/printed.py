"""The commands that the pages print, tried one page after the other as a stranger would: in mount
namespaces with the directories that they name, in a working directory that holds only a checkout's
data and what the page itself wrote.

    unshare -m python -m tests.printed SCRATCH REPORT.json

What measures, simulates or goes to other machines is tried as far as its checks, by `--dry-run`;
a scenario with `--preset smoke` is simulated.
What such a command would have written is put in its place, made once by small real commands.
"""

import contextlib
import glob
import io
import itertools
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from kv_cache.cli import COMMANDS
from tests import submission
from tests.traces import ROOT, made_talks, real_trace

PAGES = (
    "README.md", "docs/reports/README.md", "docs/tutorial/first-run.md",
    "docs/reference/simulator-features.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs" / "how-to").glob("*.md")),
)  # fmt: skip
MEASURING = ("run", "capacity", "precondition", "probe", "calibrate", "predict", "twin", "sim",
             "sweep", "mlperf run")  # fmt: skip
"""Commands that are tried as far as their checks (`--dry-run`), but for smallest scenarios."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`((?:python )?kv-cache\.py(?: [^`\n]*)?)`")
_FILE = re.compile(r"# ([\w.-]+\.(?:yaml|py))\b.*\n")
_FIRST = ("python", "kv-cache.py", "make", "mpirun", "pip", "curl", "git", "xz", "export",
          "docs/reports/make.sh")  # fmt: skip
_ROWS = 400
"""Of a trace that a page unpacks: its commands are tried, not their numbers."""
_RESULT = "RESULT"
"""What stands in a page for a result of the reader's own."""
_DEVICE = "/dev/nvme1n1"
"""What stands in a page for an empty device of the reader's own."""


class Step(NamedTuple):
    """A command, or a file that the page prints (`text`)."""

    page: str
    line: int
    command: str
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    page: str
    line: int
    command: str
    problem: str | None


def steps(page: str) -> list[Step]:
    """All of a page in its order."""
    text = (ROOT / page).read_text()
    found: list[tuple[int, Step]] = []
    fenced: list[tuple[int, int]] = []

    def add(at: int, command: str, content: str | None = None) -> None:
        found.append((at, Step(page, text.count("\n", 0, at) + 1, command, content)))

    for block in _FENCE.finditer(text):
        fenced.append(block.span())
        named = _FILE.match(block[2])
        if block[1] in ("yaml", "python") and named:
            add(block.start(), named[1], block[2])
        elif not block[1]:
            for at, command in commands(block[2]):
                add(block.start(2) + at, command)
    for inline in _INLINE.finditer(text):
        at = inline.start()
        if inline[1].startswith("python") and not any(a <= at < b for a, b in fenced):
            add(at, inline[1])
    return [step for _, step in sorted(found, key=lambda pair: pair[0])]


def commands(block: str) -> Iterator[tuple[int, str]]:
    """Each command of a block and where it begins; none where the block is output."""
    whole = re.sub(r"\\\n\s*", lambda found: " " * len(found[0]), block)
    at = 0
    lines = whole.splitlines(keepends=True)
    while lines:
        line = lines.pop(0)
        begin = at
        at += len(line)
        if not line.strip() or line.split()[0] not in _FIRST:
            continue
        if end := re.search(r"<<'(\w+)'", line):
            while lines:
                more = lines.pop(0)
                at += len(more)
                line += more
                if more.strip() == end[1]:
                    break
        yield begin, line.strip()


class Stranger:
    """Tries commands in the current directory. `made` holds what long commands would write;
    `device` is an empty block device."""

    def __init__(self, made: Path, device: str) -> None:
        self._made = made
        self._device = device

    def follow(self, page: str) -> Iterator[Tried]:
        for step in steps(page):
            if step.text is not None:
                Path(step.command).write_text(step.text)
                continue
            problem = self._try(step)
            yield Tried(page=page, line=step.line, command=step.command, problem=problem)

    def _try(self, step: Step) -> str | None:
        if "<<" in step.command:
            return self._script(step.command)
        line, _, target = step.command.partition(" > ")
        words = shlex.split(line.split(" | ")[0], comments=True)
        if target:
            target = shlex.split(target, comments=True)[0]
        if words[0] == "mpirun":
            words = words[words.index("python") :]
        if words[:2] == ["python", "kv-cache.py"]:
            return self._ours(words[2:], target)
        return self._others(words, target)

    def _script(self, command: str) -> str | None:
        body = command.split("\n", 1)[1].rsplit("\n", 1)[0]
        done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True)
        return done.stderr if done.returncode else None

    def _others(self, words: list[str], target: str) -> str | None:
        """What is no command of ours: that what it names is there."""
        name = words[0]
        if name == "make":
            known = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            return None if words[1] in known else f"no target {words[1]}"
        if name == "pip":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            asked = re.findall(r"\[(.*)\]", words[-1])[0].split(",")
            missing = set(asked) - set(extras["optional-dependencies"])
            return f"no extra {missing}" if missing else None
        if name == "export":
            os.environ.update(
                {name: value for name, _, value in (w.partition("=") for w in words[1:])}
            )
        elif name == "xz":
            whole = subprocess.run(words, capture_output=True, check=True).stdout
            Path(target).write_bytes(b"".join(whole.splitlines(keepends=True)[:_ROWS]))
        elif name == "git":
            Path("kv-cache-tester").mkdir()
            shutil.copytree(real_trace("agentic"), "kv-cache-tester/traces")
        elif name == "curl" and "://127" not in words[-1]:
            return self._download(words)
        elif name.endswith("make.sh"):
            return None if os.access(ROOT / name, os.X_OK) else "it is not there"
        return None

    def _download(self, words: list[str]) -> str | None:
        """A piece of the real file, or one of its form, in place of what is at the address."""
        file = words[words.index("-o") + 1] if "-o" in words else words[-1].rpartition("/")[2]
        if "AzureLLM" in words[-1]:
            shutil.copy(real_trace("azure_2023_conv_6000.csv"), file)
            return None
        if "ShareGPT" in words[-1]:
            shutil.copy(made_talks(), file)
            return None
        return f"nothing stands for {words[-1]}"

    def _ours(self, given: list[str], target: str) -> str | None:
        words = [found for word in given for found in (sorted(glob.glob(word)) or [word])]
        here = {_RESULT: str(self._made / "R.json"), _DEVICE: self._device}
        words = [here.get(word, word) for word in words]
        written, err = io.BytesIO(), io.StringIO()
        out = io.TextIOWrapper(written)
        code: object = None
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = _main(_checked_only(words))
                if not code and _measures(words):
                    self._written(words)
            except SystemExit as end:
                code = end.code
        if target:
            out.flush()
            Path(target).write_bytes(written.getvalue())
        fine = (0, 1) if words[:2] == ["mlperf", "check"] else (0,)  # 1: rules that are broken
        if code in fine or _asked_a_server(words, err.getvalue()):
            return None
        return f"exit code {code}: {err.getvalue()[-400:]}"

    def _written(self, words: list[str]) -> None:
        """What a command that ended with its checks would have written."""
        command = words[0] if words and not words[0].startswith("-") else "run"
        options = _values(words)
        output = options.get("--output") or options.get("-o")
        if command == "calibrate" and output:
            shutil.copy(self._made / "machine.yaml", output)
            for probe in self._made.glob("*.probe.yaml"):
                shutil.copy(probe, Path(output).parent / probe.name)
        elif command == "probe" and "--profile" in options:
            (probe,) = self._made.glob("*.probe.yaml")
            shutil.copy(probe, options["--profile"])
        elif command == "run":
            if output:
                shutil.copy(self._made / "R.json", output)
            if "--record" in options:
                shutil.copy(self._made / "asked.jsonl.gz", options["--record"])
            if "--results-dir" in options:
                shutil.copytree(self._made / "results", options["--results-dir"])
        elif command == "mlperf":
            shutil.copytree(self._made / "tree", options["--results-dir"], dirs_exist_ok=True)


def _asked_a_server(words: Sequence[str], said: str) -> bool:
    """Whether a run on object storage had come as far as its server, which is not there."""
    places = [word for word in words if word.startswith("s3://")]
    return bool(places) and f"{places[0]}: " in said and "no keys were found" not in said


def _values(words: Sequence[str]) -> dict[str, str]:
    """Each flag with the word behind it."""
    split = [
        part for word in words for part in (word.split("=", 1) if word[:2] == "--" else [word])
    ]
    return dict(itertools.pairwise(split))


def _measures(words: Sequence[str]) -> bool:
    names = [word for word in words[:2] if not word.startswith("-")]
    command = " ".join(names) if names[:1] == ["mlperf"] else "".join(names[:1])
    small = ("--preset", "smoke") in itertools.pairwise(words)
    return not small and ((command or "run") in MEASURING or not (words and words[0] in COMMANDS))


def _checked_only(words: list[str]) -> list[str]:
    """The words with `--dry-run`, before the flags that `--` hands on."""
    if not _measures(words):
        return words
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], "--dry-run", *words[end:]]


def _main(words: Sequence[str]) -> int:
    from kv_cache.cli import main

    logging.getLogger().handlers.clear()
    if words[:1] == ["serve"]:  # its words are read; it would serve until a signal
        from kv_cache.cli.serve import COMMAND

        return 0 if COMMAND.parse(words[1:]) else 1
    return main(words)


# --- the places, and what long commands leave ------------------------------------------------


def mount(scratch: Path) -> None:
    """Gives each named directory a real file system of its own name, with room."""
    image = scratch / "image"
    with image.open("wb") as file:
        file.truncate(1 << 40)
    sparse = "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
    subprocess.run(
        ["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-T", "huge", "-E", sparse, str(image)],
        check=True,
    )
    subprocess.run(["mount", "-t", "tmpfs", "none", "/mnt"], check=True)
    drive = Path("/mnt/drive")
    drive.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(drive)], check=True)
    Path("/mnt/shared").mkdir()
    for name in ("nvme", "nvme0", "nvme1", "old", "new", "other"):
        (drive / name).mkdir()
        (Path("/mnt") / name).mkdir()
        subprocess.run(["mount", "--bind", str(drive / name), f"/mnt/{name}"], check=True)


def small_files(made: Path) -> None:
    """A result with its records, a recording, a profile: by real commands that take seconds."""
    from kv_cache.cli import main

    small = ["--model=tiny-1b", "--gpu-mem-gb=0", "--cpu-mem-gb=0", "--storage-capacity-gb=1",
             "--generation-mode=none", "--num-users=4", "--max-requests=60", "--warmup=0",
             "--seed=1", "--cache-dir=/mnt/nvme/kv", "--no-progress"]  # fmt: skip
    few = ["--size-gib=0.5", "--seconds=1", "--sizes-mib=1,8,64", "--concurrency=1,16",
           "--read-shares=0.5", "--no-dram"]  # fmt: skip
    before = Path.cwd()
    os.chdir(made)
    for words in (
        ["run", *small, "--output=R.json", "--record=asked.jsonl.gz", "--results-dir=results",
         "--records"],
        ["calibrate", "--cache-dir=/mnt/nvme/kv", "--output=machine.yaml", *few],
    ):  # fmt: skip
        code = main(words)
        assert code == 0, (words, code)
    submission.make(made / "tree", submission.real_result(made))
    os.chdir(before)


@contextlib.contextmanager
def empty_device(scratch: Path) -> Iterator[str]:
    """A loop device, which is no part of the mount namespace."""
    with (scratch / "device").open("wb") as file:
        file.truncate(1 << 40)
    losetup = ["losetup", "--show", "--find", file.name]
    device = subprocess.run(losetup, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def follow_all(scratch: Path, report: Path) -> None:
    mount(scratch)
    with empty_device(scratch) as device:
        _follow_all(scratch, report, device)


def _follow_all(scratch: Path, report: Path, device: str) -> None:
    made = scratch / "made"
    made.mkdir()
    small_files(made)
    tried: list[Tried] = []
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for number, page in enumerate(PAGES):
        place = scratch / f"page{number}"
        shutil.copytree(ROOT / "datasets", place / "datasets")
        shutil.copytree(ROOT / "tests" / "data", place / "tests" / "data")
        shutil.copytree(ROOT / "docs" / "reports", place / "docs" / "reports")
        os.chdir(place)
        tried += Stranger(made, device).follow(page)
    os.chdir("/")
    report.write_text(json.dumps([asdict(each) for each in tried]))


if __name__ == "__main__":
    follow_all(Path(sys.argv[1]), Path(sys.argv[2]))
