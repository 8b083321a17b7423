"""Files above 64 MiB are sent in parts, several at a time."""

import random
import signal
import threading

import pytest

from faults import Fault, Reset, StallRequest, Status
from program import wait_until

MEBIBYTE = 1 << 20
PART = 16 * MEBIBYTE
#: Five parts, of which the last is short.
BODY = random.Random(3).randbytes(70 * MEBIBYTE)
COUNT = 5


@pytest.fixture
def big(through):
    path = through.home / "big.iso"
    path.write_bytes(BODY)
    return path


@pytest.fixture
def sessions(gateway):
    """Returns the number of uploads that were not there before the test."""
    def count():
        return sum(value for name, value in gateway.metrics().items() if name.startswith("sluice_uploads_open{"))

    before = count()
    return lambda: count() - before


def parts(proxy):
    """The requests with parts."""
    return proxy.sent("PUT", r"\?parts=.*&part=")


def stored(proxy):
    return [request for request in parts(proxy) if request.status == 200]


def interrupt(through, proxy, how, *arguments, kept=2):
    """Begins an upload of which the gateway gets some parts, and ends it."""
    proxy.fault(StallRequest(), method="PUT", times=None, skip=kept)
    running = through.start("put", "-j", "4", *arguments, stderr=-1)
    # All requests are with the proxy: none can arrive late.
    wait_until(lambda: len(stored(proxy)) == kept and len(parts(proxy)) == COUNT and through.states(), what="all parts")
    running.send_signal(how)
    assert running.wait(20) == (-9 if how == signal.SIGKILL else 128 + how)
    proxy.clear()


@pytest.mark.parametrize("arguments", [
    ["put", "big.iso", "photos/put/"], ["cp", "./big.iso", "sluice://photos/cp/"], ["sync", "./site", "photos/sync"],
])
def test_a_large_file_is_sent_in_parts(through, proxy, big, arguments):
    (through.home / "site").mkdir()
    (through.home / "site/big.iso").write_bytes(BODY)
    through.fine(*arguments, "-j", "4")
    assert len(proxy.sent("POST", r"\?parts$")) == 1 and not proxy.sent("PATCH")
    assert [request.received for request in sorted(parts(proxy), key=lambda part: part.target)] == [
        PART, PART, PART, PART, len(BODY) - 4 * PART]
    assert through.fine("cat", f"photos/{arguments[0]}/big.iso", text=False) == BODY
    assert not through.states()


def test_its_metadata(through, big):
    through.fine("put", "--content-type", "text/x-a", "--cache-control", "no-cache", "--meta", "k=v", "big.iso", "photos/m")
    [found] = through.lines("stat", "photos/m")
    assert (found["contentType"], found["cacheControl"], found["customMetadata"]) == ("text/x-a", "no-cache", {"k": "v"})


def test_one_job_has_one_connection(through, proxy, big):
    through.fine("put", "-j", "1", "big.iso", "photos/one")
    assert not proxy.sent("POST") and proxy.sent("PATCH")


class Concurrency(Fault):
    """Counts the requests at a time."""

    def __init__(self):
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def before(self, connection, request):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        return False

    def after(self, connection, request, response):
        with self.lock:
            self.now -= 1
        connection.pass_on(response)


def test_parts_count_as_jobs(through, proxy):
    folder = through.home / "many"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.iso").write_bytes(BODY)
    for number in range(20):
        (folder / f"{number}.txt").write_bytes(b"small")
    counter = proxy.fault(Concurrency(), method=("PUT", "POST"), times=None)
    through.fine("put", "-R", "-j", "3", "many", "photos/many")
    assert 2 <= counter.most <= 3
    assert through.fine("cat", "photos/many/1.iso", text=False) == BODY


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("jobs", [1, 4])
def test_an_interrupted_upload_continues(through, proxy, big, sessions, how, jobs):
    interrupt(through, proxy, how, "big.iso", "photos/continued")
    assert sessions() == 1
    before = len(parts(proxy))
    through.fine("put", "-j", jobs, "big.iso", "photos/continued")
    # Only the rest is sent.
    assert len(parts(proxy)) - before == COUNT - 2
    assert sum(request.received for request in stored(proxy)) == len(BODY)
    assert through.fine("cat", "photos/continued", text=False) == BODY
    assert sessions() == 0 and not through.states() and len(proxy.sent("POST", r"\?parts$")) == 1


def test_an_end_that_was_not_heard(through, proxy, big, sessions):
    """Killed between the creation of the object and its report."""
    held = proxy.fault(HoldResponse(), method="POST", target=r"\?parts=.")
    running = through.start("put", "big.iso", "photos/ended", stderr=-1)
    assert held.reached.wait(60)
    running.kill()
    running.wait()
    held.released.set()
    [first] = through.lines("stat", "photos/ended")
    before = len(parts(proxy))
    through.fine("put", "big.iso", "photos/ended")
    assert len(parts(proxy)) == before and not through.states()
    [second] = through.lines("stat", "photos/ended")
    assert first == second


