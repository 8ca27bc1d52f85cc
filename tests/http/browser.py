"""A real browser, driven over its DevTools protocol: Chromium without a window, one page."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.sync.client import connect

WIDTH = 1200
NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Where the browser is, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a browser whose profile is in ``folder``."""

    def __init__(self, folder: Path) -> None:
        path = chromium()
        assert path is not None
        words = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={folder}", "--no-first-run"]
        words += ["--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--mute-audio"]
        words += [*(["--no-sandbox"] if os.geteuid() == 0 else []), "about:blank"]
        self._process = subprocess.Popen(
            [path, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._open = contextlib.ExitStack()
        self._number = 0
        self.errors: list[str] = []
        self._session: str | None = None
        try:
            port, door = self._door(folder / "DevToolsActivePort")
            self._socket = self._open.enter_context(
                connect(f"ws://127.0.0.1:{port}{door}", max_size=1 << 26, open_timeout=60)
            )
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            self.call("Page.enable")
            size = {"width": WIDTH, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            self.call("Emulation.setDeviceMetricsOverride", **size)
            self.call("Runtime.enable")
            self.call("Log.enable")
        except BaseException:
            self._open.close()
            self._process.kill()
            self._process.wait(10)
            raise

    def _door(self, path: Path) -> tuple[str, str]:
        give_up = time.monotonic() + 60
        while True:
            if path.exists() and len(lines := path.read_text().split()) == 2:
                return lines[0], lines[1]
            assert self._process.poll() is None, "the browser ended at once"
            assert time.monotonic() < give_up, "the browser opened no door"
            time.sleep(0.05)

    def call(self, method: str, **params: Any) -> Any:
        """Call ``method`` of the protocol; return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._hear(answer)

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(event["params"]["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.errors.append(event["params"]["entry"]["text"])

    def goto(self, url: str) -> None:
        """Open ``url``."""
        self.call("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        """The value of ``expression`` in the page; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str, *, within_s: float = 60.0) -> None:
        """Wait until ``condition``, an expression, is true in the page."""
        give_up = time.monotonic() + within_s
        while True:
            try:
                if self.js(f"Boolean({condition})"):
                    return
            except AssertionError:
                pass  # the page is just being replaced
            assert time.monotonic() < give_up, f"{condition} did not come true: {self.js('document.body.innerText')}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Click with the mouse in the middle of the element."""
        find = f"document.querySelector({json.dumps(selector)})"
        for _ in range(50):  # the page may have moved it since it was found
            at = self.js(
                f"(() => {{ const e = {find}; e.scrollIntoView({{block: 'center'}}); "
                "const r = e.getBoundingClientRect(); const x = r.x + r.width / 2, y = r.y + r.height / 2; "
                "const hit = document.elementFromPoint(x, y); return [x, y, e === hit || e.contains(hit)]; })()"
            )
            if at[2]:
                break
            time.sleep(0.05)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def key(self, name: str) -> None:
        """Press a key."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}[
            name
        ]
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **text)

    def point(self, selector: str, x: float, y: float) -> None:
        """Move the mouse over the element, to ``x`` and ``y`` as shares of its size."""
        find = f"document.querySelector({json.dumps(selector)})"
        at = self.js(
            f"(() => {{ const e = {find}; e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect(); "
            f"return [r.x + r.width * {x}, r.y + r.height * {y}]; }})()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=at[0], y=at[1])

    def dark(self, on: bool) -> None:
        """Let the page be shown to somebody who likes it dark."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        height = self.call("Page.getLayoutMetrics")["cssContentSize"]["height"]
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
