"""tus 1.0.0: each request of the protocol and its six extensions, over each transport, and a client that others wrote."""

import base64
import email.utils
import hashlib
import http.client
import json
import signal
import subprocess
import time

import pytest
from tusclient.client import TusClient

from program import BINARY, new_token, wait_until
from rulesets import rules
from secret_words import secret
from sessions import Raw, begin, problem, received
from tus import CHUNK, VERSION, Upload, create, encoded, metadata, post
from wire import Wire

#: The letters of base64url.
URL_SAFE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
DATA = hashlib.shake_256(b"tus").digest(200_000)
EXTENSIONS = "creation,creation-with-upload,creation-defer-length,expiration,checksum,termination"


def is_done(answer, status=204, length=len(DATA), path=None):
    """Whether a response is of the request that has ended an upload."""
    assert (answer.status, answer["upload-offset"], answer["tus-resumable"]) == (status, str(length), "1.0.0"), answer
    assert answer["etag"] and int(answer["x-object-generation"]) > 0
    assert answer["content-location"] == path or path is None
    return True


def test_the_tour(wire, folder):
    upload = create(wire, f"{folder}/a b.txt", len(DATA), contentType="text/plain", cacheControl="3600",
                    metadata=json.dumps({"a": "x", "n": 1.50, "o": {"k": [True, None]}}), filename="local")
    created = upload.created
    assert created["location"].startswith("http") and created["upload-offset"] is None
    expires = email.utils.parsedate_to_datetime(created["upload-expires"]).timestamp()
    assert 86000 < expires - time.time() <= 86401
    state = upload.head()
    assert (state.status, state.body, state["upload-offset"], state["upload-length"]) == (200, b"", "0", str(len(DATA)))
    sent = metadata(f"{folder}/a b.txt", contentType="text/plain", cacheControl="3600",
                    metadata=json.dumps({"a": "x", "n": 1.50, "o": {"k": [True, None]}}), filename="local")[1]
    assert state["upload-metadata"] == sent and state["cache-control"] == "no-store"
    assert state["upload-expires"] == created["upload-expires"] and state["upload-defer-length"] is None
    first = upload.patch(0, DATA[:70_000])
    assert (first.status, first["upload-offset"], first["upload-expires"]) == (204, "70000", created["upload-expires"])
    assert first["etag"] is None and upload.offset() == 70_000
    # Nothing of it is visible.
    wire.missing(f"{folder}/a%20b.txt")
    assert wire.call("GET", f"/b/photos/o?prefix={folder}/").json["items"] == []
    last = upload.patch(70_000, DATA[70_000:])
    assert is_done(last, path=f"/b/photos/o/{folder}/a%20b.txt")
    got = wire.get(f"{folder}/a%20b.txt")
    assert (got.body, got["content-type"], got["cache-control"], got["etag"]) == (DATA, "text/plain", "max-age=3600", last["etag"])
    assert wire.metadata(f"{folder}/a%20b.txt")["customMetadata"] == {"a": "x", "n": "1.5", "o": '{"k":[true,null]}'}
    # The end can be repeated, and asked for.
    assert is_done(upload.patch(len(DATA))) and upload.head()["upload-offset"] == upload.head()["upload-length"]
    assert upload.patch(0, DATA).status == 409 and upload.patch(len(DATA), b"x").status == 413
    assert upload.call("DELETE").status == 204 and upload.head().status == 404
    assert wire.get(f"{folder}/a%20b.txt").status == 200


def test_what_the_server_can_do(wire):
    for path in ("/tus", "/tus/", "/tus/anything"):
        answer = wire.call("OPTIONS", path)
        assert (answer.status, answer["tus-version"], answer["tus-extension"]) == (204, "1.0.0", EXTENSIONS)
        assert answer["tus-checksum-algorithm"] == "sha1,md5,sha256,crc32c" and answer["tus-resumable"] == "1.0.0"
        assert int(answer["tus-max-size"]) == 1 << 42 and answer["allow"]


