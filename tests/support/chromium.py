"""A real browser, driven through its DevTools protocol: real keys, real clicks, and everything that went wrong."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions",
    "--disable-dev-shm-usage", "--remote-debugging-port=0", "--force-device-scale-factor=1", "--lang=en",
]  # fmt: skip
KEYS = {
    "Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
    "Home": 36, "End": 35, "PageDown": 34, "PageUp": 33,
}  # fmt: skip


def found() -> str | None:
    """The browser of this machine, or the one that CHROMIUM names."""
    return os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


needs_chromium = pytest.mark.skipif(
    not found(), reason="no Chromium or Chrome on this machine; install one, or set CHROMIUM"
)


@contextmanager
def browser(folder: Path):
    """A browser with a profile of its own, and one page."""
    from websockets.sync.client import connect

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [found(), *FLAGS, f"--user-data-dir={folder}", "about:blank"], stdout=log, stderr=log
        )
    try:
        port, address = _listening(process, folder / "DevToolsActivePort", folder / "log")
        options = {"max_size": 2**28, "open_timeout": 600, "ping_interval": None}  # a slow browser is not a lost one
        with connect(f"ws://127.0.0.1:{port}{address}", **options) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def _listening(process, file, log):
    end = time.monotonic() + 600
    while time.monotonic() < end and process.poll() is None:
        if file.exists() and len(lines := file.read_text().splitlines()) == 2:
            return lines
        time.sleep(0.02)
    raise RuntimeError(f"the browser did not start:\n{log.read_text()[-2000:]}")


class Page:
    """One tab. `faults` are exceptions, console errors and broken policy; `asked` every address it wanted to load."""

    def __init__(self, socket):
        self._socket = socket
        self._number = 0
        self._session = None
        self.faults = []
        self.asked = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.size(1280, 900)

    def send(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        self._socket.send(json.dumps({**message, "sessionId": self._session} if self._session else message))
        while True:
            answer = json.loads(self._socket.recv(600))
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer.get("method"), answer.get("params", {}))

    def _note(self, method, params):
        if method == "Runtime.exceptionThrown":
            self.faults.append(params["exceptionDetails"].get("exception", {}).get("description") or str(params))
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}:
            self.faults.append(" ".join(str(one.get("value", one.get("description"))) for one in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            self.faults.append(params["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.faults.append(f"a dialog: {params['message']}")
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("data:", "blob:")):
            self.asked.append(params["request"]["url"])

    def open(self, path, fragment=""):
        """Open a file and wait until it is shown."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=Path(path).resolve().as_uri() + fragment)
        self.wait("document.querySelector('#page')?.dataset.ready")

    def eval(self, script, *, wait=True):
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=wait)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", str(answer)))
        return answer["result"].get("value")

    def wait(self, script, seconds=600):
        """Wait until something is so, and return it."""
        end = time.monotonic() + seconds
        while not (
            value := self.eval(
                f"(() => {{ try {{ const v = {script}; return v instanceof Node || v }} catch {{ return null }} }})()"
            )
        ):
            assert time.monotonic() < end, f"never: {script}\nfaults: {self.faults}"
            time.sleep(0.02)
        return value

    def settle(self):
        """Wait until the page has noticed what was scrolled or has another size: it hears of that before it draws."""
        self.eval("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")

    def text(self, selector):
        return self.wait(f"document.querySelector({json.dumps(selector)})?.innerText")

    def texts(self, selector):
        return self.eval(f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.innerText)")

    def count(self, selector):
        return self.eval(f"document.querySelectorAll({json.dumps(selector)}).length")

    def box(self, selector):
        """Where something is, after it was scrolled into sight."""
        found_ = f"document.querySelector({json.dumps(selector)})"
        self.wait(found_ + " !== null")
        self.eval(f"{found_}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.settle()
        return self.eval(
            f"(() => {{ const b = {found_}.getBoundingClientRect(); return [b.x, b.y, b.width, b.height] }})()"
        )

    def click(self, selector):
        x, y, width, height = self.box(selector)
        self.mouse("mousePressed", x + width / 2, y + height / 2)
        self.mouse("mouseReleased", x + width / 2, y + height / 2)

    def mouse(self, kind, x, y):
        pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.send(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, buttons=1 if kind != "mouseReleased" else 0, **pressed
        )

    def drag(self, selector, start, end):
        """Drag from one share of an element's width to another."""
        x, y, width, height = self.box(selector)
        self.mouse("mouseMoved", x + start * width, y + height / 2)
        self.mouse("mousePressed", x + start * width, y + height / 2)
        for share in (start + (end - start) * part / 5 for part in range(1, 6)):
            self.mouse("mouseMoved", x + share * width, y + height / 2)
        self.mouse("mouseReleased", x + end * width, y + height / 2)

    def press(self, *keys):
        for key in keys:
            named = key in KEYS
            shared = {"key": key, "windowsVirtualKeyCode": KEYS.get(key, ord(key[-1].upper()))}
            text = {"text": "\r"} if key == "Enter" else {} if named else {"text": key}
            self.send("Input.dispatchKeyEvent", type="keyDown", **shared, **text)
            self.send("Input.dispatchKeyEvent", type="keyUp", **shared)

    def write(self, selector, text):
        """Put text into a field as a person would, in place of what is there."""
        self.eval(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.focus(); one.select() }})()"
        )
        self.send("Input.insertText", text=text) if text else self.press_delete()

    def press_delete(self):
        self.send("Input.dispatchKeyEvent", type="keyDown", key="Delete", windowsVirtualKeyCode=46)
        self.send("Input.dispatchKeyEvent", type="keyUp", key="Delete", windowsVirtualKeyCode=46)

    def size(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, *, colours="light", kind="screen"):
        wanted = {
            "prefers-color-scheme": colours,
            "prefers-reduced-motion": "reduce",
        }  # nothing glides from under the mouse
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        self.send("Emulation.setEmulatedMedia", media=kind, features=features)

    def picture(self, path, *, whole=False):
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def _clip(self, whole):
        if not whole:
            return {}
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12000), "scale": 1}}

    def pdf(self):
        """What a printer would get; with the media that an earlier `media` set, unless that was taken back."""
        self.send("Emulation.setEmulatedMedia", media="")
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])
