"""Upload sessions: whose they are, what they may stage, and that nothing is lost when requests or processes end."""

import hashlib
import os
import random
import signal
import subprocess
import urllib.parse

import pytest

from program import BINARY, new_token, wait_until
from rulesets import rules
from secret_words import secret
from sessions import PARTIAL, Raw, Session, append, begin, complete, problem, received
from wire import Wire

DATA = hashlib.shake_256(b"sessions").digest(3_000_000)
INTEROP = ("Upload-Draft-Interop-Version", "8")


@pytest.fixture
def keyed(launch, tmp_path):
    """Starts a server with a key file: its sessions survive a restart."""
    def start(settings="", **options):
        done = subprocess.run([str(BINARY), "uploads", "new-key", "k1"], capture_output=True, text=True, check=True)
        file = tmp_path / "upload.keys"
        file.write_text(done.stdout)
        secret(done.stdout.split()[1])
        return launch(extra=f"uploads:\n  keys: {file}\n{settings}", **options)

    return start


def test_a_killed_gateway_continues(keyed):
    server = keyed()
    wire = Wire(server)
    data = hashlib.shake_256(b"killed").digest(40 << 20)
    creation = Raw(server, "POST", "/b/photos/o/big", [complete(False), INTEROP, ("Content-Length", len(data))])
    status, fields = creation.head()
    assert status == 104 and fields["upload-draft-interop-version"] == "8"
    path = urllib.parse.urlsplit(fields["location"]).path
    secret(path.rpartition("/")[2])
    creation.send(data[:25 << 20])
    wait_until(lambda: server.metrics()['sluice_uploads_staged_bytes{bucket="photos"}'] >= 25 << 20, what="the bytes")
    server.stop(signal.SIGKILL)
    creation.close()
    server.start()
    state = wire.call("HEAD", path)
    offset = int(state["upload-offset"])
    # What was never reported may be lost, and nothing more is there than was sent.
    assert state.status == 204 and 0 <= offset <= 25 << 20
    wire.missing("big")
    middle = offset + (10 << 20)
    fields = [("Content-Type", PARTIAL), ("Upload-Offset", str(offset)), complete(False)]
    assert wire.call("PATCH", path, fields, data[offset:middle]).status == 204
    server.stop(signal.SIGKILL)
    server.start()
    # This offset was reported: it is durable.
    assert wire.call("HEAD", path)["upload-offset"] == str(middle)
    wire.missing("big")
    fields = [("Content-Type", PARTIAL), ("Upload-Offset", str(middle)), complete(True)]
    done = wire.call("PATCH", path, fields, data[middle:])
    assert done.status == 201, done
    assert hashlib.md5(wire.get("big").body).digest() == hashlib.md5(data).digest()
    server.stop(signal.SIGKILL)
    server.start()
    fields[1] = ("Upload-Offset", str(len(data)))
    again = wire.call("PATCH", path, fields)
    assert (again.status, again.json) == (201, done.json)
    metrics = server.metrics()
    assert metrics['sluice_uploads_open{bucket="photos"}'] == 0 == metrics['sluice_uploads_staged_bytes{bucket="photos"}']


def test_without_a_key_file_sessions_end_with_the_process(launch):
    server = launch()
    wait_until(lambda: "uploads.keys is not set" in server.output(), what="the warning")
    session = begin(Wire(server), "o", b"x")
    server.stop()
    server.start()
    problem(session.head(method="GET"), 404, "upload-not-found")


def test_keys_are_replaced_while_it_runs(keyed, tmp_path):
    server = keyed()
    wire = Wire(server)
    old = begin(wire, "o", b"x")
    lines = (tmp_path / "upload.keys").read_text()
    done = subprocess.run([str(BINARY), "uploads", "new-key", "k2"], capture_output=True, text=True, check=True)
    (tmp_path / "upload.keys").write_text(done.stdout + lines)
    wait_until(lambda: "keys of uploads loaded" in server.output(), what="the keys")
    new = begin(wire, "o", b"x")
    assert old.offset() == new.offset() == 1
    (tmp_path / "upload.keys").write_text(lines)
    wait_until(lambda: server.output().count("keys of uploads loaded") == 2, what="the keys")
    assert old.offset() == 1
    problem(new.head(method="GET"), 404, "upload-not-found")