@pytest.mark.parametrize("version", [None, ("Tus-Resumable", "0.2.2"), ("Tus-Resumable", "1.0.0, 1.0.0"), ("Tus-Resumable", "2.0.0")])
def test_versions(http1, folder, version):
    upload = create(http1, f"{folder}/o", 5)
    fields = [version] if version else []
    chunk = [*fields, CHUNK, ("Upload-Offset", "0")]
    for answer in (post(http1, ("Upload-Length", "5"), metadata(f"{folder}/o"), version=version),
                   *(http1.call(method, upload.path, chunk, b"" if method == "PATCH" else None) for method in ("HEAD", "PATCH", "DELETE"))):
        assert (answer.status, answer["tus-version"], answer["tus-resumable"]) == (412, "1.0.0", "1.0.0"), answer
    assert upload.offset() == 0


def test_methods_by_a_field(http1, folder):
    upload = create(http1, f"{folder}/o", 5)
    def call(method, *fields, body=None):
        return http1.call("POST", upload.path, [VERSION, ("X-HTTP-Method-Override", method), *fields], body)
    assert call("PATCH", CHUNK, ("Upload-Offset", "0"), body=b"123").status == 204
    state = call("HEAD")
    assert (state.status, state["upload-offset"], state.body) == (200, "3", b"")
    assert call("GET").status == 405 and upload.call("GET").status == 405
    assert call("DELETE").status == 204 and upload.head().status == 404
    answer = http1.call("GET", "/tus", [("X-HTTP-Method-Override", "OPTIONS")])
    assert answer.status == 204 and answer["tus-version"] == "1.0.0"
    for method, path, allow in (("PUT", "/tus", "POST, OPTIONS"), ("GET", "/tus", "POST, OPTIONS"), ("POST", None, "HEAD, PATCH, DELETE, OPTIONS")):
        upload = create(http1, f"{folder}/o", 5)
        answer = http1.call(method, path or upload.path, [VERSION])
        problem(answer, 405, "method-not-allowed")
        assert answer["allow"] == allow and answer["tus-resumable"] == "1.0.0"


def test_creation_with_a_body(wire, folder):
    upload = create(wire, f"{folder}/o", len(DATA), body=DATA[:1000])
    assert upload.created["upload-offset"] == "1000" and upload.created["etag"] is None
    assert is_done(upload.patch(1000, DATA[1000:])) and wire.get(f"{folder}/o").body == DATA
    whole = create(wire, f"{folder}/whole", len(DATA), body=DATA)
    assert is_done(whole.created, 201, path=f"/b/photos/o/{folder}/whole") and wire.get(f"{folder}/whole").body == DATA
    empty = create(wire, f"{folder}/empty", 0)
    assert is_done(empty.created, 201, 0) and wire.get(f"{folder}/empty").body == b""
    assert is_done(empty.patch(0), length=0)
    for kind, status in (("text/plain", 415), ("application/offset+octet-streams", 415)):
        answer = post(wire, ("Upload-Length", "5"), metadata(f"{folder}/type"), ("Content-Type", kind), body=b"12345")
        assert answer.status == status and answer["location"] is None
    # Without a body there is nothing that has a type.
    answer = wire.call("POST", "/tus", [VERSION, ("Upload-Length", "5"), metadata(f"{folder}/type"), ("Content-Type", "text/plain")])
    assert Upload(answer, wire).offset() == 0


