"""A headless Chromium that tests drive over a pipe, by the DevTools protocol; it needs no driver and no package."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")

WIRE = """
import fcntl, os, sys
reading, writing = (fcntl.fcntl(int(file), fcntl.F_DUPFD, 10) for file in sys.argv[1:3])
os.dup2(reading, 3)
os.dup2(writing, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes the browser, which reads commands from file 3 and answers on file 4."""


class Browser:
    """One browser with one tab; keeps every console message, exception and request that the page caused."""

    def __init__(self, folder: Path) -> None:
        to_child, from_parent = os.pipe()
        from_child, to_parent = os.pipe()
        command = [
            str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-quic",
            "--disable-sync", "--remote-debugging-pipe", f"--user-data-dir={folder}", "--hide-scrollbars",
        ]  # fmt: skip

        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", WIRE, str(to_child), str(to_parent), *command],
            pass_fds=(to_child, to_parent), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_child)
        os.close(to_parent)
        self._write, self._read = os.fdopen(from_parent, "wb", 0), os.fdopen(from_child, "rb", 0)
        self._numbers = itertools.count(1)
        self.events: list[dict] = []
        self._unread = b""
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._write.close()
        self._read.close()
        self._process.kill()
        self._process.wait()

    def call(self, method: str, **params: object) -> dict:
        """Return what the browser answers to a command; meanwhile events are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _receive(self) -> dict:
        while b"\0" not in self._unread:
            more = self._read.read(1 << 20)
            assert more, "the browser has gone"
            self._unread += more
        text, self._unread = self._unread.split(b"\0", 1)
        message = json.loads(text)
        assert message.get("method") != "Page.javascriptDialogOpening", (
            f"the page says {message['params']['message']!r}"
        )
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path: Path) -> None:
        """Open a file and wait until it is drawn."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive()
        self.settle()

    def settle(self) -> None:
        """Wait for two frames: what the last event asked for is then drawn."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def value(self, expression: str) -> object:
        """Return the value of a JavaScript expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys one after another, where the focus is; "Shift+x" holds shift."""
        for key in keys:
            name = key.removeprefix("Shift+")
            shared = {"key": name, "modifiers": 8 if name != key else 0}
            text = {"text": name} if len(name) == 1 else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", **shared, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **shared)
        self.settle()

    def mouse(self, *places: tuple[str, float, float]) -> None:
        """Send mouse events: (type, x, y), of which type is mousePressed, mouseMoved or mouseReleased."""
        for kind, x, y in places:
            held = {"button": "left", "buttons": 1, "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **(held if kind != "mouseMoved" else {}))
        self.settle()

    def touch(self, *events: tuple[str, list[tuple[float, float]]]) -> None:
        """Send touch events: (type, where the fingers are), of which type is touchStart, touchMove or touchEnd."""
        for kind, fingers in events:
            points = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(fingers)]
            self.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)
        self.settle()

    def complaints(self) -> list[object]:
        """Return the console's messages, uncaught errors, and requests for anything but the file itself."""
        said = [
            event["params"]
            for event in self.events
            if event["method"] in {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        ]
        asked = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return said + [url for url in asked[1:] if not url.startswith("data:")]

    def look(self, width: int, height: int, *, dark: bool = False, phone: bool = False, media: str = "") -> None:
        """Set the size of the window, and the colours that its user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.settle()

    def screenshot(self, path: Path) -> None:
        """Save the whole page as PNG."""
        image = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(image["data"]))
