"""Upload sessions on an S3 bucket that several gateways share."""

import base64
import hashlib
import random
import re
import signal
import subprocess

import pytest

import upstreams
from program import BINARY, new_token, wait_until
from rulesets import rules
from secret_words import secret
from sessions import PARTIAL, Raw, Session, append, begin, complete, problem, received
from tus import create
from wire import Wire

DATA = hashlib.shake_256(b"s3 sessions").digest(30 << 20)


@pytest.fixture
def moto(tmp_path):
    running = upstreams.Moto(tmp_path / "upstream")
    yield running
    running.stop()


@pytest.fixture
def gateways(moto, launch, tmp_path):
    """Starts gateways of one bucket, with the same keys."""
    done = subprocess.run([str(BINARY), "uploads", "new-key", "k1"], capture_output=True, text=True, check=True)
    file = tmp_path / "upload.keys"
    file.write_text(done.stdout)
    secret(done.stdout.split()[1])

    def start(count, settings="", **options):
        options = {"buckets": f"  photos: {{ {moto.store()} }}\n", **options}
        return [launch(extra=f"uploads:\n  keys: {file}\n{settings}", **options) for _ in range(count)]

    return start


def hidden(moto):
    return [name for name in moto.names() if name.startswith(".sluice/")]


def md5(data):
    return hashlib.md5(data).hexdigest()


def test_two_gateways_and_a_kill(moto, gateways):
    first, second = gateways(2)
    one, two = Wire(first), Wire(second)
    session = begin(one, "big", DATA[:12_000_000], ("Upload-Length", str(len(DATA))))
    assert session.created["upload-offset"] == "12000000"
    first.stop(signal.SIGKILL)
    # The same token at another gateway.
    elsewhere = Session(two, session.created)
    assert elsewhere.offset() == 12_000_000
    two.missing("big")
    assert two.call("GET", "/b/photos/o").json["items"] == []
    assert elsewhere.patch(12_000_000, DATA[12_000_000:12_500_000])["upload-offset"] == "12500000"
    first.start()
    assert session.offset() == 12_500_000
    assert session.patch(12_500_000, DATA[12_500_000:29_000_000]).status == 204
    done = elsewhere.patch(29_000_000, DATA[29_000_000:], last=True)
    assert done.status == 201, done
    again = session.patch(len(DATA), None, last=True)
    assert (again.status, again.json) == (201, done.json)
    assert md5(one.get("big").body) == md5(DATA) and one.get("big")["etag"] == done["etag"]
    assert moto.uploads() == 0
    assert session.cancel().status == 204
    assert elsewhere.head().status == 404 and two.get("big").status == 200
    # What is stored is in the state: lists of parts may lag behind, so that none is read.
    requests = (moto.directory / "log").read_text()
    assert re.search(r'"POST /photos/big\?\S*uploadId=', requests), requests[-1000:]
    assert not re.search(r'"GET /photos/big\?\S*uploadId=', requests)


def test_a_cancelled_session_leaves_nothing(moto, gateways):
    first, second = gateways(2)
    for size in (0, 10, 100_000, 9_000_000):
        session = begin(Wire(first), "o", DATA[:size])
        assert Session(Wire(second), session.created).cancel().status == 204
        assert session.head().status == 404
        assert hidden(moto) == [] and moto.uploads() == 0
    Wire(first).missing("o")


def test_a_refused_session_tells_why(moto, gateways):
    first, second = gateways(2)
    other = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    session = begin(Wire(first), "o", DATA[:10], ("Content-MD5", other))
    problem(session.patch(10, DATA[10:20], last=True), 400, "checksum-mismatch")
    for server in (first, second):
        found = problem(Session(Wire(server), session.created).patch(20, b"x"), 409, "upload-conflict")
        assert "type" not in found and "refused: checksum-mismatch" in found["detail"], found
    assert moto.uploads() == 0
    Wire(first).missing("o")


def test_others_do_not_stop_an_append_at_another_gateway(gateways, tmp_path):
    tokens, entries = zip(*(new_token(name) for name in ("alice", "bob")))
    (tmp_path / "storage.rules").write_text(rules("match /{n} { allow read; allow create: if request.auth.uid == 'alice'; }"))
    first, second = gateways(2, "tokens:\n" + "".join(f"{entry}\n" for entry in entries), rules=tmp_path / "storage.rules")
    alice, bob = (("Authorization", f"Bearer {token}") for token in tokens)
    session = begin(Wire(first), "o", None, alice)
    # The length is declared.
    wait = received(first, 5)
    request = append(first, session.path, 0, 5, last=True, more=[alice])
    request.send(b"123")
    wait()
    # The second gateway does not know the session, and learns whose it is before it takes the session over.
    for method in ("HEAD", "DELETE"):
        assert Wire(second).call(method, session.path, [bob]).status == 404
        assert Wire(second).call(method, session.path).status == 401
    request.send(b"45")
    assert request.head()[0] == 201