def test_deferred_lengths(wire, folder):
    upload = create(wire, f"{folder}/o", None, body=DATA[:10])
    state = upload.head()
    assert (state["upload-offset"], state["upload-defer-length"], state["upload-length"]) == ("10", "1", None)
    assert upload.patch(10, DATA[10:30]).status == 204
    assert upload.patch(30, DATA[30:40], ("Upload-Length", "50")).status == 204
    state = upload.head()
    assert (state["upload-offset"], state["upload-defer-length"], state["upload-length"]) == ("40", None, "50")
    wire.missing(f"{folder}/o")
    assert is_done(upload.patch(40, DATA[40:50]), length=50) and wire.get(f"{folder}/o").body == DATA[:50]
    # An empty request with the length ends it too; so does the last one with bytes.
    for body, offset in ((b"", 50), (DATA[50:60], 50)):
        upload = create(wire, f"{folder}/late", None, body=DATA[:50])
        end = offset + len(body)
        assert is_done(upload.patch(offset, body, ("Upload-Length", str(end))), length=end)
        assert wire.get(f"{folder}/late").body == DATA[:end]


@pytest.mark.parametrize("fields, status", [
    ([("Upload-Length", "5"), ("Upload-Defer-Length", "1")], 400), ([], 400), ([("Upload-Defer-Length", "2")], 400),
    ([("Upload-Defer-Length", "0")], 400), ([("Upload-Length", "-1")], 400), ([("Upload-Length", "5.0")], 400),
    ([("Upload-Length", "5"), ("Upload-Length", "5")], 400), ([("Upload-Length", "")], 400),
    ([("Upload-Length", "5"), ("Upload-Concat", "partial")], 400), ([("Upload-Length", "5"), ("Upload-Concat", "final;/tus/a")], 400),
    ([("Upload-Length", str((1 << 42) + 1))], 413), ([("Upload-Length", "9" * 30)], 413),
    ([("Upload-Length", "5"), ("Upload-Checksum", "sha1 x")], 400), ([("Upload-Length", "5"), ("Upload-Checksum", "sha999 AAAA")], 400),
    ([("Upload-Length", "5"), ("If-Match", "x")], 400),
])
def test_creations_that_are_refused(http1, folder, fields, status):
    answer = post(http1, *fields, metadata(f"{folder}/o"))
    assert answer.status == status and answer["location"] is None and answer["tus-resumable"] == "1.0.0", answer
    assert answer.json["status"] == status


NAME = f"objectName {encoded('o')}"
BUCKET = f"bucketName {encoded('photos')}"


@pytest.mark.parametrize("text, status, code", [
    (None, 400, "invalid-argument"), ("", 400, "invalid-argument"), (NAME, 400, "invalid-argument"), (BUCKET, 400, "invalid-argument"),
    (f"{NAME},{BUCKET},", 400, "invalid-argument"), (f"{NAME},,{BUCKET}", 400, "invalid-argument"),
    (f"{NAME},{BUCKET},{NAME}", 400, "invalid-argument"), (f"{NAME},{BUCKET},x x", 400, "invalid-argument"),
    (f"{NAME},{BUCKET},x YQ", 400, "invalid-argument"), (f"{NAME},{BUCKET},x YR==", 400, "invalid-argument"),
    (f"{NAME},{BUCKET},x YQ== YQ==", 400, "invalid-argument"), (f"objectName,{BUCKET}", 400, "invalid-argument"),
    (f"objectName {encoded(bytes([255]))},{BUCKET}", 400, "invalid-argument"),
    (f"{NAME},{BUCKET},contentType {encoded('text/plain' + chr(13) + chr(10) + 'X: y')}", 400, "invalid-argument"),
    (f"{NAME},{BUCKET},contentType {encoded(chr(10))}", 400, "invalid-argument"),
    (f"{NAME},{BUCKET},cacheControl {encoded('a' + chr(0))}", 400, "invalid-argument"),
    (f"{NAME},{BUCKET},metadata {encoded('[]')}", 400, "invalid-argument"),
    (f"{NAME},{BUCKET},metadata {encoded('{')}", 400, "invalid-argument"),
    (f"{NAME},{BUCKET},metadata " + encoded('{"a":"1","a":"2"}'), 400, "invalid-argument"),
    (f"{NAME},{BUCKET},metadata " + encoded(json.dumps({"a": "x" * 9000})), 400, "invalid-argument"),
    (f"{NAME},bucketName {encoded('none')}", 404, "bucket-not-found"),
    (f"{NAME},bucketName {encoded('../photos')}", 404, "bucket-not-found"),
    (f"{BUCKET},objectName {encoded('a//b')}", 400, "invalid-name"), (f"{BUCKET},objectName {encoded('.sluice/x')}", 400, "invalid-name"),
    (f"{BUCKET},objectName {encoded('../x')}", 400, "invalid-name"), (f"{BUCKET},objectName {encoded('x' * 1025)}", 400, "invalid-name"),
])
def test_metadata_that_is_refused(http1, text, status, code):
    fields = [] if text is None else [("Upload-Metadata", text)]
    problem(post(http1, ("Upload-Length", "5"), *fields), status, code)


