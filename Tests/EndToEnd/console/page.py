"""A page in a headless browser, driven by the DevTools protocol over a pipe: JSON texts that end with NUL, over
descriptors 3 and 4. It records every error of the console and every violation of a content security policy."""

import base64
import fcntl
import itertools
import json
import os
import pathlib
import queue
import subprocess
import threading
import urllib.parse

from program import wait_until

#: Keys that are not characters, with their code.
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38, "Home": 36, "End": 35, "Backspace": 8}

#: Violations are events of the document, so a script of the test collects them before the page's own scripts run.
COLLECTOR = """
    window.violations = [];
    document.addEventListener("securitypolicyviolation", event =>
        violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""


class Page:
    """A page of a Chromium of its own. `profile` is a directory that does not exist yet."""

    def __init__(self, profile, width=1280, height=800, nice=0, options=()):
        down, up = os.pipe(), os.pipe()
        # The child's ends are moved out of the way of the descriptors they become.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (down[0], up[1])]
        command = ["nice", f"-n{nice}", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                   "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={profile}", *options, "about:blank"]
        with open(pathlib.Path(profile).with_suffix(".log"), "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(3, 4),
                preexec_fn=lambda: (os.dup2(ends[0], 3), os.dup2(ends[1], 4)))
        for end in (down[0], up[1], *ends):
            os.close(end)
        self.down, self.up = os.fdopen(down[1], "wb", 0), os.fdopen(up[0], "rb", 0)
        self.numbers, self.replies, self.problems = itertools.count(1), {}, []
        self.session = None
        threading.Thread(target=self.read, daemon=True).start()
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Audits", "DOM", "Accessibility"):
            self.send(f"{domain}.enable")
        self.send("Page.addScriptToEvaluateOnNewDocument", source=COLLECTOR)
        self.resize(width, height)

    def read(self):
        """Takes messages from the pipe: replies by their number, and the events that report a problem."""
        rest = b""
        while data := self.up.read(1 << 16):
            *messages, rest = (rest + data).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self.replies[message["id"]].put(message)
                else:
                    self.note(message["method"], message["params"])

    def note(self, event, parameters):
        if event == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            # A denial or a missing object is a response like others, but Chromium logs its status as an error.
            path = urllib.parse.urlsplit(parameters["entry"].get("url", "")).path
            if not path.startswith(("/api/", "/b/")):
                self.problems.append(f"{parameters['entry']['text']} {path}")
        elif event == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            self.problems.append(" ".join(str(value.get("value", value)) for value in parameters["args"]))
        elif event == "Audits.issueAdded" and parameters["issue"]["code"] == "ContentSecurityPolicyIssue":
            self.problems.append(json.dumps(parameters["issue"]["details"]))

    def send(self, method, **parameters):
        """Calls a method of the protocol and returns its result."""
        number = next(self.numbers)
        reply = self.replies[number] = queue.Queue()
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.down.write(json.dumps(message).encode() + b"\0")
        answer = reply.get(timeout=60)
        del self.replies[number]
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def run(self, script):
        """Evaluates an expression in the page, waits for its promise, and returns its value."""
        result = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails'].get('exception', result)}")
        return result["result"].get("value")

    def wait(self, script, timeout=20):
        """Waits until an expression is true."""
        return wait_until(lambda: self.run(f"!!({script})"), timeout, lambda: f"{script}, on a page of:\n{self.text()[:3000]}\n")

    def open(self, url):
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def text(self, selector="body"):
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def click(self, selector):
        """Clicks in the middle of the first visible element of a selector."""
        find = f"[...document.querySelectorAll({json.dumps(selector)})].find(e => e.checkVisibility())"
        self.wait(f"!!{find}")
        x, y = self.run(f"(e => {{ e.scrollIntoView({{block: 'nearest'}}); const r = e.getBoundingClientRect();"
                        f" return [r.x + r.width / 2, r.y + r.height / 2] }})({find})")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text):
        """Types a text where the focus is."""
        self.send("Input.insertText", text=text)

    def press(self, key):
        """Presses a key: a character or one of `KEYS`."""
        code = {"windowsVirtualKeyCode": KEYS[key]} if key in KEYS else {}
        text = {"text": "\r" if key == "Enter" else key} if key == "Enter" or key not in KEYS else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **code, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, **code)

    def choose(self, selector, *files):
        """Chooses files in a field for files."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def resize(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def prefer(self, **features):
        """Sets media features, such as prefers_color_scheme="dark"."""
        self.send("Emulation.setEmulatedMedia", features=[
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()])

    def screenshot(self, file):
        pathlib.Path(file).write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def controls(self):
        """The role and the accessible name of each control."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        roles = {"button", "link", "textbox", "combobox", "checkbox", "searchbox", "spinbutton", "listbox", "radio"}
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes
                if not node.get("ignored") and node["role"]["value"] in roles]

    def findings(self):
        """Errors of the console and violations of policies, of all pages so far."""
        return self.problems + (self.run("window.violations") or [])

    def close(self):
        self.process.terminate()
        self.process.wait(20)
        self.down.close()
        self.up.close()