def test_random_cuts_lose_nothing(server, folder):
    """Against a model: what a 204 or HEAD has reported stays, and what is there is what was sent."""
    wire, chance = Wire(server), random.Random(7)
    for turn in range(4):
        data, offset = DATA[:chance.randrange(400_000, len(DATA))], 0
        session = begin(wire, f"{folder}/{turn}", None, ("Upload-Length", str(len(data))))
        while offset < len(data):
            size = min(chance.choice([1, 500, 70_000, 900_000]), len(data) - offset)
            sent = chance.choice([size, chance.randrange(size + 1)])
            # A gateway that is busy could begin a cut request only after the HEAD below.
            request = append(server, session.path, offset, size, more=[("Expect", "100-continue")])
            assert request.head()[0] == 100
            request.send(data[offset:offset + sent])
            if sent == size:
                status, fields = request.head()
                assert (status, fields["upload-offset"]) == (204, str(offset + size)), fields
                durable = offset + size
            else:
                durable = None
            request.close()
            now = session.offset()
            assert offset <= now <= offset + sent and now == (durable if durable is not None else now)
            offset = now
        assert session.patch(offset, None, last=True).status == 201
        assert wire.get(f"{folder}/{turn}").body == data


def test_the_newer_request_wins(server, folder):
    wire = Wire(server)
    session = begin(wire, f"{folder}/o", None)
    wait = received(server, 400)
    older = append(server, session.path, 0, 1000)
    older.send(DATA[:400])
    wait()
    # What it has received counts; it is told that it was stopped, although it has more to send.
    assert session.offset() == 400
    status, fields = older.head()
    assert (status, fields["upload-complete"]) == (409, "?0")
    older.close()
    assert session.patch(400, DATA[400:900]).status == 204
    wait = received(server, 50)
    older = append(server, session.path, 900, 1000)
    older.send(DATA[900:950])
    wait()
    # The bytes of both are never mixed.
    problem(session.patch(900, DATA[900:1000], last=True), 409, "upload-offset-mismatch")
    assert older.head()[0] == 409
    assert session.patch(950, DATA[950:1000], last=True).status == 201
    assert wire.get(f"{folder}/o").body == DATA[:1000]


def test_a_delete_stops_an_append(server, folder):
    session = begin(Wire(server), f"{folder}/o", None)
    wait = received(server, 400)
    request = append(server, session.path, 0, 1000)
    request.send(DATA[:400])
    wait()
    assert session.cancel().status == 204
    assert request.head()[0] in (404, 409)
    assert session.head().status == 404


def test_chunks_with_a_digest_count_together(server, folder):
    wire = Wire(server)
    session = begin(wire, f"{folder}/o", b"12345")
    wait = received(server, 400)
    request = append(server, session.path, 5, 1000, more=[("Content-Digest", "crc32c=:AAAAAA==:")])
    request.send(DATA[:400])
    wait()
    request.close()
    assert session.offset() == 5


def test_a_body_that_overruns_ends_the_session(server, folder):
    session = begin(Wire(server), f"{folder}/o", b"12345", ("Upload-Length", "9"))
    request = Raw(server, "PATCH", session.path, [
        ("Content-Type", PARTIAL), ("Upload-Offset", 5), complete(False), ("Transfer-Encoding", "chunked")])
    request.send(b"5\r\n67890\r\n0\r\n\r\n")
    assert request.head()[0] == 400
    problem(session.head(method="GET"), 404, "upload-not-found")