def test_metadata_that_is_taken(http1, folder):
    field = (f" bucketName {encoded('photos')} ,objectName {encoded(folder + '/o.txt')}, contentType,cacheControl {encoded('no-cache')},"
             f"is_confidential,bytes {encoded(bytes([0, 255, 10]))}")
    upload = Upload(post(http1, ("Upload-Length", "1"), ("Upload-Metadata", field)), http1)
    assert upload.head()["upload-metadata"] == field.strip()
    assert upload.patch(0, b"x").status == 204
    found = http1.metadata(f"{folder}/o.txt")
    assert (found["contentType"], found["cacheControl"]) == ("text/plain", "no-cache") and "customMetadata" not in found


def test_offsets_and_types(wire, folder):
    upload = create(wire, f"{folder}/o", 100, body=b"12345")
    for offset in (0, 4, 6, 100, 10 ** 18):
        answer = upload.patch(offset, b"x" if offset != 10 ** 18 else b"")
        problem(answer, 409, "upload-offset-mismatch")
        assert answer["upload-offset"] == "5"
    for text in (None, "", "-5", "5.0", "x", "5, 5"):
        fields = [CHUNK, *([] if text is None else [("Upload-Offset", text)])]
        problem(upload.call("PATCH", *fields, body=b"x"), 400, "invalid-argument")
    for kind in ("application/octet-stream", "application/partial-upload", None):
        fields = [("Upload-Offset", "5"), *([("Content-Type", kind)] if kind else [])]
        problem(upload.call("PATCH", *fields, body=b"x"), 415, "unsupported-media-type")
    assert upload.offset() == 5


def test_more_than_the_length(server, wire, folder):
    upload = create(wire, f"{folder}/o", 9, body=b"12345")
    problem(upload.patch(5, b"67890"), 413, "payload-too-large")
    problem(upload.patch(5, b"6", ("Upload-Length", "8")), 400, "upload-length-mismatch")
    problem(upload.patch(5, b"", ("Upload-Length", "10")), 400, "upload-length-mismatch")
    request = Raw(server, "PATCH", upload.path, [VERSION, CHUNK, ("Upload-Offset", 5), ("Transfer-Encoding", "chunked")])
    request.send(b"5\r\n67890\r\n0\r\n\r\n")
    assert request.head()[0] == 413
    request.close()
    # None of these bytes was accepted.
    assert upload.offset() == 5 and is_done(upload.patch(5, b"6789"), length=9)
    assert wire.get(f"{folder}/o").body == b"123456789"
    answer = post(wire, ("Upload-Length", "4"), metadata(f"{folder}/o"), body=b"12345")
    assert answer.status == 413 and answer["location"] is None
    later = create(wire, f"{folder}/o", None, body=b"12345")
    problem(later.patch(5, b"", ("Upload-Length", "4")), 400, "upload-length-mismatch")
    problem(later.patch(5, b"", ("Upload-Length", "9" * 25)), 413, "payload-too-large")
    problem(later.patch(5, b"678", ("Upload-Length", "7")), 413, "payload-too-large")
    state = later.head()
    assert (state["upload-offset"], state["upload-defer-length"]) == ("5", "1")


