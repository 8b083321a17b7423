"""Uploads that nobody can continue leave no session at the gateway, where it would count against the caller."""

import random
import signal

import pytest

from faults import Reset, StallRequest, Status
from program import wait_until

MEBIBYTE = 1 << 20
BODY = random.Random(2).randbytes(20 * MEBIBYTE)


@pytest.fixture
def sessions(gateway):
    """Returns the number of sessions that were not there before the test."""
    def count():
        return sum(value for name, value in gateway.metrics().items() if name.startswith("sluice_uploads_open{"))

    before = count()
    return lambda: count() - before


def start_stream(client, proxy, target, **options):
    """Begins an upload from standard input, which stays open."""
    running = client.start("put", "-", target, stdin=-1, stderr=-1, **options)
    sent = len(proxy.sent("PATCH"))
    running.stdin.write(BODY)
    running.stdin.flush()
    wait_until(lambda: len(proxy.sent("PATCH")) > sent and client.states(), what="a chunk")
    return running


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_stream_is_removed(through, proxy, sessions, how):
    running = start_stream(through, proxy, "photos/stream")
    running.send_signal(how)
    assert running.wait(20) == 128 + how and running.stderr.read() == b"sluice: interrupted.\n"
    assert sessions() == 0 and not through.states() and through.run("stat", "photos/stream")[0] == 3


@pytest.mark.parametrize("verb", ["cp", "mv"])
def test_an_interrupted_copy_is_removed(through, proxy, gateway, sessions, verb):
    (through.home / "body").write_bytes(BODY)
    for number in range(3):
        through.fine("put", "body", f"photos/{verb}/{number}")
    proxy.fault(StallRequest(), method="PATCH", times=None, skip=4)
    before = len(proxy.sent("PATCH"))
    source = f"{gateway.url('')}/b/photos/o/{verb}"
    running = through.start(verb, "-R", source, f"sluice://other/{verb}", stderr=-1)
    wait_until(lambda: len(proxy.sent("PATCH")) >= before + 7, what="three copies")
    running.send_signal(signal.SIGINT)
    assert running.wait(20) == 130 and running.stderr.read() == b"sluice: interrupted.\n"
    assert sessions() == 0 and not through.states()


def test_the_second_interruption_ends_at_once(through, proxy, sessions):
    running = start_stream(through, proxy, "photos/twice")
    stalled = proxy.fault(StallRequest(), method="DELETE", times=None)
    running.send_signal(signal.SIGINT)
    wait_until(lambda: proxy.sent("DELETE"), what="the removal")
    running.send_signal(signal.SIGINT)
    assert running.wait(3) == 130
    stalled.released.set()
    proxy.clear()
    # What it could not remove is removed before the next transfer to this target.
    assert sessions() == 1 and through.states()
    through.fine("put", "-", "photos/twice", given="small")
    assert sessions() == 0 and not through.states()


def test_the_removal_has_a_limit(through, proxy):
    running = start_stream(through, proxy, "photos/limit")
    proxy.fault(StallRequest(), method="DELETE", times=None)
    running.send_signal(signal.SIGTERM)
    assert running.wait(15) == 143 and proxy.sent("DELETE")


@pytest.mark.parametrize("next_one", ["put", "stream", "cp"])
def test_a_killed_stream_is_removed_at_the_next_start(through, proxy, sessions, next_one):
    (through.home / "file").write_bytes(b"small")
    through.fine("put", "file", "photos/source")
    running = start_stream(through, proxy, "photos/killed")
    running.kill()
    running.wait()
    assert sessions() == 1 and through.states()
    through.fine("put", "file", "photos/elsewhere")
    assert sessions() == 1
    arguments = {"put": ["put", "file"], "stream": ["put", "-"], "cp": ["cp", "photos/source"]}[next_one]
    through.fine(*arguments, "sluice://photos/killed", given="small")
    assert sessions() == 0 and not through.states() and through.fine("cat", "photos/killed") == "small"


def test_a_running_stream_is_not_removed_by_another(through, proxy, sessions):
    running = start_stream(through, proxy, "photos/shared")
    through.fine("put", "-", "photos/shared", given="small")
    running.stdin.close()
    assert running.wait(20) == 0 and sessions() == 0 and not through.states()
    assert through.fine("cat", "photos/shared", text=False) == BODY


def test_a_file_without_a_state_directory(through, proxy, sessions):
    (through.home / "body").write_bytes(BODY)
    proxy.fault(StallRequest(), method="PATCH", times=None, skip=1)
    running = through.start("put", "body", "photos/stateless", environment={"HOME": "/proc/none"}, stderr=-1)
    wait_until(lambda: len(proxy.sent("PATCH")) > 1, what="some chunks")
    running.send_signal(signal.SIGTERM)
    assert running.wait(20) == 143 and sessions() == 0


def test_an_upload_that_begins_again_removes_the_first(through, proxy, sessions):
    (through.home / "body").write_bytes(BODY)
    proxy.fault(Reset(), method="PATCH", times=None, skip=2)
    running = through.start("put", "body", "photos/again", stderr=-1)
    wait_until(lambda: len(proxy.sent("PATCH")) > 2, what="some chunks")
    running.kill()
    running.wait()
    proxy.clear()
    assert sessions() == 1
    through.fine("put", "--content-type", "text/x-b", "body", "photos/again")
    assert sessions() == 0 and not through.states()


def test_a_denied_upload_is_removed(through, proxy, sessions):
    (through.home / "body").write_bytes(BODY)
    proxy.fault(Status(403, {"content-type": "application/problem+json"}, b'{"code": "denied"}'),
                method="PATCH", times=None, skip=2)
    assert through.run("put", "body", "photos/denied")[0] == 4
    assert sessions() == 0 and not through.states()