def test_objects_that_are_too_large(launch):
    server = launch(buckets="  photos: { directory: { path: ./data }, maximumObjectSize: 1000 }\n")
    wire = Wire(server)
    for fields in ([("Upload-Length", "1001")], [("Upload-Length", "999999999999999")]):
        answer = wire.put("o", b"x", complete(False), INTEROP, *fields)
        answer.is_problem("payload-too-large")
        assert answer["upload-complete"] == "?1" and answer["location"] is None and 104 not in answer.interim
    session = begin(wire, "o", DATA[:900])
    session.patch(900, DATA[:101]).is_problem("payload-too-large")
    session.patch(900, b"x", ("Upload-Length", "1001")).is_problem("payload-too-large")
    assert session.offset() == 900
    request = Raw(server, "PATCH", session.path, [
        ("Content-Type", PARTIAL), ("Upload-Offset", 900), complete(False), ("Transfer-Encoding", "chunked")])
    request.send(b"65\r\n" + DATA[:101] + b"\r\n0\r\n\r\n")
    assert request.head()[0] == 413
    assert session.head().status == 404


def test_limits(keyed):
    server = keyed("  sessions: 3\n  stagedBytes: 1MiB\n", buckets=(
        "  photos: { directory: { path: ./photos } }\n  small: { directory: { path: ./small }, stagedBytes: 2000 }\n"))
    wire = Wire(server)
    refused = wire.put("o", b"x", complete(False), ("Upload-Length", str((1 << 20) + 1)))
    assert problem(refused, 429, "too-many-uploads") and refused["retry-after"] and refused["upload-complete"] == "?1"
    problem(wire.put("o", b"x", complete(False), ("Upload-Length", "2001"), bucket="small"), 507, "insufficient-storage")
    sessions = [begin(wire, f"o{number}", b"x") for number in range(3)]
    problem(wire.put("o", b"x", complete(False)), 429, "too-many-uploads")
    # They are still counted after a restart, and no more when they have ended.
    server.stop(signal.SIGKILL)
    server.start()
    problem(wire.put("o", b"x", complete(False)), 429, "too-many-uploads")
    assert sessions[0].cancel().status == 204 and sessions[1].patch(1, None, last=True).status == 201
    sessions[1:2] = [begin(wire, "o", DATA[:900], bucket="small")]
    # Bytes that were not declared count as they come.
    answer = sessions[1].patch(900, DATA[:101])
    # A caller has half of the bucket's.
    problem(answer, 429, "too-many-uploads")
    assert sessions[1].offset() <= 1000
    problem(sessions[2].patch(1, b"x", ("Upload-Length", str(1 << 20))), 429, "too-many-uploads")
    assert sessions[2].offset() == 1
    assert wire.put("plain", DATA).status == 201


def test_one_caller_does_not_take_all_of_a_bucket(launch):
    tokens, entries = zip(*(new_token(name) for name in ("alice", "bob")))
    lines = "\n".join(entries)
    server = launch(extra=f"tokens:\n{lines}\n", buckets="  photos: { directory: { path: ./photos }, stagedBytes: 1MiB }\n")
    wire = Wire(server)
    alice, bob = (("Authorization", f"Bearer {token}") for token in tokens)
    half = ("Upload-Length", str(1 << 19))
    refused = wire.put("o", None, complete(False), ("Upload-Length", str(1 << 20)), alice)
    problem(refused, 429, "too-many-uploads")
    begin(wire, "a", None, half, alice)
    problem(wire.put("o", None, complete(False), ("Upload-Length", "1"), alice), 429, "too-many-uploads")
    begin(wire, "b", None, half, bob)


def test_a_creation_over_a_limit_leaves_nothing(keyed):
    server = keyed("  stagedBytes: 1000\n")
    request = Raw(server, "PUT", "/b/photos/o/o", [complete(False), ("Transfer-Encoding", "chunked")])
    request.send(b"3e8\r\n" + DATA[:1000] + b"\r\n")
    wait_until(lambda: server.metrics()['sluice_uploads_staged_bytes{bucket="photos"}'] == 1000, what="the bytes")
    request.send(b"1\r\nx\r\n0\r\n\r\n")
    status, fields = request.head()
    assert status == 429 and "location" not in fields and fields["upload-complete"] == "?1", fields
    assert server.metrics()['sluice_uploads_open{bucket="photos"}'] == 0
    begin(Wire(server), "o", DATA[:1000])


