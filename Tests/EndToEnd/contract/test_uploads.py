"""The HTTP contract of uploads: digests, limits, 100-continue, interruptions."""

import base64
import hashlib
import socket
import threading

import pytest

import raw
import wire as wire_client
from digests import crc32c, md5
from program import wait_until

BODY = b"Quercus robur, thirty metres tall.\n"
LARGE = hashlib.shake_256(b"large").digest(300_000)


def digest(name, body):
    return base64.b64encode(hashlib.new(name, body).digest()).decode()


def right(body):
    crc = [("Content-Digest", f"crc32c=:{crc32c(body)}:")] if len(body) < 10_000 else []
    return [
        ("Content-MD5", md5(body)), *crc,
        ("Content-Digest", f"md5=:{md5(body)}:"), ("Repr-Digest", f"md5=:{md5(body)}:"),
        ("Content-Digest", f"sha-256=:{digest('sha256', body)}:"),
        ("Repr-Digest", f"sha-256=:{digest('sha256', body)}:"),
        ("Content-Digest", f"sha-512=:{digest('sha512', body)}:"),
        ("Repr-Digest", f"sha-512=:{digest('sha512', body)}:, unknown=:AAAA:"),
        ("Content-Digest", f"sha-256=:{digest('sha256', body)}:, md5=:{md5(body)}:"),
        ("Content-Digest", "unixsum=:AAAA:"),
    ]


@pytest.mark.parametrize("body", [b"", BODY, LARGE], ids=["empty", "small", "large"])
def test_right_digests(wire, folder, body):
    for field in right(body):
        assert wire.put(f"{folder}/o", body, field).status in (200, 201), field
    assert wire.get(f"{folder}/o").body == body


@pytest.mark.parametrize("body", [b"", BODY, LARGE], ids=["empty", "small", "large"])
def test_wrong_digests_store_nothing(wire, folder, body):
    for field in right(body + b"other"):
        if "unixsum" in field[1]:
            continue
        wire.put(f"{folder}/new", body, field).is_problem("checksum-mismatch")
    wire.missing(f"{folder}/new")
    before = wire.stored(f"{folder}/old", b"old")
    for field in right(body + b"other")[:-1]:
        wire.put(f"{folder}/old", body, field).is_problem("checksum-mismatch")
    assert wire.metadata(f"{folder}/old") == before and wire.get(f"{folder}/old").body == b"old"


def test_one_wrong_digest_among_right_ones(http1, folder):
    fields = [f"Content-MD5: {md5(BODY)}", f"Content-Digest: sha-256=:{digest('sha256', b'x')}:"]
    http1.put(f"{folder}/o", BODY, *fields).is_problem("checksum-mismatch")
    fields = [f"Content-MD5: {md5(BODY)}", f"Repr-Digest: md5=:{md5(b'x')}:"]
    http1.put(f"{folder}/o", BODY, *fields).is_problem("checksum-mismatch")
    http1.missing(f"{folder}/o")


@pytest.mark.parametrize("field", [
    "Content-MD5: short", "Content-MD5: AAAA", "Content-MD5: " + "00" * 16, "Content-Digest: sha-256",
    "Content-Digest: sha-256=AAAA", "Content-Digest: sha-256=:AAAA:", "Repr-Digest: sha-512=:not base64:",
    "Content-Digest: sha-256=:AAAA", "Content-MD5: AAAAAAAAAAAAAAAAAAAAAA", "Repr-Digest: md5=:AAAAAAAAAAAAAAAAAAAAAA:",
    "Content-Digest: =:AAAA:", "Content-Digest: md5=\"text\"",
])
def test_malformed_digests_are_not_ignored(http1, folder, field):
    http1.put(f"{folder}/o", BODY, field).is_problem("invalid-argument")
    http1.missing(f"{folder}/o")


@pytest.mark.parametrize("field", [
    "Cache-Control: " + "x" * 2049, "X-Object-Meta-: value",
])
def test_fields_that_can_not_be_returned(http1, folder, field):
    response = http1.put(f"{folder}/o", BODY, field)
    assert response.status == 400, response
    http1.missing(f"{folder}/o")


def test_a_duplicate_field(http1, folder):
    for field in ("Content-Type", "Content-Disposition", "X-Object-Meta-A"):
        http1.put(f"{folder}/o", BODY, (field, "text/a"), (field, "text/b")).is_problem("invalid-argument")
    json = http1.stored(f"{folder}/o", BODY, "Cache-Control: public", "Cache-Control: max-age=5")
    assert json["cacheControl"] == "public, max-age=5"


@pytest.fixture
def small(launch, tmp_path, store):
    """A server of a test's own whose objects have at most 100 KiB."""
    return launch(buckets=f"  photos: {{ {store(tmp_path / 's0', 'photos')}, maximumObjectSize: 100KiB }}\n")