def test_two_gateways_finish_at_once(gateways):
    servers = gateways(2)
    for number in range(20):
        session = begin(Wire(servers[0]), f"o{number}", b"hello")
        requests = [append(server, session.path, 5, 0, last=True) for server in servers]
        found = [request.head() for request in requests]
        assert [status for status, _ in found] == [201, 201], found
        assert found[0][1]["etag"] == found[1][1]["etag"] and {fields["upload-complete"] for _, fields in found} == {"?1"}
        generations = {fields["x-object-generation"] for _, fields in found}
        assert generations == {Wire(servers[1]).head(f"o{number}")["x-object-generation"]}


def test_two_gateways_end_a_deferred_length_at_once(gateways):
    servers = gateways(2)
    for number in range(10):
        upload = create(Wire(servers[0]), f"t{number}", None)
        assert upload.patch(0, b"hello").status == 204
        fields = [("Tus-Resumable", "1.0.0"), ("Content-Type", "application/offset+octet-stream"), ("Upload-Offset", 5),
                  ("Upload-Length", 5), ("Content-Length", 0)]
        requests = [Raw(server, "PATCH", upload.path, fields) for server in servers]
        found = [request.head() for request in requests]
        assert [status for status, _ in found] == [204, 204], found
        assert found[0][1]["etag"] == found[1][1]["etag"]


def test_a_body_of_another_length_is_not_stored(moto, gateways):
    """Its length is not known before its end."""
    wire = Wire(gateways(1)[0])
    for body in (b"", b"123", b"12345", DATA[:9_000_000]):
        answer = wire.put("o", body, complete(True), ("Upload-Length", "4"), ("Transfer-Encoding", "chunked"))
        problem(answer, 400, "upload-length-mismatch")
        assert answer["upload-complete"] == "?1"
        wire.missing("o")
    assert moto.uploads() == 0
    assert wire.put("o", b"1234", complete(True), ("Upload-Length", "4"), ("Transfer-Encoding", "chunked")).status == 201


def test_expired_sessions_are_swept(moto, gateways):
    first, second = gateways(2, "  lifetime: 20s\n  resultLifetime: 1s\n  sweepInterval: 1s\n")
    session = begin(Wire(first), "o", DATA[:9_000_000])
    finished = begin(Wire(second), "finished", b"x")
    assert finished.patch(1, b"y", last=True).status == 201
    assert moto.uploads() == 1 and hidden(moto)
    wait_until(lambda: hidden(moto) == [] and moto.uploads() == 0, timeout=60, what=lambda: f"the end of {hidden(moto)}")
    assert session.head().status == finished.head().status == 404
    assert Wire(first).get("finished").body == b"xy"


def test_the_end_of_a_deferred_length_is_not_lost(moto, gateways):
    """Parts are 8 MiB: what follows the last one is in the object, whether its length comes with it or later."""
    first, _ = gateways(2)
    for number, ends in enumerate([(9_000_000, 17_500_000, 17_500_001), (8 << 20, 16 << 20), (5,), (1, (8 << 20) + 1)]):
        upload, offset = create(Wire(first), f"late{number}", None), 0
        for end in ends:
            answer = upload.patch(offset, DATA[offset:end])
            assert (answer.status, answer["upload-offset"]) == (204, str(end))
            offset = end
        assert upload.patch(offset, b"", ("Upload-Length", str(offset))).status == 204
        assert md5(Wire(first).get(f"late{number}").body) == md5(DATA[:offset])
    assert moto.uploads() == 0


def test_parts_are_never_listed(moto, gateways):
    """A list of parts may lack some. What was stored is known from the responses to the parts."""
    first, second = gateways(2)
    session = begin(Wire(first), "o", DATA[:9_000_000])
    elsewhere = Session(Wire(second), session.created)
    assert elsewhere.patch(9_000_000, DATA[9_000_000:18_000_000], last=True).status == 201
    lines = (moto.directory / "log").read_text().splitlines()
    assert any("uploadId=" in line and '"PUT' in line for line in lines)
    assert not any("uploadId=" in line and '"GET' in line for line in lines)