def test_expired(keyed):
    server = keyed("  lifetime: 3s\n  sweepInterval: 1s\n")
    session = begin(Wire(server), "o", DATA)
    parts = list((server.directory / "photos").rglob("*"))
    wait_until(lambda: session.head().status == 404, what="the end of the session")
    wait_until(lambda: server.metrics()['sluice_uploads_total{bucket="photos",dialect="ietf",end="expired"}'] == 1, what="the sweep")
    problem(session.patch(len(DATA), None, last=True), 404, "upload-not-found")
    assert server.metrics()['sluice_uploads_open{bucket="photos"}'] == 0
    kept = sum(file.stat().st_size for file in (server.directory / "photos").rglob("*") if file.is_file() and "sqlite" not in file.name)
    assert parts and kept < len(DATA)


@pytest.fixture
def ruled(keyed, tmp_path):
    def start(*statements, extra=""):
        file = tmp_path / "storage.rules"
        file.write_text(rules(*statements))
        running = keyed(rules=file, settings=extra)
        running.rules = file
        return running

    return start


def test_the_rules_decide_twice(ruled):
    server = ruled("match /{n} { allow read; allow create: if request.resource.size < 10 && request.params.x == 'y'; }")
    wire = Wire(server)
    for name in ("o?x=y", "o?x=z"):
        answer = wire.put(name, b"x", complete(False), INTEROP, ("Upload-Length", "10"))
        answer.is_problem("unauthorized")
        assert answer["upload-complete"] == "?1" and 104 not in answer.interim
    session = begin(wire, "o?x=y", b"12345")
    assert session.patch(5, b"6789", last=True).status == 201
    session = begin(wire, "large?x=y", b"12345")
    for offset, body in ((5, b"67890"), (10, None)):
        answer = session.patch(offset, body, last=True)
        answer.is_problem("unauthorized")
        assert (answer["upload-complete"], answer["upload-offset"]) == ("?1", "10")
    wire.missing("large")
    assert session.head()["upload-complete"] == "?1"
    # What else is appended learns why it ended, and not that it is complete.
    for offset, body, last in ((10, b"x", False), (10, b"x", True), (3, None, True)):
        found = problem(session.patch(offset, body, last=last), 409, "upload-conflict")
        assert "type" not in found and "refused: unauthorized" in found["detail"], found
    # By the rules in effect at the end.
    session = begin(wire, "later?x=y", b"12345")
    server.rules.write_text(rules("match /{n} { allow read; allow create: if false; }"))
    wait_until(lambda: wire.put("probe?x=y", b"x").status == 403, what="the rules")
    session.patch(5, None, last=True).is_problem("unauthorized")
    wire.missing("later")
    metrics = server.metrics()
    assert metrics['sluice_uploads_total{bucket="photos",dialect="ietf",end="refused"}'] == 2
    assert metrics['sluice_uploads_open{bucket="photos"}'] == 0


def test_whose_a_session_is(ruled):
    tokens, entries = zip(*(new_token(name) for name in ("alice", "bob")))
    server = ruled("match /{n} { allow read; allow create: if request.auth.uid == 'alice' || n == 'open'; }",
                   extra="tokens:\n" + "".join(f"{entry}\n" for entry in entries))
    wire = Wire(server)
    alice, bob = (("Authorization", f"Bearer {token}") for token in tokens)
    # What is refused before anything is read says that there is no session too.
    early = wire.put("o", b"x", complete(False), ("Authorization", "Bearer x.y.z"))
    assert early.status == 401 and early["upload-complete"] == "?1" and early["location"] is None
    session = begin(wire, "o", b"12345", alice)
    for method, fields, body in (("HEAD", [], None), ("GET", [], None), ("DELETE", [], None),
                                 ("PATCH", [("Content-Type", PARTIAL), ("Upload-Offset", "5"), complete(True)], b"x")):
        assert wire.call(method, session.path, fields, body).status == 401
        assert wire.call(method, session.path, [*fields, bob], body).status == 404
        assert wire.call(method, session.path, [*fields, ("Authorization", "Bearer x.y.z")], body).status == 401
    # Others do not stop an append of the creator.
    request = append(server, session.path, 5, 5, last=True, more=[alice])
    request.send(b"67")
    wait_until(lambda: server.metrics()['sluice_uploads_staged_bytes{bucket="photos"}'] == 10, what="the append")
    assert wire.call("HEAD", session.path, [bob]).status == 404 and wire.call("DELETE", session.path).status == 401
    request.send(b"890")
    assert request.head()[0] == 201
    # The creator's claims are kept, also over a restart.
    session = begin(wire, "p", b"12345", alice)
    server.stop(signal.SIGKILL)
    server.start()
    assert wire.call("HEAD", session.path, [bob]).status == 404 and wire.call("HEAD", session.path).status == 401
    assert session.patch(5, b"6", alice, last=True).status == 201
    # Whoever has the URL may continue what nobody in particular began; the decision is the creator's.
    session = begin(wire, "open", b"12345")
    assert session.patch(5, b"6", bob).status == 204 and session.patch(6, b"7", alice, last=True).status == 201
    assert wire.get("open").body == b"1234567"


