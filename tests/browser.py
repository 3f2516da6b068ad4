"""A real Chromium without a screen, driven over the W3C WebDriver protocol by its own driver
(Debian: chromium and chromium-driver). It needs no Python package."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64decode
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.cli import PATIENCE_S

MISSING = next(
    (
        f"{what} is not installed (Debian: apt-get install chromium chromium-driver)"
        for what in ("chromium", "chromedriver")
        if shutil.which(what) is None
    ),
    None,
)
"""Why there is no browser; None where there is one."""

DESKTOP, PHONE = (1280, 900), (390, 844)
_ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
              "--hide-scrollbars", "--force-color-profile=srgb"]  # fmt: skip


class BrowserError(Exception):
    """What the driver said."""


class Browser:
    """One window."""

    def __init__(self, home: Path) -> None:
        self._log = (home / "chromedriver.log").open("w")
        self._process = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self._root = f"http://127.0.0.1:{self._port()}"
        options = {"args": [*_ARGUMENTS, f"--user-data-dir={home / 'profile'}"]}
        patience = dict.fromkeys(("script", "pageLoad"), round(1000 * PATIENCE_S))
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"},
                  "timeouts": patience}  # fmt: skip
        try:
            found = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        except BaseException:
            self._end()
            raise
        self._root += f"/session/{found['sessionId']}"

    def _port(self) -> int:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "started successfully on port" in line:
                return int(line.rstrip().rstrip(".").rpartition(" ")[2])
        raise BrowserError("chromedriver did not start")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        try:
            self._ask("DELETE", "")
        except (OSError, BrowserError):
            pass  # it is gone
        finally:
            self._end()

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self._root + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=2 * PATIENCE_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise BrowserError(error.read().decode(errors="replace")[:2000]) from None

    # --- pages ---------------------------------------------------------------------------------

    def look(self, size: tuple[int, int], *, dark: bool = False) -> None:
        """The window's size, and what the user prefers."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.cdp("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, page: Path) -> float:
        """The seconds until everything was loaded and the first charts were drawn."""
        began = time.perf_counter()
        self.load(page)
        self.run("await new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
        return time.perf_counter() - began

    def load(self, page: Path) -> None:
        """Go to a page and wait for its load event, which needs no script of the page."""
        self.visit(page.as_uri())

    def visit(self, address: str) -> None:
        """Go to an address and wait for its load event."""
        self._ask("POST", "/url", {"url": address})

    def until(self, condition: str, limit_s: float = PATIENCE_S) -> None:
        """Wait until an expression of the page is true."""
        end_s = time.monotonic() + limit_s
        while not self.run(f"return Boolean({condition})"):
            if time.monotonic() > end_s:
                raise BrowserError(f"not after {limit_s:g} s: {condition}: {self._seen()}")
            time.sleep(0.05)

    def _seen(self) -> str:
        text: str = self.run("return document.body.innerText")
        return text[:2000]

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns; it may await."""
        body = {"script": f"return (async () => {{ {script} }})()", "args": list(arguments)}
        return self._ask("POST", "/execute/sync", body)

    def press(self, *keys: str) -> None:
        """Keys, one after the other, into whatever has the focus."""
        steps = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": steps}]})

    def click(self, selector: str, index: int = 0) -> None:
        """As a user does: the element must be in sight and in front."""
        found = self._ask("POST", "/elements", {"using": "css selector", "value": selector})
        (name,) = found[index].values()
        self._ask("POST", f"/element/{name}/click")

    def drag(self, selector: str, start: float, end: float) -> None:
        """Over an element, from one share of its width to another."""
        self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})".replace(
            "arguments[0]", json.dumps(selector)))  # fmt: skip
        box = self.run(
            f"const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            "return [b.left, b.top, b.width, b.height]"
        )
        left, top, width, height = box
        y = round(top + height / 2)
        at = [round(left + width * share) for share in (start, (start + end) / 2, end)]
        moves = [{"type": "pointerMove", "x": x, "y": y, "duration": 50} for x in at]
        steps = [moves[0], {"type": "pointerDown", "button": 0}, *moves[1:],
                 {"type": "pointerUp", "button": 0}]  # fmt: skip
        mouse = {"type": "pointer", "id": "m", "parameters": {"pointerType": "mouse"}}
        self._ask("POST", "/actions", {"actions": [{**mouse, "actions": steps}]})

    def complaints(self) -> list[str]:
        """What the console said since it was last asked; an answer empties it."""
        return [row["message"] for row in self._ask("POST", "/se/log", {"type": "browser"})]

    def cdp(self, command: str, parameters: Any = None) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters or {}})

    def through(self) -> None:
        """Scroll to the end and back, so that all charts are drawn: what comes into sight is told
        with a frame, however long that takes."""
        self.run(
            "const frame = () => new Promise(r => requestAnimationFrame(r));"
            "for (let y = 0; y < document.body.scrollHeight; y += 600) {"
            " scrollTo(0, y); await frame(); await frame(); } scrollTo(0, 0);"
        )

    def screenshot(self, target: Path, *, whole: bool = False) -> Path:
        """What is seen, or the whole page with all its charts."""
        if whole:
            self.through()
        made = self.cdp("Page.captureScreenshot", {"captureBeyondViewport": whole})
        target.write_bytes(b64decode(made["data"]))
        return target

    def pdf(self, target: Path) -> Path:
        made = self.cdp("Page.printToPDF", {"printBackground": True})
        target.write_bytes(b64decode(made["data"]))
        return target