def checksum(algorithm, data):
    if algorithm == "crc32c":
        table = [0] * 256
        for index in range(256):
            value = index
            for _ in range(8):
                value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
            table[index] = value
        value = 0xFFFFFFFF
        for byte in data:
            value = value >> 8 ^ table[(value ^ byte) & 255]
        digest = (value ^ 0xFFFFFFFF).to_bytes(4, "big")
    else:
        digest = hashlib.new(algorithm, data).digest()
    return ("Upload-Checksum", f"{algorithm} {base64.b64encode(digest).decode()}")


@pytest.mark.parametrize("algorithm", ["sha1", "md5", "sha256", "crc32c"])
def test_checksums(http1, folder, algorithm):
    upload = create(http1, f"{folder}/o", 50, checksum(algorithm, DATA[:20]), body=DATA[:20])
    answer = upload.patch(20, DATA[20:40], checksum(algorithm, b"other"))
    assert answer.status == 460 and answer.json["code"] == "checksum-mismatch" and answer.json["status"] == 460
    assert upload.offset() == 20
    for text in (algorithm, f"{algorithm} ", f"{algorithm} AAA", f"{algorithm} {encoded(b'x')}", f"{algorithm.upper()} AAAA", "crc32 AAAA"):
        problem(upload.patch(20, DATA[20:40], ("Upload-Checksum", text)), 400, "invalid-argument")
    assert upload.patch(20, DATA[20:40], checksum(algorithm, DATA[20:40])).status == 204
    assert is_done(upload.patch(40, DATA[40:50], checksum(algorithm, DATA[40:50])), length=50)
    assert http1.get(f"{folder}/o").body == DATA[:50]
    # A creation whose body is not right makes no upload.
    answer = post(http1, ("Upload-Length", "50"), metadata(f"{folder}/p"), checksum(algorithm, b"other"), body=DATA[:20])
    assert answer.status == 460 and answer["location"] is None


def test_a_chunk_with_a_checksum_that_is_cut_counts_nothing(server, folder):
    upload = create(Wire(server), f"{folder}/o", None, body=DATA[:5])
    # Without one, what has come counts.
    for fields, offset in (([checksum("sha1", DATA[5:905])], 5), ([], 500)):
        wait = received(server, 495)
        request = Raw(server, "PATCH", upload.path, [VERSION, CHUNK, ("Upload-Offset", 5), ("Content-Length", 900), *fields])
        request.send(DATA[5:500])
        wait()
        request.close()
        assert upload.offset() == offset


def test_conditions(http1, folder):
    for fields in ([("x-upsert", "false")], [("x-upsert", "FALSE")], [("If-None-Match", "*")]):
        http1.delete(f"{folder}/o")
        upload = create(http1, f"{folder}/o", 5, *fields)
        http1.stored(f"{folder}/o", b"other")
        # It is decided at the end; the upload is gone then.
        problem(upload.patch(0, b"12345"), 412, "precondition-failed")
        assert upload.head().status == 404 and upload.patch(5).status == 404
        assert http1.get(f"{folder}/o").body == b"other"
        answer = post(http1, ("Upload-Length", "5"), metadata(f"{folder}/o"), *fields)
        assert answer.status == 412 and answer["location"] is None and answer["tus-version"] is None
    for fields in ([("x-upsert", "true")], []):
        assert is_done(create(http1, f"{folder}/o", 5, *fields, body=b"12345").created, 201, 5)
        assert http1.get(f"{folder}/o").body == b"12345"