def test_kills_lose_nothing(moto, gateways):
    """Random cuts and `kill -9` at either gateway: what was reported stays."""
    chance = random.Random(5)
    servers = gateways(2)
    wires = [Wire(server) for server in servers]
    for round in range(3):
        data = DATA[:chance.randrange(200_000, 20_000_000)]
        session = begin(wires[0], f"k{round}", None)
        reported = 0
        while reported < len(data):
            index = chance.randrange(2)
            here = Session(wires[index], session.created)
            offset = here.offset()
            assert offset >= reported
            reported = offset
            end = min(len(data), offset + chance.choice([1, 3000, 70_000, 2_000_000, 9_000_000]))
            if chance.random() < 0.3:
                # Sends a part of it, and kills the gateway.
                cut = append(servers[index], session.path, offset, end - offset)
                cut.send(data[offset:(offset + end) // 2])
                servers[index].stop(signal.SIGKILL)
                cut.close()
                servers[index].start()
            else:
                answer = here.patch(offset, data[offset:end])
                assert answer.status == 204 and answer["upload-offset"] == str(end), answer
                reported = end
        if chance.random() < 0.5:
            servers[0].stop(signal.SIGKILL)
            servers[0].start()
        done = Session(wires[1], session.created).patch(len(data), None, last=True)
        assert done.status == 201, done
        assert md5(wires[0].get(f"k{round}").body) == md5(data)
        assert session.cancel().status == 204
    assert hidden(moto) == [] and moto.uploads() == 0


def test_progress_is_what_another_gateway_finds(moto, gateways):
    first, second = gateways(2)
    session = begin(Wire(first), "big")
    fields = [("Content-Type", PARTIAL), ("Upload-Offset", 0), complete(False), ("Transfer-Encoding", "chunked"), ("Upload-Draft-Interop-Version", 8)]
    request = Raw(first, "PATCH", session.path, fields)
    request.socket.settimeout(0.05)
    piece, sent = DATA[:4 << 20], 0
    # Without a length part numbers are claimed 16 at a time, and the bytes before become durable with the next claim.
    while sent < 400 << 20:
        request.socket.settimeout(20)
        request.send(b"%x\r\n" % len(piece) + piece + b"\r\n")
        sent += len(piece)
        request.socket.settimeout(0.05)
        try:
            status, found = request.head()
            break
        except TimeoutError:
            continue
    reported = int(found["upload-offset"])
    assert status == 104 and 16 * (5 << 20) <= reported <= sent, (status, found)
    first.stop(signal.SIGKILL)
    request.close()
    assert Session(Wire(second), session.created).offset() == reported


def test_multipart_uploads_whose_id_was_lost_are_swept(moto, gateways):
    """Two gateways are killed after S3 has begun a multipart upload and before its id is in the state."""
    first, second = gateways(2, "  lifetime: 15s\n  sweepInterval: 1s\n")
    session = begin(Wire(first), "o")
    for _ in range(2):
        assert moto.call("POST", "/photos/o?uploads")[0] == 200
    first.stop(signal.SIGKILL)
    assert Session(Wire(second), session.created).offset() == 0
    assert moto.uploads() == 2
    wait_until(lambda: hidden(moto) == [], timeout=60, what=lambda: f"the end of {hidden(moto)}")
    assert moto.uploads() == 0


def test_a_multipart_upload_that_others_remove_ends_the_session(moto, gateways):
    first, _ = gateways(2)
    session = begin(Wire(first), "o", DATA[:9_000_000])
    upload = re.search(r"<UploadId>([^<]*)", moto.call("GET", "/photos?uploads")[2].decode())[1]
    assert moto.call("DELETE", f"/photos/o?uploadId={upload}")[0] == 204
    problem(session.patch(9_000_000, DATA[9_000_000:18_000_000]), 404, "upload-not-found")
    assert session.head().status == 404


def test_small_appends_never_need_more_parts_than_there_are(moto, gateways):
    store = moto.store().replace("{", "{ maximumParts: 3,", 1)
    server, _ = gateways(2, buckets=f"  photos: {{ {store} }}\n")
    step = 1_000_000
    session = begin(Wire(server), "o")
    for offset in range(0, len(DATA), step):
        assert session.patch(offset, DATA[offset:offset + step]).status == 204
    assert session.patch(len(DATA), None, last=True).status == 201
    assert md5(Wire(server).get("o").body) == md5(DATA)


def test_a_stop_keeps_what_was_received(moto, gateways):
    for buckets in (f"  photos: {{ {moto.store()} }}\n", None):
        server = gateways(1, "limits: { drainTimeout: 100ms }\n", buckets=buckets)[0]
        session = begin(Wire(server), "o")
        wait = received(server, 3_000_000)
        request = append(server, session.path, 0, 9_000_000)
        request.send(DATA[:3_000_000])
        wait()
        assert server.stop() == 0
        request.close()
        server.start()
        assert session.offset() == 3_000_000
