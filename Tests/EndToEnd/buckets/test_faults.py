"""After a failure of the process, client, disk or directory, either the old or the new object is stored.

KILLS sets the rounds of the storm (12 here; 50 and more are for a night).
"""

import base64
import contextlib
import hashlib
import json
import os
import random
import re
import signal
import threading
import time

import pytest

import http2_peer as http2
import raw
import wire as wire_client
from directory import content, exchange, leftovers, request
from program import descriptors, wait_until

KILLS = int(os.environ.get("KILLS", "12"))
SIZES = [0, 1, 100, 4096, 4097, 20_000, 65_536, 65_537, 200_000, 700_000]


class Writer(threading.Thread):
    """Writes its own names in turn, and records acknowledged writes."""

    def __init__(self, port, number, known):
        super().__init__()
        self.port, self.number, self.known, self.stop, self.count = port, number, known, False, 0
        self.random = random.Random(number * 1000 + len(known))

    def run(self):
        while not self.stop:
            self.count += 1
            name = f"storm/{self.number}/{self.random.randrange(6)}"
            before = self.known.get(name, [None])
            if self.random.random() < 0.25:
                body, response = None, exchange(self.port, request("DELETE", name))
                acknowledged = response is not None and response.status in (204, 404)
            else:
                body = content(self.random.random(), self.random.choice(SIZES))
                response = exchange(self.port, request("PUT", name, body))
                acknowledged = response is not None and response.status in (200, 201)
            assert acknowledged or response is None, (response.status, response.body)
            # A write without acknowledgement is either complete or did not happen.
            self.known[name] = [body] if acknowledged else [*before, body]
            if not acknowledged:
                return


def check(server, known):
    client = wire_client.Wire(server)
    for name, candidates in known.items():
        response = exchange(server.http, request("GET", name))
        got = None if response.status == 404 else response.body
        assert response.status in (200, 404) and got in candidates, (
            name, response.status, len(response.body), [None if c is None else len(c) for c in candidates])
        known[name] = [got]
        if got is not None:
            digest = "".join(re.findall("md5=:(.*?):", response.fields["repr-digest"]))
            assert hashlib.md5(got).digest() == base64.b64decode(digest)
    names = {item["fullPath"] for item in client.call("GET", "/b/photos/o?prefix=storm/").json["items"]}
    assert names == {name for name, [body] in known.items() if body is not None}


def test_killed_in_a_storm_of_writes(launch, capsys):
    server = launch(threads=2)
    known = [{} for _ in range(8)]
    written, starts = 0, []
    for round in range(KILLS):
        writers = [Writer(server.http, number, known[number]) for number in range(8)]
        for writer in writers:
            writer.start()
        target = 20 + random.Random(round).randrange(150)
        wait_until(lambda: sum(writer.count for writer in writers) >= target or not any(w.is_alive() for w in writers))
        server.process.send_signal(signal.SIGKILL)
        for writer in writers:
            writer.stop = True
            writer.join()
        server.process.wait()
        server.log.close()
        written += sum(writer.count for writer in writers)
        begin = time.monotonic()
        server.start()
        starts.append(time.monotonic() - begin)
        check(server, {name: candidates for part in known for name, candidates in part.items()})
        # Record the contents that the check found for the next round.
        for part in known:
            for name in part:
                response = exchange(server.http, request("GET", name))
                part[name] = [None if response.status == 404 else response.body]
        assert leftovers(server.directory / "photos") == []
    assert server.stop() == 0
    assert leftovers(server.directory / "photos") == []
    with capsys.disabled():
        print(f"\n  {KILLS} kills, {written} writes, starts {min(starts) * 1000:.0f}-{max(starts) * 1000:.0f} ms", end="")


# Clients that disconnect


def staged(server, upstream):
    """Hidden remains of uploads; Google's sessions expire by themselves."""
    if upstream is None:
        return list((server.directory / "photos" / "staging").iterdir())
    return upstream.uploads(server.bucket) if upstream.kind == "s3" else 0


def gone(server, name):
    return [line for line in server.output().splitlines() if f"o/{name}\"" in line and '"status":499' in line]