def test_what_leads_nowhere_is_told_alike(http1, folder, launch):
    upload = create(http1, f"{folder}/o", 5)
    token = upload.path.rpartition("/")[2]
    native = http1.put(f"{folder}/o", b"x", ("Upload-Complete", "?0"))["location"].rpartition("/")[2]
    secret(native)
    cancelled = create(http1, f"{folder}/o", 5)
    cancelled.call("DELETE")
    spellings = [token[:-1] + other for other in "AQgw_-" if other != token[-1]]
    bodies = set()
    for other in ("x", token[:-1], token + "A", token + "=", token.swapcase(), token + "/x", "A" * 5000, native,
                  cancelled.path.rpartition("/")[2], *spellings):
        for method in ("PATCH", "DELETE"):
            answer = http1.call(method, f"/tus/{other}", [VERSION, CHUNK, ("Upload-Offset", "0")], b"y" if method == "PATCH" else None)
            problem(answer, 404, "upload-not-found")
            fields = [(name, value) for name, value in answer.fields if name not in ("x-request-id", "date")]
            bodies.add((answer.body.replace(answer["x-request-id"].encode(), b""), tuple(fields)))
        assert http1.call("HEAD", f"/tus/{other}", [VERSION]).status == 404
    assert len(bodies) == 1 and upload.offset() == 0
    problem(http1.call("GET", f"/b/photos/u/{token}"), 404, "upload-not-found")


@pytest.mark.parametrize("dialect", ["ietf", "tus"])
def test_every_flipped_bit_of_a_token_leads_nowhere(server, http1, folder, dialect):
    """All responses have identical bytes except the request's id, also where the change is no text."""
    if dialect == "tus":
        path = create(http1, f"{folder}/o", 5).path
    else:
        path = begin(http1, f"{folder}/o", b"x").path
    root, _, token = path.rpartition("/")
    connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=20)
    found = set()
    for index, letter in enumerate(token.encode()):
        for bit in range(8):
            changed = "%%%02X" % (letter ^ 1 << bit)
            if chr(letter ^ 1 << bit) in URL_SAFE:
                changed = chr(letter ^ 1 << bit)
            connection.request("DELETE", f"{root}/{token[:index]}{changed}{token[index + 1:]}", headers={"Tus-Resumable": "1.0.0"})
            answer = connection.getresponse()
            body, fields = answer.read(), {name.lower(): value for name, value in answer.getheaders()}
            identity = fields.pop("x-request-id")
            fields.pop("date", None)
            found.add((answer.status, body.replace(identity.encode(), b""), tuple(sorted(fields.items()))))
    assert len(found) == 1 and found.pop()[0] == 404
    connection.close()
    # Spelled in another way, the token itself is another one.
    for other in (f"{root}/%{ord(token[0]):02X}{token[1:]}", f"{path}%3D", f"{path}/"):
        assert http1.call("DELETE", other, [VERSION]).status == 404
    assert http1.call("DELETE", path, [VERSION]).status == 204


def test_cross_origin_pages(launch):
    server = launch(extra="cors: { origins: [\"https://app.example\"], exposedHeaders: [X-Own] }\n")
    wire, origin = Wire(server), ("Origin", "https://app.example")
    for path in ("/tus", "/tus/x"):
        answer = wire.call("OPTIONS", path, [origin, ("Access-Control-Request-Method", "PATCH"), ("Access-Control-Request-Headers", "tus-resumable,upload-offset")])
        assert answer.status == 204 and answer["access-control-allow-origin"] == "https://app.example"
        assert answer["access-control-allow-methods"] == "POST, GET, HEAD, PATCH, DELETE, OPTIONS"
        assert answer["access-control-allow-headers"] == "tus-resumable,upload-offset"
    upload = create(wire, "o", 5, origin)
    def exposed(answer):
        return set(answer["access-control-expose-headers"].lower().split(", "))
    assert {"x-own", "location", "upload-expires", "tus-resumable"} <= exposed(upload.created)
    assert {"upload-offset", "upload-length", "upload-metadata", "upload-expires", "tus-resumable"} <= exposed(upload.head(origin))
    assert {"tus-version", "tus-extension", "tus-max-size", "tus-checksum-algorithm"} <= exposed(wire.call("OPTIONS", "/tus", [origin]))


def test_it_can_be_switched_off(launch):
    wire = Wire(launch(extra="uploads: { tus: false }\n"))
    for method in ("OPTIONS", "POST"):
        assert wire.call(method, "/tus", [VERSION]).status == 404
    assert wire.put("o", b"x", ("Upload-Complete", "?0")).status == 201


