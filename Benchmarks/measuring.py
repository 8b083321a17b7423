"""Servers, load and tables of the comparison: one server at a time on CPU 0, the load generator on CPU 1, data in memory.

CPU is the processor time of the server's whole process tree (/proc/PID/task/*/schedstat).
"""

import contextlib
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORK = pathlib.Path(tempfile.mkdtemp(prefix="sluice-bench-", dir="/dev/shm"))
# As it is released: with Swift's libraries in the program.
SLUICE = pathlib.Path(os.environ.get("SLUICE", ROOT / ".build-static" / "release" / "sluice"))
# With the variable of the systemd unit and the image.
RUN_SLUICE = ["env", "GLIBC_TUNABLES=glibc.malloc.tcache_count=256", SLUICE]
SIZES = {"1 KiB": 1024, "16 MiB": 16 << 20}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def tree(pid):
    """The process and its children."""
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def cpu_seconds(pid):
    total = 0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            for task in pathlib.Path(f"/proc/{process}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def memory(pid, field="VmRSS"):
    """KiB of the process tree."""
    total = 0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            for line in open(f"/proc/{process}/status"):
                if line.startswith(field + ":"):
                    total += int(line.split()[1])
    return total


class Server:
    """A peer: its command, and the URLs of its objects."""

    def __init__(self, name, command, base, upload="PUT", prepare=None, url=None, upload_url=None):
        self.name, self.command, self.base, self.upload = name, command, base, upload
        self.prepare, self.process = prepare, None
        self.url = url or (lambda key: f"{base}/{key}")
        self.upload_url = upload_url or self.url
        self.cpus = "0"

    def __enter__(self):
        log = open(WORK / f"{self.name}.log", "ab")
        begun = time.perf_counter()
        self.process = subprocess.Popen(
            ["taskset", "-c", self.cpus, *map(str, self.command)], stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline and not self.answers():
            time.sleep(0.001)
        self.start_ms = (time.perf_counter() - begun) * 1000
        while self.prepare and time.monotonic() < deadline and not self.prepare():
            time.sleep(0.1)
        return self

    def answers(self):
        try:
            host = re.match(r"https?://([^/:]+):(\d+)", self.base)
            socket.create_connection((host[1], int(host[2])), 1).close()
            return True
        except OSError:
            return False

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def request(method, url, body=None, kind=None):
    message = urllib.request.Request(url, data=body, method=method, headers={"content-type": kind} if kind else {})
    try:
        with urllib.request.urlopen(message, timeout=10) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def h2load(urls, count, clients, streams=1, body=None, method=None, http1=False, fields=()):
    """Runs h2load on CPU 1. Returns requests per second, or None if any request failed."""
    listing = WORK / "urls"
    listing.write_text("\n".join(urls) + "\n")
    arguments = ["taskset", "-c", "1", "h2load", "-n", count, "-c", clients, "-m", streams, "-t", 1, "-i", listing]
    for field in fields:
        arguments += ["-H", field]
    if http1:
        arguments.append("--h1")
    if body:
        arguments += ["-d", body, "-H", f":method: {method}", "-H", "content-type: application/octet-stream"]
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, timeout=180)
    rate = re.search(r"finished in [\d.]+\w+, ([\d.]+) req/s", done.stdout)
    good = re.search(r"(\d+) 2xx", done.stdout)
    if not rate or not good or int(good[1]) < count:
        return None
    return float(rate[1])


def measure(server, *arguments, **options):
    """(requests per second, CPU seconds per request)"""
    before = cpu_seconds(server.process.pid)
    rate = h2load(*arguments, **options)
    spent = cpu_seconds(server.process.pid) - before
    return rate, spent / arguments[1]


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def ratio(values, others):
    """The median of `values` divided by `others`, turn by turn."""
    return median([value and other and value / other for value, other in zip(values, others)])


def table(title, rows, unit, reference, lower_is_better=False):
    """Prints a table of figures, each with its ratio to Sluice's figure."""
    print(f"\n{title}")
    columns = list(next(iter(rows.values())))
    print("| | " + " | ".join(columns) + " |\n|---" * 1 + "|---" * len(columns) + "|")
    for name, cells in rows.items():
        line = []
        for column in columns:
            value, own = median(cells[column]), median(rows[reference][column])
            if value is None or own is None:
                line.append("failed")
            elif name == reference:
                line.append(f"**{unit(value)}**")
            else:
                theirs, ours = cells[column], rows[reference][column]
                times = ratio(theirs, ours) if lower_is_better else ratio(ours, theirs)
                line.append(f"{unit(value)} ({times:.2f}×)")
        print(f"| {name} | " + " | ".join(line) + " |")
    sys.stdout.flush()
