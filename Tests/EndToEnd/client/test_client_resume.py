"""Interruptions: kills of the client and of the gateway, faults on the way. No wrong file, and little is sent twice."""

import json
import os
import random
import re
import signal
import time

import pytest

from faults import Alter, Break, Fault, Reset, StallRequest, Status
from program import wait_until

MEBIBYTE = 1 << 20
CHUNK = 4 * MEBIBYTE


def received(proxy, method, target=""):
    return sum(request.received for request in proxy.sent(method, target))


@pytest.fixture
def body(through):
    body = random.Random(1).randbytes(40 * MEBIBYTE)
    (through.home / "big.bin").write_bytes(body)
    return body


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_upload_continues(through, proxy, body, how):
    running = through.start("put", "big.bin", "photos/resumed/", stderr=-1)
    wait_until(lambda: received(proxy, "PATCH") > 12 * MEBIBYTE and through.states(), what="some chunks")
    running.send_signal(how)
    assert running.wait(20) == (130 if how == signal.SIGINT else -9)
    first = received(proxy, "PATCH")
    assert first < len(body)
    through.fine("put", "big.bin", "photos/resumed/")
    # At most one chunk is sent twice.
    assert received(proxy, "PATCH") <= len(body) + CHUNK
    assert through.fine("cat", "photos/resumed/big.bin", text=False) == body
    assert not through.states()


def test_a_changed_file_begins_again(through, proxy, body):
    running = through.start("put", "big.bin", "photos/rewritten", stderr=-1)
    wait_until(lambda: received(proxy, "PATCH") > 12 * MEBIBYTE and through.states(), what="some chunks")
    running.kill()
    running.wait()
    changed = body[::-1]
    (through.home / "big.bin").write_bytes(changed)
    through.fine("put", "big.bin", "photos/rewritten")
    assert through.fine("cat", "photos/rewritten", text=False) == changed


class Delay(Fault):
    """Holds a request back."""

    def before(self, connection, request):
        time.sleep(2)
        return False


def interrupt_upload(through, proxy, *options, chunks=2):
    proxy.fault(Reset(), method="PATCH", times=None, skip=chunks)
    running = through.start("put", *options, stderr=-1)
    wait_until(lambda: len(proxy.sent("PATCH")) > chunks, what="some chunks")
    running.kill()
    running.wait()
    proxy.clear()


def test_other_options_begin_again(through, proxy, body):
    interrupt_upload(through, proxy, "--content-type", "text/x-a", "big.bin", "photos/options")
    through.fine("put", "--content-type", "text/x-b", "--meta", "k=v", "big.bin", "photos/options")
    [found] = through.lines("stat", "photos/options")
    assert (found["contentType"], found["customMetadata"], found["size"]) == ("text/x-b", {"k": "v"}, len(body))


def test_the_rate_is_that_of_what_is_sent_now(through, proxy, body):
    interrupt_upload(through, proxy, "big.bin", "photos/rate", chunks=8)
    proxy.fault(Delay(), method="PATCH")
    status, shown = through.on_terminal("put", "big.bin", "photos/rate", columns=100)
    rate, unit = re.findall(r"([0-9.]+) (B|KiB|MiB)/s", shown)[-1]
    # 8 MiB are left.
    assert status == 0 and (unit != "MiB" or float(rate) <= 4)


def test_a_file_that_changes(through, proxy, body):
    held = proxy.fault(StallRequest(), method="PATCH", skip=1)
    running = through.start("put", "big.bin", "photos/changing", stderr=-1)
    wait_until(lambda: len(proxy.sent("PATCH")) > 1, what="some chunks")
    with open(through.home / "big.bin", "r+b") as file:
        file.write(b"changed")
    held.released.set()
    assert running.wait(60) == 5 and b"has changed" in running.stderr.read()


def test_state_of_others_is_not_used(through, body):
    state = through.home / ".local/state/sluice"
    state.mkdir(parents=True)
    (state / "old.json").write_text("{}")
    os.utime(state / "old.json", (1, 1))
    state.chmod(0o777)
    status, _, err = through.run("put", "big.bin", "photos/state")
    assert status == 0 and "this user alone" in err and (state / "old.json").exists()
    # What nobody has continued for a month is removed.
    state.chmod(0o700)
    through.fine("put", "big.bin", "photos/state")
    assert not through.states()