@pytest.fixture
def keyed(launch, tmp_path):
    def start(settings="", **options):
        done = subprocess.run([str(BINARY), "uploads", "new-key", "k1"], capture_output=True, text=True, check=True)
        (tmp_path / "upload.keys").write_text(done.stdout)
        secret(done.stdout.split()[1])
        return launch(extra=f"uploads:\n  keys: {tmp_path}/upload.keys\n{settings}", **options)

    return start


OPEN_SESSIONS = 'sluice_uploads_open{bucket="photos"}'


def test_limits(keyed):
    server = keyed("  sessions: 3\n  stagedBytes: 1MiB\n", buckets=(
        "  photos: { directory: { path: ./photos }, maximumObjectSize: 1000 }\n  large: { directory: { path: ./large } }\n"))
    wire = Wire(server)
    assert wire.call("OPTIONS", "/tus")["tus-max-size"] == str(1 << 42)
    for length, bucket, status in ((1001, "photos", 413), ((1 << 20) + 1, "large", 429)):
        answer = post(wire, ("Upload-Length", str(length)), metadata("o", bucket=bucket))
        assert answer.status == status and (status == 413 or answer["retry-after"]), answer
    late = create(wire, "o", None)
    problem(late.patch(0, DATA[:1001]), 413, "payload-too-large")
    assert late.offset() == 0
    uploads = [late, create(wire, "p", 5), create(wire, "q", 5)]
    problem(post(wire, ("Upload-Length", "5"), metadata("r")), 429, "too-many-uploads")
    # A creation that fails leaves no session behind, which nobody could end.
    uploads[1].call("DELETE")
    for _ in range(5):
        post(wire, ("Upload-Length", "5"), metadata("r"), checksum("md5", b"y"), body=b"x")
        raw = Raw(server, "POST", "/tus", [VERSION, CHUNK, ("Upload-Length", 500), metadata("r"), ("Content-Length", 400)])
        raw.send(DATA[:100])
        raw.close()
    wait_until(lambda: server.metrics()[OPEN_SESSIONS] <= 2, what="the end of failed creations")
    assert uploads[2].head().status == 200


def test_expiry(keyed):
    server = keyed("  lifetime: 2s\n  sweepInterval: 1s\n")
    upload = create(Wire(server), "o", 5)
    wait_until(lambda: upload.head().status == 404, what="the end of the session")
    wait_until(lambda: server.metrics()[OPEN_SESSIONS] == 0, what="the sweep")


def test_the_rules_decide_twice(launch, tmp_path):
    tokens, entries = zip(*(new_token(name) for name in ("alice", "bob")))
    file = tmp_path / "storage.rules"
    file.write_text(rules("match /{n} { allow read; allow create: if request.auth.uid == 'alice' && request.resource.size < 10 && request.resource.contentType == 'text/plain'; }"))
    server = launch(rules=file, extra="tokens:\n" + "".join(f"{entry}\n" for entry in entries))
    wire = Wire(server)
    alice, bob = (("Authorization", f"Bearer {token}") for token in tokens)
    text = {"contentType": "text/plain"}
    for fields, length, more, status in (([], 5, text, 401), ([bob], 5, text, 403), ([alice], 10, text, 403), ([alice], 5, {}, 403),
                                         ([("Authorization", "Bearer x.y.z")], 5, text, 401)):
        answer = post(wire, ("Upload-Length", str(length)), metadata("o", **more), *fields)
        assert answer.status == status and answer["location"] is None and answer["tus-resumable"] == "1.0.0", answer
    upload = create(wire, "o", 9, alice, **text)
    assert upload.head().status == 401 and upload.head(bob).status == 404 and upload.call("DELETE").status == 401
    assert upload.patch(0, b"123456789", bob).status == 404 and upload.patch(0, b"12345", alice).status == 204
    assert upload.patch(5, b"6789", alice).status == 204 and wire.get("o").body == b"123456789"
    # At the end the rules see the true size; the upload is gone after a denial.
    upload = create(wire, "large", None, alice, body=b"123456789", **text)
    problem(upload.patch(9, b"0", alice, ("Upload-Length", "10")), 403, "unauthorized")
    wire.missing("large")
    assert upload.head(alice).status == 404
    metrics = server.metrics()
    assert metrics['sluice_uploads_open{bucket="photos"}'] == 0 == metrics['sluice_uploads_staged_bytes{bucket="photos"}']
    assert metrics['sluice_uploads_total{bucket="photos",dialect="tus",end="refused"}'] == 1


