# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window, driven by its DevTools protocol over two pipes."""

import base64
import fcntl
import json
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path

SECONDS = 120  # that a reply, or a page, may take


class Browser:
    """Opens pages in a tab. Raises OSError if there is no chromium."""

    def __init__(self):
        self._profile = tempfile.TemporaryDirectory(
            prefix="thinwire_browser_", ignore_cleanup_errors=True
        )
        # The browser reads from 3 and writes to 4, so the pipes' own ends lie above.
        pipes = (*os.pipe(), *os.pipe())
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 5) for end in pipes]
        for end in pipes:
            os.close(end)
        its_input, self._input, self._output, its_output = ends
        command = ["bash", "-c", 'exec "$@" 3<&$INPUT 4>&$OUTPUT', "bash"]
        command += ["chromium", "--headless", "--no-sandbox", "--disable-gpu"]
        command += ["--remote-debugging-pipe", f"--user-data-dir={self._profile.name}"]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "INPUT": str(its_input), "OUTPUT": str(its_output)},
            pass_fds=(its_input, its_output),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_input)
        os.close(its_output)
        self._buffer, self._calls, self._events = b"", 0, []
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._input)
        os.close(self._output)
        self._profile.cleanup()

    def _receive(self):
        while b"\0" not in self._buffer:
            if not select.select([self._output], [], [], SECONDS)[0]:
                raise TimeoutError(f"chromium did not answer in {SECONDS} s")
            part = os.read(self._output, 1 << 16)
            if not part:
                raise OSError("chromium has ended: is it installed?")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, **params):
        """Returns the result of a command, and keeps the events that precede it."""
        self._calls += 1
        request = {"id": self._calls, "method": method, "params": params}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._input, json.dumps(request).encode() + b"\0")
        while (reply := self._receive()).get("id") != self._calls:
            self._events.append(reply)
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def open(self, page, width):
        """Shows a file in a tab of this width, and returns what the console says is
        wrong with it."""
        self._events.clear()
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=Path(page).resolve().as_uri())
        deadline = time.monotonic() + SECONDS
        while self.value("document.readyState") != "complete" or not any(
            event["method"] == "Page.loadEventFired" for event in self._events
        ):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{page} is not complete after {SECONDS} s")
            time.sleep(0.05)
        return [text for text in map(complaint, self._events) if text]

    def value(self, expression):
        """Returns the value of an expression in the page, as JSON has it."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']['text']}")
        return found["result"].get("value")

    def screenshot(self, file):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        picture = self.call(
            "Page.captureScreenshot",
            captureBeyondViewport=True,
            clip={
                "x": 0,
                "y": 0,
                "scale": 1,
                **{k: size[k] for k in ("width", "height")},
            },
        )
        Path(file).write_bytes(base64.b64decode(picture["data"]))


def complaint(event):
    """Returns what an event says is wrong, or None."""
    params = event.get("params", {})
    if event["method"] == "Runtime.exceptionThrown":
        details = params["exceptionDetails"]
        thrown = details.get("exception", {}).get("description", "")
        return f"{details['text']} {thrown} (line {details['lineNumber'] + 1})"
    if event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
        return params["entry"]["text"]
    if event["method"] == "Runtime.consoleAPICalled" and params["type"] in (
        "error",
        "assert",
    ):
        return json.dumps(params["args"])
    return None