def test_ignored_signals_stay_ignored(through, proxy, body):
    through.fine("put", "big.bin", "photos/ignored")
    proxy.fault(Reset(), method="GET", target="/o/ignored$", times=None, skip=2)
    running = through.start("get", "photos/ignored", "back.bin",
                            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_until(lambda: len(proxy.sent("GET", "/o/ignored$")) > 2, what="some ranges")
    running.send_signal(signal.SIGHUP)
    proxy.clear()
    assert running.wait(60) == 0 and (through.home / "back.bin").read_bytes() == body


def test_only_what_continues_says_so(through, proxy, body):
    running = through.start("put", "-", "photos/stream", stdin=-1, stderr=-1)
    running.stdin.write(body[:2 * CHUNK])
    running.stdin.flush()
    wait_until(lambda: proxy.sent("PATCH"), what="a chunk")
    running.send_signal(signal.SIGINT)
    assert running.wait(20) == 130 and running.stderr.read() == b"sluice: interrupted.\n"


def test_a_download_without_hashes_begins_again(through, proxy, body):
    def change(status, fields, body):
        return status, fields, json.dumps({key: value for key, value in json.loads(body).items()
                                           if key not in ("crc32c", "md5Hash")}).encode()

    through.fine("put", "big.bin", "photos/unverified")
    proxy.fault(Alter(change), method="GET", target="metadata", times=None)
    proxy.fault(Reset(), method="GET", target="/o/unverified$", times=None, skip=3)
    running = through.start("get", "photos/unverified", "back.bin", stderr=-1)
    wait_until(lambda: len(proxy.sent("GET", "/o/unverified$")) > 3, what="some ranges")
    running.kill()
    running.wait()
    [part] = through.home.glob(".sluice-*")
    part.write_bytes(bytes(part.stat().st_size))
    proxy.faults.pop()
    through.fine("get", "photos/unverified", "back.bin")
    assert (through.home / "back.bin").read_bytes() == body


@pytest.mark.parametrize("jobs, method", [(1, "PATCH"), (4, "PUT")])
def test_a_file_that_was_changed_secretly_begins_again(through, proxy, jobs, method):
    """Rewritten in place, with the size and the time as before."""
    path = through.home / "secret.bin"
    path.write_bytes(b"a" * (70 << 20))
    running = through.start("put", "-j", jobs, "secret.bin", "photos/secret", stderr=-1)
    wait_until(lambda: received(proxy, method) > 12 * MEBIBYTE and through.states(), what="some chunks")
    running.kill()
    running.wait()
    before = path.stat()
    with open(path, "r+b") as file:
        file.write(b"b" * (70 << 20))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    through.fine("put", "-j", jobs, "secret.bin", "photos/secret")
    assert through.fine("cat", "photos/secret", text=False) == path.read_bytes()


def test_a_last_piece_that_was_shortened_is_sent_again(through, proxy, body):
    """The proxy cuts the body and declares the shorter length."""
    proxy.fault(Status(400, {"content-type": "application/problem+json"}, b'{"code": "upload-length-mismatch"}'),
                method="PATCH", target="/b/", skip=1)
    through.fine("put", "big.bin", "photos/shortened")
    assert through.fine("cat", "photos/shortened", text=False) == body


def test_a_deletion_that_was_repeated_is_no_failure(through, proxy):
    through.fine("put", "-", "photos/twice/a", given="a")
    proxy.fault(Status(404, {"content-type": "application/problem+json"}, b'{"code": "object-not-found"}'),
                method="DELETE", target="/o/twice/a$")
    through.fine("rm", "-R", "photos/twice/")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_download_continues(through, proxy, body, how):
    through.fine("put", "big.bin", "photos/down")
    # Its end is never reached.
    proxy.fault(Reset(), method="GET", target="/o/down$", times=None, skip=3)
    running = through.start("get", "photos/down", "back.bin", stderr=-1)
    wait_until(lambda: len(proxy.sent("GET", "/o/down$")) > 3, what="some ranges")
    running.send_signal(how)
    running.wait(20)
    assert not (through.home / "back.bin").exists()
    proxy.clear()
    before = len(proxy.sent("GET", "/o/down$"))
    through.fine("get", "photos/down", "back.bin")
    assert (through.home / "back.bin").read_bytes() == body
    assert proxy.sent("GET", "/o/down$")[before].fields["range"] == f"bytes={3 * CHUNK}-{4 * CHUNK - 1}"
    assert not through.states() and not list(through.home.glob(".sluice-*"))


def test_a_replaced_object_is_downloaded_from_its_beginning(through, proxy, body):
    through.fine("put", "big.bin", "photos/replaced")
    proxy.fault(Reset(), method="GET", target="/o/replaced$", times=None, skip=3)
    running = through.start("get", "photos/replaced", "back.bin", stderr=-1)
    wait_until(lambda: len(proxy.sent("GET", "/o/replaced$")) > 3, what="some ranges")
    running.kill()
    running.wait()
    proxy.clear()
    (through.home / "big.bin").write_bytes(body[::-1])
    through.fine("put", "big.bin", "photos/replaced")
    through.fine("get", "photos/replaced", "back.bin")
    assert (through.home / "back.bin").read_bytes() == body[::-1]


def test_kills_of_the_gateway(client, launch, body, through):
    gateway = launch()
    (client.home / "big.bin").write_bytes(body)
    environment = {"SLUICE_URL": gateway.url("")}
    running = client.start("put", "big.bin", "photos/killed", environment=environment)
    for _ in range(2):
        wait_until(lambda: client.states() or running.poll() is not None, what="the first chunk")
        if running.poll() is not None:
            break
        gateway.stop(signal.SIGKILL)
        gateway.start()
    assert running.wait(60) == 0
    assert client.fine("cat", "photos/killed", text=False, environment=environment) == body


@pytest.mark.parametrize("fault", [Reset(), Break(100), Status(503), Reset(after=1000)])
def test_faults_on_the_way(through, proxy, fault):
    small = os.urandom(5 * MEBIBYTE)
    (through.home / "small.bin").write_bytes(small)
    for method in ("PUT", "PATCH", "GET"):
        proxy.fault(fault, method=method, target="/b/")
    through.fine("put", "small.bin", "photos/faults")
    through.fine("get", "photos/faults", "back.bin")
    assert (through.home / "back.bin").read_bytes() == small
    for method in ("PUT", "PATCH", "GET"):
        proxy.fault(fault, method=method, target="/b/")
    assert through.run("put", "-", "photos/stream", given=small, text=False)[0] == 0
    through.fine("cp", "photos/stream", "sluice://other/stream")
    assert through.fine("cat", "sluice://other/stream", text=False) == small


def test_damaged_downloads_are_rejected(through, proxy):
    through.fine("put", "-", "photos/damaged", given="a" * 1000)
    proxy.fault(Alter(lambda status, fields, body: (status, fields, body.replace(b"aaaa", b"abaa", 1))),
                method="GET", target="/o/damaged$", times=None)
    status, _, err = through.run("get", "photos/damaged", "back.txt")
    assert status == 5 and err and not (through.home / "back.txt").exists()
    assert not list(through.home.glob(".sluice-*"))


def peak(running):
    """The most memory that the program had, in KiB."""
    most = 0
    while running.poll() is None:
        most = max([most, *(int(line.split()[1]) for line in open(f"/proc/{running.pid}/status")
                            if line.startswith("VmHWM"))])
        time.sleep(0.01)
    assert running.returncode == 0
    return most


def test_memory_does_not_grow_with_the_jobs(client):
    (client.home / "many").mkdir()
    for number in range(64):
        with open(client.home / "many" / str(number), "wb") as file:
            file.truncate(2 * MEBIBYTE)
    client.fine("put", "-R", "many", "photos/many", "-j", "64")
    assert 0 < peak(client.start("cp", "-R", "photos/many", "sluice://other/many", "-j", "64")) <= 80 * 1024


def test_memory_does_not_grow_with_the_file(client, tmp_path):
    """64 MiB for the client, with 256 MiB up and down."""
    with open(client.home / "large.bin", "wb") as file:
        file.truncate(256 * MEBIBYTE)
    for arguments in (["put", "large.bin", "photos/large"], ["get", "photos/large", "back.bin"],
                      ["cp", "photos/large", "sluice://other/large"]):
        assert 0 < peak(client.start(*arguments)) <= 64 * 1024, arguments