@pytest.mark.parametrize("protocol", ["http1", "h2c", "tls"])
def test_interrupted_uploads(server, http1, folder, protocol, upstream):
    name, body = f"{folder}/o", content("cut", 400_000)
    before = http1.stored(name, b"old")
    for sent in (0, 1000, 60_000):
        if protocol == "http1":
            connection = raw.connect(("127.0.0.1", server.http))
            connection.sendall(request("PUT", name, body)[:-len(body)] + body[:sent])
            connection.close()
        else:
            peer = http2.Peer(("127.0.0.1", server.https if protocol == "tls" else server.http), tls=protocol == "tls")
            peer.handshake()
            # Once by RST_STREAM, once by closing.
            for stream in (1, 3):
                peer.request(stream=stream, method="PUT", path=f"/b/photos/o/{name}",
                             extra=[("content-length", str(len(body)))], end=False)
                for start in range(0, sent // 2, 15_000):
                    peer.send(http2.DATA, stream=stream, payload=body[start:min(start + 15_000, sent // 2)])
                if stream == 1:
                    peer.send(http2.RST_STREAM, stream=1, payload=http2.word(http2.CANCEL))
                    peer.alive()
            peer.close()
    wait_until(lambda: len(gone(server, name)) >= 3, what="499 in the log")
    wait_until(lambda: not staged(server, upstream), what="an empty staging area")
    assert http1.metadata(name) == before and http1.get(name).body == b"old"


@pytest.mark.parametrize("protocol", ["http1", "h2c", "tls"])
def test_interrupted_downloads(server, http1, folder, protocol):
    name = f"{folder}/o"
    http1.stored(name, content("down", 20 << 20))
    if protocol == "http1":
        connection = raw.connect(("127.0.0.1", server.http), receive_buffer=8192)
        connection.sendall(request("GET", name))
        connection.recv(1000)
        connection.close()
    else:
        peer = http2.Peer(("127.0.0.1", server.https if protocol == "tls" else server.http), tls=protocol == "tls")
        peer.handshake()
        peer.request(path=f"/b/photos/o/{name}")
        peer.until(lambda frame: frame.type == http2.DATA)
        peer.close()
    [line] = wait_until(lambda: gone(server, name), what="499 in the log")
    assert '"method":"GET"' in line and '"level":"warning"' in line
    assert len(http1.get(name, "Range: bytes=0-9").body) == 10


@pytest.mark.parametrize("protocol", ["http1", "h2c", "tls"])
def test_a_truncated_blob_is_a_server_error(launch, protocol):
    server = launch()
    wire_client.Wire(server).stored("short", content("short", 20 << 20))
    [blob] = [path for path in (server.directory / "photos" / "blobs").rglob("*") if path.is_file()]
    if protocol == "http1":
        connection = raw.connect(("127.0.0.1", server.http), receive_buffer=8192)
        connection.sendall(request("GET", "short"))
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        os.truncate(blob, 1 << 20)
        taken = 0
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(1 << 16):
                taken += len(more)
        assert taken < 20 << 20
        connection.close()
    else:
        peer = http2.Peer(("127.0.0.1", server.https if protocol == "tls" else server.http), tls=protocol == "tls")
        peer.handshake()
        peer.request(path="/b/photos/o/short")
        peer.until(lambda frame: frame.type == http2.DATA)
        os.truncate(blob, 10_000)
        # The window covers the whole body, so that only the source can end the download.
        for stream in (0, 1):
            peer.send(http2.WINDOW_UPDATE, stream=stream, payload=http2.word(30 << 20))
        ended = peer.until(lambda frame: frame.type == http2.RST_STREAM)
        assert ended.payload == http2.word(http2.INTERNAL_ERROR)
        peer.close()
    [line] = wait_until(lambda: [line for line in server.output().splitlines() if '"method":"GET"' in line],
                        what="the access line")
    line = json.loads(line)
    assert (line["status"], line["level"], line["code"]) == (200, "error", "internal"), line
    assert "shorter than its object's size" in line["cause"]
    assert server.metrics()['sluice_requests_total{bucket="photos",operation="get",status="5xx"}'] == 1


def test_closed_connections_leave_no_descriptors(launch):
    server = launch()
    client = wire_client.Wire(server)
    client.stored("o", content("fd", 4 << 20))
    before = wait_until(lambda: descriptors(server))
    for number in range(100):
        connection = raw.connect(("127.0.0.1", server.http), receive_buffer=4096)
        connection.sendall(request("GET", "o") if number % 2 else request("PUT", "p", b"x" * 200_000)[:150_000])
        if number % 2:
            connection.recv(100)
        connection.close()
    wait_until(lambda: descriptors(server) <= before, what="as many descriptors as before")
    assert staged(server, None) == []