def test_of_a_signed_link(launch, tmp_path):
    done = subprocess.run([str(BINARY), "sign", "--new-key", "k"], capture_output=True, text=True, check=True)
    (tmp_path / "link.keys").write_text(done.stdout)
    (tmp_path / "storage.rules").write_text(rules("match /{n} { allow read; }"))
    server = launch(extra=f"links: {{ keys: {tmp_path}/link.keys }}\n", rules=tmp_path / "storage.rules")
    wire = Wire(server)
    def link(*more):
        command = [str(BINARY), "sign", "--keys", str(tmp_path / "link.keys"), "--method", "PUT", "--path", "/b/photos/o/o", *more]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    session = Session(wire, wire.call("PUT", link(), [complete(False)], b"123"))
    assert session.patch(3, b"4", last=True).status == 201 and wire.get("o").body == b"1234"
    sized = link("--size", "5", "--type", "text/plain")
    kind = ("Content-Type", "text/plain")
    for fields in ([kind], [kind, ("Upload-Length", "6")], [("Upload-Length", "5")]):
        wire.call("PUT", sized, [complete(False), *fields], b"123").is_problem("invalid-link")
    wire.call("PUT", sized + "&x=1", [complete(False), kind, ("Upload-Length", "5")], b"123").is_problem("invalid-link")
    session = Session(wire, wire.call("PUT", sized, [complete(False), kind, ("Upload-Length", "5")], b"123"))
    problem(session.patch(3, b"456", last=True), 400, "upload-length-mismatch")
    assert session.patch(3, b"45", last=True).status == 200


def test_a_token_of_another_bucket(launch):
    server = launch(buckets="  photos: { directory: { path: ./photos } }\n  other: { directory: { path: ./other } }\n")
    wire = Wire(server)
    session = begin(wire, "o", b"x")
    path = session.path.replace("/photos/", "/other/")
    for method in ("GET", "DELETE"):
        problem(wire.call(method, path), 404, "upload-not-found")
    assert session.offset() == 1


def test_thousands_of_sessions_take_no_memory(keyed):
    server = keyed("  sessions: 0\n")
    wire = Wire(server)
    begin(wire, "o", b"x")
    before = server.status("RssAnon")
    for turn in range(10):
        raw = Raw(server, "PUT", "/b/photos/o/o", [complete(False), ("Content-Length", 1)])
        request = f"PUT /b/photos/o/o HTTP/1.1\r\nHost: 127.0.0.1:{server.http}\r\nUpload-Complete: ?0\r\nContent-Length: 1\r\n\r\nx"
        raw.send(b"x" + request.encode() * 199)
        taken = b""
        while taken.count(b"HTTP/1.1 201") < 200:
            more = raw.socket.recv(65536)
            assert more
            taken += more
        for line in taken.split(b"\r\n"):
            if line.startswith(b"location: "):
                secret(line.decode().rpartition("/")[2])
        raw.close()
    assert server.metrics()['sluice_uploads_open{bucket="photos"}'] == 2001
    # Sanitizers keep what was freed.
    if "SANITIZER" not in os.environ:
        assert server.status("RssAnon") - before < 16 * 1024
