"""Receive windows of uploads over HTTP/2: they follow the path and the budget of the loop."""

import threading
import time

import upstreams
from fault_proxy import FaultProxy
from faults import Fault
from program import wait_until
from raw import (
    ACK, DATA, END_STREAM, GOAWAY, HEADERS, HTTP2, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame)
from rulesets import rules
from wire import Wire

MIB = 1 << 20
BODY = 8 * MIB
FRAME = bytes(16384)


class Upload:
    """An upload on a connection of its own, whose client acknowledges the SETTINGS after a round trip, or not at all."""

    def __init__(self, server, name, size=BODY, round_trip=None):
        self.size = size
        self.peer = HTTP2(("127.0.0.1", server.http))
        if round_trip:
            time.sleep(round_trip)
            self.peer.acknowledge()
        self.peer.request(1, b"PUT", b"/b/photos/o/" + name, (b"content-length", b"%d" % size), end=False)
        self.peer.send(frame(DATA, 0, 1, FRAME))
        self.sent = len(FRAME)
        #: What the server permits to send in all, by stream; 0 is the connection.
        self.window = {0: 65_535, 1: 65_535}

    def permits(self, count, timeout=10):
        """Waits until the windows of the stream and the connection allow `count` bytes in total."""
        while min(self.window.values()) < count:
            kind, _, stream, payload = self.peer.next(timeout)
            assert kind not in (GOAWAY, RST_STREAM, HEADERS), (kind, payload, self.sent, self.window)
            if kind == WINDOW_UPDATE:
                self.window[stream] += int.from_bytes(payload)

    def complete(self):
        while self.sent < self.size:
            self.permits(min(self.sent + len(FRAME), self.size))
            self.sent += len(FRAME)
            assert self.peer.send(frame(DATA, END_STREAM if self.sent == self.size else 0, 1, FRAME))
        found = self.peer.until(HEADERS, RST_STREAM, GOAWAY)
        assert found[0] == HEADERS, (found, self.sent, self.window)


def test_a_long_path_opens_the_window_for_the_whole_body(launch):
    server = launch()
    upload = Upload(server, b"long")
    with upload.peer:
        # The acknowledgement is missing for as long as it would take on a long path.
        upload.permits(BODY - MIB)
        upload.peer.send(frame(SETTINGS, ACK, 0))
        upload.complete()


def test_a_denied_upload_opens_no_window(launch, tmp_path):
    (tmp_path / "storage.rules").write_text(rules("match /none/{n} { allow write; }"))
    server = launch(rules=tmp_path / "storage.rules")
    upload = Upload(server, b"denied", round_trip=0.1)
    with upload.peer:
        while (found := upload.peer.next())[0] != RST_STREAM:
            if found[0] == WINDOW_UPDATE:
                upload.window[found[2]] += int.from_bytes(found[3])
        assert upload.window[1] < 256 * 1024, upload.window


def test_uploads_share_what_the_loop_may_promise(launch):
    # Windows promise 8 MiB.
    server = launch(extra="limits: { receiveBudget: 64KiB }\n")
    first, second = Upload(server, b"first"), Upload(server, b"second")
    with first.peer, second.peer:
        first.permits(BODY - MIB)
        second.permits(3 * MIB)
        # What was permitted stays so.
        first.complete()
        second.complete()
    third = Upload(server, b"third")
    with third.peer:
        third.permits(BODY - MIB)


def test_an_upload_that_sends_nothing_loses_its_window(launch):
    server = launch(extra="limits: { receiveBudget: 64KiB }\n")
    idle = Upload(server, b"idle")

    def gets_all():
        other = Upload(server, b"other")
        with other.peer:
            try:
                other.permits(BODY - MIB, timeout=0.2)
            except TimeoutError:
                return False
            return True

    with idle.peer:
        idle.permits(BODY - MIB)
        wait_until(gets_all, what="the whole window")
        idle.complete()


class Pause(Fault):
    """Reads nothing of the request's body until `released` is set."""

    def __init__(self):
        self.released = threading.Event()

    def before(self, connection, request):
        assert self.released.wait(60)
        return False


def test_a_large_window_whose_sink_stalls(launch, tmp_path):
    """The connection is not read while its sink takes nothing, and is read again afterwards. Others are served meanwhile."""
    model = upstreams.GCSModel(tmp_path)
    proxy = FaultProxy(model.port)
    server = launch(buckets=f"  photos: {{ {proxy.store(model)} }}\n")
    pause = proxy.fault(Pause(), method="PUT")
    upload = Upload(server, b"stalled", 24 * MIB)
    with upload.peer:
        done = threading.Thread(target=upload.complete)
        done.start()
        before = server.status("VmRSS")
        wait_until(lambda: any(request.fault is pause for request in proxy.requests), what="the request")
        other = Upload(server, b"other", MIB)
        with other.peer:
            other.complete()
        assert done.is_alive()
        assert server.status("VmRSS") < before + 16 * 1024
        pause.released.set()
        done.join(60)
        assert not done.is_alive()
    assert Wire(server).call("HEAD", "/b/photos/o/stalled")["content-length"] == str(24 * MIB)
    proxy.stop()
    model.stop()
