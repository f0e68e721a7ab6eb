"""A headless Chromium for tests, driven through ChromeDriver (https://www.w3.org/TR/webdriver2/)."""

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Without these, Chromium looks for updates and online services at every start.
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
# Ignores any proxy of the environment.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def missing_programs() -> str:
    """Say what has to be installed; empty if nothing."""
    found = {"chromium": any(map(shutil.which, NAMES)), "chromedriver": shutil.which("chromedriver")}
    absent = " and no ".join(name for name, path in found.items() if not path)
    return f"no {absent} here (Debian: apt-get install chromium chromium-driver)" if absent else ""


class Browser:
    def __init__(self, port: int, profile: Path):
        self.base = f"http://127.0.0.1:{port}/session"
        chrome = {
            "binary": next(filter(None, map(shutil.which, NAMES))),
            "args": [*QUIET, f"--user-data-dir={profile}"],
        }
        wanted = {"browserName": "chrome", "goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"}}
        opened = self._send("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/{opened['sessionId']}"

    def _send(self, method: str, path: str, body: dict | None = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, content, {"Content-Type": "application/json"}, method=method)
        with DIRECT.open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, address: str) -> None:
        self._send("POST", "/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function in the page and return its value."""
        return self._send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def becomes(self, expression: str) -> bool:
        """Wait up to two seconds until the expression is true: a page follows its address with a delay."""
        return self.run(f"""
            return new Promise((resolve) => {{
                const end = Date.now() + 2000;
                const look = () => ({expression}) ? resolve(true)
                    : Date.now() > end ? resolve(false) : setTimeout(look, 10);
                look();
            }});""")

    def click(self, selector: str) -> None:
        """Click in the middle of the first element; an error if something else covers it."""
        self._send("POST", f"/element/{self._find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self._send("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Send keys to the focused element."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._send("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def _find(self, selector: str) -> str:
        return self._send("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def text(self, selector: str) -> str:
        return self._send("GET", f"/element/{self._find(selector)}/text")

    def developer(self, command: str, **parameters: Any) -> Any:
        """Send a command of Chromium's developer protocol."""
        return self._send("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def screen(self, width: int, dark: bool = False, height: int = 900) -> None:
        self.developer(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.developer("Emulation.setEmulatedMedia", features=[scheme])

    def messages(self) -> list[str]:
        """Read the console's messages since the last call."""
        return [entry["message"] for entry in self._send("POST", "/se/log", {"type": "browser"})]

    def close(self) -> None:
        self._send("DELETE", "")


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile in `folder`; it and its driver end with the block."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        found = (re.search(r"successfully on port (\d+)", line) for line in driver.stdout)
        port = next(int(match[1]) for match in found if match)
        browser = Browser(port, folder / "profile")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait()
        driver.stdout.close()
