"""Interruptions: kills of the client and of the gateway, faults on the way. No wrong file, and little is sent twice."""

import os
import random
import signal
import time

import pytest

from faults import Alter, Break, Reset, Status
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


def test_memory_does_not_grow_with_the_file(client, tmp_path):
    """64 MiB for the client, with 256 MiB up and down."""
    with open(client.home / "large.bin", "wb") as file:
        file.truncate(256 * MEBIBYTE)
    for arguments in (["put", "large.bin", "photos/large"], ["get", "photos/large", "back.bin"],
                      ["cp", "photos/large", "sluice://other/large"]):
        running, most = client.start(*arguments), 0
        while running.poll() is None:
            most = max([most, *(int(line.split()[1]) for line in open(f"/proc/{running.pid}/status")
                                if line.startswith("VmHWM"))])
            time.sleep(0.01)
        assert running.returncode == 0 and 0 < most <= 64 * 1024, (arguments, most)