class HoldResponse(Fault):
    """Keeps the response back."""

    def __init__(self):
        self.reached, self.released = threading.Event(), threading.Event()

    def after(self, connection, request, response):
        self.reached.set()
        self.released.wait(60)
        connection.pass_on(response)


def test_other_options_begin_again(through, proxy, big, sessions):
    interrupt(through, proxy, signal.SIGKILL, "big.iso", "photos/options")
    through.fine("put", "--content-type", "text/x-b", "big.iso", "photos/options")
    [found] = through.lines("stat", "photos/options")
    assert (found["contentType"], found["size"]) == ("text/x-b", len(BODY))
    # The first one is removed.
    assert sessions() == 0 and len(proxy.sent("DELETE")) == 1


def test_an_upload_that_was_cancelled_meanwhile_begins_again(through, proxy, big, gateway):
    interrupt(through, proxy, signal.SIGKILL, "big.iso", "photos/cancelled")
    through.fine("put", "big.iso", "photos/other")
    proxy.fault(Status(404, {"content-type": "application/problem+json"}, b'{"code": "upload-not-found"}'),
                method="GET", target=r"\?parts=")
    through.fine("put", "big.iso", "photos/cancelled")
    assert through.fine("cat", "photos/cancelled", text=False) == BODY


@pytest.mark.parametrize("status", [501, 404, 405, 400])
def test_a_bucket_without_parts(through, proxy, big, status):
    for name in ("b.iso", "c.iso"):
        (through.home / name).write_bytes(BODY)
    proxy.fault(Status(status, {"content-type": "application/problem+json"}, b'{"code": "not-implemented"}'),
                method="POST", times=None)
    through.fine("put", "-j", "2", "big.iso", "b.iso", "c.iso", f"photos/without/{status}/")
    # The first two begin at the same time.
    assert len(proxy.sent("POST")) <= 2 and proxy.sent("PATCH")
    assert through.fine("cat", f"photos/without/{status}/c.iso", text=False) == BODY


def test_a_file_that_changes(through, proxy, big, sessions):
    held = proxy.fault(StallRequest(), method="PUT", skip=1)
    running = through.start("put", "big.iso", "photos/changing", stderr=-1)
    wait_until(lambda: len(parts(proxy)) > 1, what="some parts")
    with open(big, "r+b") as file:
        file.write(b"changed")
    held.released.set()
    assert running.wait(60) == 5 and b"has changed" in running.stderr.read()
    assert sessions() == 0 and not through.states()


def test_a_denied_part(through, proxy, big, sessions):
    proxy.fault(Status(403, {"content-type": "application/problem+json"}, b'{"code": "denied"}'),
                method="PUT", times=None, skip=2)
    assert through.run("put", "big.iso", "photos/denied")[0] == 4
    assert sessions() == 0 and not through.states()


def test_faults_on_the_way(through, proxy, big):
    proxy.fault(Reset(), method="POST", target=r"\?parts$")
    proxy.fault(Reset(after=MEBIBYTE), method="PUT")
    proxy.fault(Reset(after=None), method="PUT")
    proxy.fault(Status(503), method="PUT")
    proxy.fault(Status(429, {"retry-after": "1"}), method="PUT")
    proxy.fault(Reset(after=None), method="POST", target=r"\?parts=.")
    through.fine("put", "big.iso", "photos/faults")
    assert through.fine("cat", "photos/faults", text=False) == BODY
    assert len(parts(proxy)) == COUNT + 4


def test_without_a_state_directory(through, proxy, big, sessions):
    proxy.fault(StallRequest(), method="PUT", times=None, skip=1)
    running = through.start("put", "big.iso", "photos/stateless", environment={"HOME": "/proc/none"}, stderr=-1)
    wait_until(lambda: len(parts(proxy)) > 1, what="some parts")
    running.send_signal(signal.SIGTERM)
    assert running.wait(20) == 143 and sessions() == 0


def test_kills_of_the_gateway(client, launch):
    gateway = launch()
    (client.home / "big.iso").write_bytes(BODY)
    environment = {"SLUICE_URL": gateway.url("")}
    running = client.start("put", "big.iso", "photos/killed", environment=environment)
    wait_until(lambda: client.states() or running.poll() is not None, what="the beginning")
    for _ in range(2):
        gateway.stop(signal.SIGKILL)
        gateway.start()
    assert running.wait(60) == 0
    assert client.fine("cat", "photos/killed", text=False, environment=environment) == BODY
