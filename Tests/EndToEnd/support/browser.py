"""A headless browser: loads a page of one origin, whose script calls gateways of others and reports a result."""

import functools
import http.server
import json
import queue
import subprocess
import threading

from program import ROOT


class Browser:
    """A Chromium that opens pages of `directory`, served at an origin of their own."""

    def __init__(self, directory, profile):
        self.results = queue.Queue()
        handler = functools.partial(Handler, self.results, directory=str(directory))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.origin = f"http://127.0.0.1:{self.server.server_port}"
        self.profile = profile

    def run(self, page, timeout=180):
        """Opens a page, and returns what its script has reported."""
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--disable-sync",
                   f"--user-data-dir={self.profile}", f"{self.origin}/{page}"]
        log = open(self.profile.with_suffix(".log"), "wb")
        with log, subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL) as process:
            try:
                return self.results.get(timeout=timeout)
            except queue.Empty:
                raise AssertionError(f"the page reports nothing:\n{self.profile.with_suffix('.log').read_text(errors='replace')}") from None
            finally:
                process.terminate()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, results, *arguments, **options):
        self.results = results
        super().__init__(*arguments, **options)

    def do_POST(self):
        self.results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


#: The pages of the tests.
PAGES = ROOT / "Tests" / "EndToEnd" / "support" / "pages"