def test_the_largest_object(small, upstream):
    for transport in wire_client.TRANSPORTS:
        client = wire_client.Wire(small, transport)
        assert client.put("fits", b"x" * 102_400).status in (200, 201)
        client.put("over", b"x" * 102_401).is_problem("payload-too-large")
        chunked = ["Transfer-Encoding: chunked"] if transport == "http1" else []
        client.call("PUT", "/b/photos/o/over", chunked, b"x" * 200_000).is_problem("payload-too-large")
        client.missing("over")
    assert upstream is not None or not files(small, "staging")


# 100-continue: the body is asked for only after the decision. Over HTTP/1.1, where it is a matter of octets.


def expecting(server, name, *fields, length=len(BODY)):
    connection = raw.connect(("127.0.0.1", server.http))
    head = [f"PUT /b/photos/o/{name} HTTP/1.1", "Host: a", "Expect: 100-continue", f"Content-Length: {length}", *fields]
    connection.sendall("\r\n".join(head).encode() + b"\r\n\r\n")
    return connection


def test_100_continue_and_then_the_response(server, folder):
    with expecting(server, f"{folder}/o", "Connection: close") as connection:
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        [response] = raw.responses(raw.read_to_end(connection))
        assert response.status == 201


REFUSALS = {
    "a bad name": ("a//b", [], 400), "a condition": ("{folder}/there", ["If-None-Match: *"], 412),
    "a missing object": ("{folder}/none", ["If-Match: *"], 412), "a range": ("{folder}/o", ["Content-Range: bytes 0-1/9"], 400),
    "a malformed digest": ("{folder}/o", ["Content-MD5: x"], 400), "metadata": ("{folder}/o", ["X-Object-Meta-A: " + "x" * 9000], 400),
    "a folder": ("{folder}/", [], 400),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_a_denied_upload_sends_no_body(server, http1, folder, why):
    name, fields, status = REFUSALS[why]
    http1.stored(f"{folder}/there")
    with expecting(server, name.format(folder=folder), *fields) as connection:
        first = connection.recv(65536)
        assert first.startswith(f"HTTP/1.1 {status} ".encode()), first


def test_a_rejected_size_sends_no_body(small):
    with expecting(small, "o", length=102_401) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_curl_gets_the_denial_without_sending(http1, folder):
    http1.stored(f"{folder}/o")
    response = http1.call("PUT", f"/b/photos/o/{folder}/o", ["If-None-Match: *", "Expect: 100-continue"], LARGE,
                          more=["-w", "%{stderr}%{size_upload}"])
    response.is_problem("precondition-failed")
    assert response.interim == []


# Interruptions


def files(server, part):
    root = server.directory / "photos" / part
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("sent", [0, 10, 100_000, 290_000])
def test_an_interrupted_upload_keeps_the_old_object(server, http1, folder, sent, upstream):
    name = f"{folder}/o"
    before = http1.stored(name, b"old")
    connection = raw.connect(("127.0.0.1", server.http))
    connection.sendall(f"PUT /b/photos/o/{name} HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n".encode())
    connection.sendall(LARGE[:sent])
    connection.close()
    wait_until(lambda: any(name in line and '"status":499' in line for line in server.output().splitlines()),
               what="a 499")
    if upstream is None:
        wait_until(lambda: not files(server, "staging"), what="an empty staging area")
    assert http1.metadata(name) == before and http1.get(name).body == b"old"


def test_a_download_has_the_bytes_of_one_version(server, http1, folder):
    body = hashlib.shake_256(b"begun").digest(8 << 20)
    name = f"{folder}/o"
    for end in (lambda: http1.stored(name, b"replaced"), lambda: http1.delete(name)):
        http1.put(name, body)
        connection = raw.connect(("127.0.0.1", server.http), receive_buffer=8192)
        connection.sendall(f"GET /b/photos/o/{name} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        taken = connection.recv(4096)
        end()
        taken += raw.read_to_end(connection, timeout=30)
        [response] = raw.responses(taken)
        assert response.body == body


def test_writers_of_one_name_take_turns(server, http1, folder):
    """Of twenty uploads that must each be the first, exactly one is."""
    name, statuses = f"{folder}/o", []

    def upload(number):
        with socket.create_connection(("127.0.0.1", server.http), 30) as connection:
            body = str(number).encode() * 5000
            connection.sendall(f"PUT /b/photos/o/{name} HTTP/1.1\r\nHost: a\r\nIf-None-Match: *\r\nConnection: close\r\n"
                               f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            statuses.append(raw.responses(raw.read_to_end(connection))[0].status)

    threads = [threading.Thread(target=upload, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [201] + [412] * 19