def test_a_killed_gateway_continues(keyed):
    server = keyed()
    wire = Wire(server)
    upload = create(wire, "o", len(DATA), body=DATA[:1000])
    assert upload.patch(1000, DATA[1000:50_000]).status == 204
    server.stop(signal.SIGKILL)
    server.start()
    assert upload.offset() == 50_000 and upload.head()["upload-metadata"]
    assert is_done(upload.patch(50_000, DATA[50_000:])) and wire.get("o").body == DATA
    server.stop(signal.SIGKILL)
    server.start()
    assert is_done(upload.patch(len(DATA))) and upload.head()["upload-offset"] == str(len(DATA))


def test_an_offset_that_is_the_length_means_that_the_object_is_there(server, folder):
    """A client takes it for success. Here the last request's client goes away before the upload is decided."""
    wire = Wire(server)
    for turn in range(8):
        upload = create(wire, f"{folder}/{turn}", 30_000, body=DATA[:10_000])
        request = Raw(server, "PATCH", upload.path, [VERSION, CHUNK, ("Upload-Offset", 10_000), ("Content-Length", 20_000)])
        request.send(DATA[10_000:30_000])
        request.close()
        while (offset := upload.offset()) < 30_000:
            # The request may have come later than the question.
            assert upload.patch(offset, DATA[offset:30_000]).status in (204, 409)
        assert wire.get(f"{folder}/{turn}").body == DATA[:30_000]


class TestClient:
    """tuspy, the protocol's own client for Python."""

    @pytest.fixture
    def client(self, server):
        return TusClient(server.url("/tus/"))

    @pytest.fixture
    def file(self, tmp_path):
        (tmp_path / "data").write_bytes(DATA)
        return str(tmp_path / "data")

    def names(self, name):
        return {"bucketName": "photos", "objectName": name, "contentType": "text/plain"}

    @pytest.mark.parametrize("size, checked", [(len(DATA), False), (70_001, False), (70_001, True)])
    def test_an_upload(self, http1, folder, client, file, size, checked):
        uploader = client.uploader(file, metadata=self.names(f"{folder}/o"), chunk_size=size, upload_checksum=checked)
        uploader.upload()
        secret(uploader.url.rpartition("/")[2])
        got = http1.get(f"{folder}/o")
        assert (got.body, got["content-type"]) == (DATA, "text/plain")

    def test_an_upload_that_is_resumed(self, http1, folder, client, file):
        first = client.uploader(file, metadata=self.names(f"{folder}/o"), chunk_size=30_000)
        first.upload(stop_at=60_000)
        secret(first.url.rpartition("/")[2])
        http1.missing(f"{folder}/o")
        second = client.uploader(file, url=first.url, chunk_size=50_000)
        assert second.offset == 60_000
        second.upload()
        assert http1.get(f"{folder}/o").body == DATA
        assert client.uploader(file, url=first.url).get_offset() == len(DATA)

    def test_an_empty_file(self, http1, folder, client, tmp_path):
        (tmp_path / "empty").touch()
        uploader = client.uploader(str(tmp_path / "empty"), metadata=self.names(f"{folder}/o"))
        uploader.upload()
        secret(uploader.url.rpartition("/")[2])
        assert http1.get(f"{folder}/o").body == b""
