"""The client's verbs: the program, with a gateway of its own and a home of its own."""

import json
import os
import pty
import select
import subprocess
import time

import fcntl
import pytest
import struct
import termios

from fault_proxy import FaultProxy
from program import BINARY, Server


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    """A gateway with two buckets, for the tests of a file."""
    directory = tmp_path_factory.mktemp("gateway")
    buckets = "".join(f"  {name}: {{ directory: {{ path: {directory}/{name} }} }}\n" for name in ("photos", "other"))
    running = Server(directory, buckets=buckets)
    yield running
    assert running.stop() == 0, running.output()


@pytest.fixture
def proxy(gateway):
    running = FaultProxy(gateway.http)
    yield running
    running.stop()


class Client:
    """Runs verbs in the directory `home`."""

    def __init__(self, home, port):
        self.home = home
        self.url = f"http://127.0.0.1:{port}"

    def environment(self, **more):
        clean = {name: value for name, value in os.environ.items()
                 if not name.startswith(("SLUICE_", "XDG_"))}
        return {key: value for key, value in
                {**clean, "HOME": str(self.home), "SLUICE_URL": self.url, **more}.items() if value is not None}

    def start(self, *arguments, environment=None, **options):
        return subprocess.Popen([str(BINARY), *map(str, arguments)], cwd=self.home,
                                env=self.environment(**(environment or {})), **options)

    def run(self, *arguments, environment=None, given=None, text=True):
        """Runs a verb to its end; returns status, standard output and standard error."""
        done = subprocess.run([str(BINARY), *map(str, arguments)], cwd=self.home, input=given, timeout=120,
                              stdin=subprocess.DEVNULL if given is None else None, capture_output=True, text=text,
                              env=self.environment(**(environment or {})))
        return done.returncode, done.stdout, done.stderr

    def fine(self, *arguments, **options):
        """Runs a verb that succeeds without a word on standard error; returns standard output."""
        status, out, err = self.run(*arguments, **options)
        assert (status, err) == (0, "" if options.get("text", True) else b""), (arguments, err)
        return out

    def lines(self, *arguments, **options):
        """Runs a verb with --json; returns the objects that it prints."""
        return [json.loads(line) for line in self.fine(*arguments, "--json", **options).splitlines()]

    def states(self):
        """The files that remember transfers."""
        return list((self.home / ".local/state/sluice").glob("*"))

    def on_terminal(self, *arguments, columns=60, term="xterm"):
        """Runs a verb on a terminal; returns its status and what the terminal got."""
        main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        running = self.start(*arguments, environment={"TERM": term}, stdin=side, stdout=side, stderr=side)
        os.close(side)
        shown, end = b"", time.monotonic() + 60
        while time.monotonic() < end:
            if not select.select([main], [], [], 1)[0]:
                continue
            try:
                block = os.read(main, 65536)
            except OSError:
                break
            if not block:
                break
            shown += block
        os.close(main)
        return running.wait(10), shown.decode()


@pytest.fixture
def client(tmp_path, gateway):
    home = tmp_path / "home"
    home.mkdir()
    return Client(home, gateway.http)


@pytest.fixture
def through(tmp_path, proxy):
    """A client whose requests go through the proxy."""
    home = tmp_path / "through"
    home.mkdir()
    return Client(home, proxy.port)
