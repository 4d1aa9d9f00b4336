"""A headless Chromium for tests of pages, driven over a pipe by the DevTools protocol.

No package is needed for it, and no port: `--remote-debugging-pipe` speaks JSON, each message ended
by a NUL, on two file descriptors.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EXECUTABLE = next(filter(None, map(shutil.which, NAMES)), None)
_PATIENCE = 120.0
"""Seconds for an answer: a machine may be busy with the other tests."""


class Browser:
    """One page at a time, with what its console and its network said."""

    def __enter__(self) -> Browser:
        assert EXECUTABLE is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        reads, self._out = os.pipe()
        self._in, writes = os.pipe()
        command = [
            EXECUTABLE,
            "--headless=new",
            "--no-sandbox",  # it may run as root, and reads only pages that the tests made
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._profile.name}",
        ]

        def descriptors() -> None:  # the browser reads 3 and writes 4
            high = [os.dup2(end, 100 + i) for i, end in enumerate((reads, writes))]
            for number, end in zip((3, 4), high, strict=True):
                os.dup2(end, number)
                os.set_inheritable(number, True)

        self._process = subprocess.Popen(
            command,
            preexec_fn=descriptors,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._number, self._rest, self.events = 0, b"", []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command; events that come before it are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._rest:
            ready, *_ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no answer from the browser within {_PATIENCE:g} s"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path, *, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        """Show a file, at a width of the window and in a theme, and wait until it is there."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        self.call("Page.navigate", url=page.absolute().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    @property
    def complaints(self) -> list[str]:
        """What the console has seen, and what the page asked others for."""
        found = []
        for event in self.events:
            method, told = event.get("method"), event.get("params", {})
            if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                found.append(json.dumps(told))
            elif method == "Network.requestWillBeSent":
                url = told["request"]["url"]
                if not url.startswith(("file:", "data:")):
                    found.append(f"asked for {url}")
        return found

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
