"""Uploads in parts: the HTTP contract, whose they are, and that nothing is lost or doubled."""

import base64
import concurrent.futures
import hashlib
import json
import random
import signal
import subprocess

import pytest

from digests import crc32c
from directory import leftovers
from program import BINARY, new_token, wait_until
from secret_words import secret
from signed_links import new_key, sign
from sessions import Raw, begin_parts as begin, problem
from wire import Wire

DATA = hashlib.shake_256(b"parts").digest(600_000)


def pieces_of(upload, count, size=100_000):
    """Bytes for parts, all but the last of which are large enough for the store."""
    size = max(size, int(upload.begun.json["minimumPartSize"]))
    return [hashlib.shake_256(b"%d" % number).digest(size if number < count else 70_000) for number in range(1, count + 1)]


def fits(found, data):
    """Whether a crc32c in metadata is that of the data. S3 services do not report it."""
    return found.get("crc32c", "") in ("", crc32c(data) if "crc32c" in found else "")


def test_the_tour(wire, folder):
    upload = begin(wire, f"{folder}/a", "Content-Type: text/plain", "X-Object-Meta-Kind: oak")
    assert upload.begun.json["expires"] and upload.begun["cache-control"] == "no-store"
    pieces = pieces_of(upload, 3)
    tags = {}
    for number in (3, 1, 2):
        part = upload.stored(number, pieces[number - 1])
        tags[number] = part["etag"]
        assert part["size"] == str(len(pieces[number - 1])) and fits(part, pieces[number - 1])
        assert part["etag"] == hashlib.md5(pieces[number - 1]).hexdigest()
    wire.missing(f"{folder}/a")
    assert wire.call("GET", f"/b/photos/o?prefix={folder}/").json["items"] == []
    assert [(part["part"], part["etag"]) for part in upload.list()["parts"]] == sorted(tags.items())
    page = upload.list("&maxResults=2")
    assert [part["part"] for part in page["parts"]] == [1, 2] and page["after"] == 2
    page = upload.list("&maxResults=2&after=2")
    assert [part["part"] for part in page["parts"]] == [3] and "after" not in page
    assert wire.call("HEAD", upload.path).status == 200
    done = upload.complete([1, {"part": 2}, {"part": 3, "etag": tags[3]}])
    assert done.status == 201 and done["location"] == f"/b/photos/o/{folder}/a", done
    made, data = done.json, b"".join(pieces)
    assert made["size"] == str(len(data)) and fits(made, data) and "md5Hash" not in made
    assert made["contentType"] == "text/plain" and made == wire.metadata(f"{folder}/a")
    got = wire.get(f"{folder}/a")
    assert got.body == data and got["etag"] == done["etag"]
    again = upload.complete()
    assert (again.status, again.json) == (201, made)
    assert upload.put(4, b"late").status in (404, 409)
    # Another object in its place, and the same upload, which has ended.
    wire.stored(f"{folder}/a", b"other")
    assert upload.complete([1]).json == made and wire.get(f"{folder}/a").body == b"other"
    assert upload.cancel().status == 204
    upload.complete().is_problem("upload-not-found")
    assert wire.get(f"{folder}/a").body == b"other"


def test_parts_of_one_upload_at_the_same_time(wire, folder):
    upload = begin(wire, f"{folder}/a")
    pieces = pieces_of(upload, 6)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: upload.stored(number, pieces[number - 1]), random.Random(3).sample(range(1, 7), 6)))
    assert upload.complete().json["size"] == str(sum(map(len, pieces)))
    assert wire.get(f"{folder}/a").body == b"".join(pieces)


def test_digests_of_a_part_are_compared(wire, folder):
    upload = begin(wire, f"{folder}/a")
    sha = base64.b64encode(hashlib.sha256(b"one").digest()).decode()
    md5 = base64.b64encode(hashlib.md5(b"one").digest()).decode()
    upload.stored(1, b"one", f"Content-Digest: sha-256=:{sha}:", f"Content-MD5: {md5}")
    for field in (f"Content-Digest: sha-256=:{sha}:", f"Content-MD5: {md5}", f"Repr-Digest: crc32c=:AAAAAQ==:"):
        upload.put(1, b"two", field).is_problem("checksum-mismatch")
    assert upload.complete().status == 201 and wire.get(f"{folder}/a").body == b"one"


def test_the_crc32c_of_the_whole_is_compared(launch):
    wire, folder = Wire(launch()), "f"
    for right in (False, True):
        value = crc32c(DATA[:2000]) if right else "AAAAAQ=="
        upload = begin(wire, f"{folder}/a", f"Repr-Digest: crc32c=:{value}:")
        upload.stored(1, DATA[:1000])
        upload.stored(2, DATA[1000:2000])
        if right:
            assert upload.complete().status == 201
        else:
            upload.complete().is_problem("checksum-mismatch")
            wire.missing(f"{folder}/a")
    md5 = base64.b64encode(hashlib.md5(b"one").digest()).decode()
    wire.call("POST", f"/b/photos/o/{folder}/b?parts", [f"Content-MD5: {md5}"]).is_problem("invalid-argument")


def test_bad_requests_say_what_is_wrong(wire, folder):
    upload = begin(wire, f"{folder}/a")
    first = pieces_of(upload, 2)[0]
    upload.stored(1, first)
    upload.stored(3, DATA[:1000])
    assert "without gaps" in upload.complete().is_problem("invalid-argument")
    for number in ("0", "10001", "-1", "x", "", "1&part=2", "99999999999999999999"):
        upload.put(number, b"x").is_problem("invalid-argument")
    wire.call("PUT", upload.path, [], b"x").is_problem("invalid-argument")
    chunked = wire.call("PUT", f"{upload.path}&part=1", ["Transfer-Encoding: chunked"], b"x") \
        if wire.transport == "http1" else None
    if chunked:
        assert "Content-Length" in chunked.is_problem("invalid-argument")
    upload.put(1, b"x", "Content-Range: bytes 0-0/1").is_problem("invalid-argument")
    assert wire.call("GET", f"{upload.path}&maxResults=%31").status == 200
    for text in ('{"parts": ["1"]}', '{"parts": [{"part": 1, "etag": 5}]}', '{"parts": []}', '{"parts": [2, 1]}', '{"parts": [1, 1]}', '{"parts": [0]}',
                 '{"parts": [10001]}', '{"parts": [{"etag": "x"}]}', '{"parts": [{"part": 1, "size": 2}]}', '{"part": [1]}',
                 '[1]', 'x', '{"parts": [1.5]}'):
        upload.complete(text).is_problem("invalid-argument")
    for parts in ([2], [1, 2], [{"part": 1, "etag": "0" * 32}]):
        assert "Part " in upload.complete(parts).is_problem("invalid-argument")
    for path in ("&maxResults=0", "&maxResults=1001", "&after=x", "&after=1&after=2"):
        wire.call("GET", upload.path + path).is_problem("invalid-argument")
    for method in ("PATCH", "PUT", "GET", "DELETE"):
        response = wire.call(method, f"/b/photos/o/{folder}/a?parts")
        response.is_problem("method-not-allowed")
        assert response["allow"] == "POST, OPTIONS"
    wire.call("PATCH", upload.path).is_problem("method-not-allowed")
    assert wire.call("OPTIONS", upload.path)["allow"] == "GET, HEAD, PUT, POST, DELETE, OPTIONS"
    # The token is one object's.
    token = upload.path.split("?")[1]
    for path in (f"/b/photos/o/{folder}/b?{token}", f"/b/photos/o/{folder}/a?{token}x", f"/b/photos/o/{folder}/a?parts=x"):
        wire.call("GET", path).is_problem("upload-not-found")
    wire.call("POST", f"/b/photos/o/{folder}/b?{token}").is_problem("upload-not-found")
    # All of this has harmed nothing.
    assert upload.complete([1, 3]).status == 201 and wire.get(f"{folder}/a").body == first + DATA[:1000]


def test_a_link_is_not_for_parts(launch, tmp_path):
    keys = tmp_path / "link-keys"
    keys.write_text(new_key("k1"))
    keys.chmod(0o600)
    wire = Wire(launch(extra=f"links: {{ keys: {keys} }}\n"))
    upload = begin(wire, "a")
    link = sign(keys, "/b/photos/o/a", "--method", "PUT")
    for path in (f"{link}&parts=x&part=1", f"{link}&{upload.path.split('?')[1]}&part=1"):
        wire.call("PUT", path, [], b"bytes").is_problem("invalid-link")
    wire.missing("a")


def test_preconditions_are_those_of_the_beginning(wire, folder):
    first = wire.stored(f"{folder}/a", b"first")
    wire.call("POST", f"/b/photos/o/{folder}/a?parts", ["If-None-Match: *"]).is_problem("precondition-failed")
    upload = begin(wire, f"{folder}/a", f"If-Match: \"{first['etag']}\"")
    upload.stored(1, b"second")
    other = begin(wire, f"{folder}/a", f"If-Match: \"{first['etag']}\"")
    other.stored(1, b"third")
    assert upload.complete().status == 200
    other.complete().is_problem("precondition-failed")
    assert wire.get(f"{folder}/a").body == b"second"


def test_a_declared_length_is_enforced(wire, folder):
    length = int(begin(wire, f"{folder}/a").begun.json["minimumPartSize"]) + 2000
    upload = begin(wire, f"{folder}/a", f"Upload-Length: {length}")
    upload.stored(1, bytes(length - 1000))
    problem(upload.complete(), 400, "upload-length-mismatch")
    upload.stored(2, bytes(1000))
    assert upload.complete().json["size"] == str(length)


def test_small_parts_are_named(wire, folder):
    upload = begin(wire, f"{folder}/a")
    minimum = int(upload.begun.json["minimumPartSize"])
    for number in (1, 2):
        upload.stored(number, b"small")
    if minimum == 0:
        assert upload.complete().status == 201
        return
    assert str(minimum) in upload.complete().is_problem("invalid-argument")
    assert upload.complete([2]).status == 201


def test_a_cut_part_counts_for_nothing(server, folder):
    wire = Wire(server)
    upload = begin(wire, f"{folder}/a")
    upload.stored(1, b"whole")
    metric = 'sluice_uploads_staged_bytes{bucket="photos"}'
    before = server.metrics()[metric]
    request = Raw(server, "PUT", f"{upload.path}&part=1", [("Content-Length", 100_000)])
    request.send(DATA[:70_000])
    wait_until(lambda: server.metrics()[metric] == before + 100_000, what="the part")
    request.close()
    wait_until(lambda: server.metrics()[metric] == before, what="the end of the part")
    assert [part["size"] for part in upload.list()["parts"]] == ["5"]
    assert upload.complete().status == 201 and wire.get(f"{folder}/a").body == b"whole"


def test_an_end_stops_parts_that_are_being_sent(server, folder):
    wire = Wire(server)
    upload = begin(wire, f"{folder}/a")
    upload.stored(1, b"whole")
    request = Raw(server, "PUT", f"{upload.path}&part=1", [("Content-Length", 100_000), ("Expect", "100-continue")])
    assert request.head()[0] == 100
    request.send(DATA[:70_000])
    assert upload.complete([1]).status == 201
    request.send(DATA[70_000:100_000])
    assert request.head()[0] in (404, 409)
    request.close()
    assert wire.get(f"{folder}/a").body == b"whole"


def test_only_the_creator_continues(launch):
    tokens, entries = zip(*(new_token(name) for name in ("alice", "bob")))
    mine, yours = ([f"Authorization: Bearer {token}"] for token in tokens)
    wire = Wire(launch(extra="tokens:\n" + "".join(f"{entry}\n" for entry in entries)))
    upload = begin(wire, "a", *mine)
    upload.stored(1, b"mine", *mine)
    upload.put(1, b"yours", *yours).is_problem("upload-not-found")
    upload.put(1, b"nobody's").is_problem("unauthenticated")
    for method in ("GET", "DELETE", "POST"):
        wire.call(method, upload.path, yours).is_problem("upload-not-found")
        wire.call(method, upload.path).is_problem("unauthenticated")
    assert upload.complete(None, *mine).status == 201 and wire.get("a").body == b"mine"


RULES = """
rules_version = '2';
service firebase.storage {
  match /b/{bucket}/o {
    match /texts/{name=**} {
      allow get;
      allow create: if request.resource.contentType == 'text/plain' && request.resource.size < 2000
                       && request.resource.crc32c != null;
    }
    match /hashed/{name=**} { allow create: if request.resource.md5Hash != 'x'; }
    match /open/{name=**} { allow create; allow read; }
  }
}
"""


def test_the_rules_decide_with_the_true_facts(launch, tmp_path):
    (tmp_path / "storage.rules").write_text(RULES)
    wire = Wire(launch(rules=tmp_path / "storage.rules", tls=False))
    wire.call("POST", "/b/photos/o/none/a?parts").is_problem("unauthorized")
    wire.call("POST", "/b/photos/o/texts/a?parts", ["Content-Type: image/png"]).is_problem("unauthorized")
    upload = begin(wire, "texts/a", "Content-Type: text/plain")
    for number in (1, 2):
        upload.stored(number, DATA[:1000])
    upload.complete().is_problem("unauthorized")
    wire.missing("texts/a")
    upload = begin(wire, "texts/a", "Content-Type: text/plain")
    upload.stored(1, DATA[:1999])
    assert upload.complete().status == 201
    # There is no md5 of parts.
    upload = begin(wire, "hashed/a")
    upload.stored(1, DATA[:1999])
    upload.complete().is_problem("unauthorized")


def test_limits_count_the_parts(launch):
    server = launch(extra="uploads:\n  sessions: 2\n  stagedBytes: 3000\n")
    wire = Wire(server)
    first = begin(wire, "a")
    first.stored(1, DATA[:1000])
    first.stored(1, DATA[:1000])
    first.stored(2, DATA[:1000])
    second = begin(wire, "b")
    wire.call("POST", "/b/photos/o/c?parts").is_problem("too-many-uploads")
    second.put(1, DATA[:1001]).is_problem("too-many-uploads")
    second.stored(1, DATA[:1000])
    metrics = server.metrics()
    assert metrics['sluice_uploads_open{bucket="photos"}'] == 2
    assert metrics['sluice_uploads_staged_bytes{bucket="photos"}'] == 3000
    assert metrics['sluice_upload_appends_total{bucket="photos",dialect="parts",result="stored"}'] == 4
    assert first.complete().status == 201 and second.cancel().status == 204
    metrics = server.metrics()
    assert metrics['sluice_uploads_open{bucket="photos"}'] == 0 == metrics['sluice_uploads_staged_bytes{bucket="photos"}']
    assert metrics['sluice_uploads_total{bucket="photos",dialect="parts",end="finished"}'] == 1
    assert metrics['sluice_uploads_total{bucket="photos",dialect="parts",end="cancelled"}'] == 1


def test_too_large_objects_are_refused_without_harm(launch):
    wire = Wire(launch(buckets="  photos: { directory: { path: ./photos }, maximumObjectSize: 1500 }\n"))
    upload = begin(wire, "a")
    upload.put(1, DATA[:1501]).is_problem("payload-too-large")
    upload.stored(1, DATA[:1000])
    upload.stored(2, DATA[:1000])
    upload.complete().is_problem("payload-too-large")
    upload.stored(2, DATA[:500])
    assert upload.complete().json["size"] == "1500"


@pytest.fixture
def keyed(launch, tmp_path):
    """Starts a server with a key file: its uploads survive a restart."""
    def start(settings=""):
        done = subprocess.run([str(BINARY), "uploads", "new-key", "k1"], capture_output=True, text=True, check=True)
        (tmp_path / "upload.keys").write_text(done.stdout)
        secret(done.stdout.split()[1])
        return launch(extra=f"uploads:\n  keys: {tmp_path / 'upload.keys'}\n{settings}")

    return start


def operate(server, *words):
    command = [str(BINARY), "uploads", *words, "--operator", f"http://127.0.0.1:{server.operator}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_operators_see_cancel_and_sweep_uploads(keyed):
    server = keyed()
    wire = Wire(server)
    for size in (100, 200):
        upload = begin(wire, f"{size}")
        for _ in range(2):
            upload.stored(1, DATA[:size])
        upload.stored(2, DATA[:1])
    listed = json.loads(operate(server, "ls", "--json"))["uploads"]
    assert sorted((one["offset"], one["protocol"]) for one in listed) == [(101, "parts"), (201, "parts")], listed
    operate(server, "cancel", next(one["id"] for one in listed if one["offset"] == 201))
    upload.put(2, b"x").is_problem("upload-not-found")
    upload.complete([1]).is_problem("upload-not-found")
    assert [one["offset"] for one in json.loads(operate(server, "ls", "--json"))["uploads"]] == [101]


def test_an_expired_upload_is_removed(keyed):
    server = keyed("  lifetime: 2s\n")
    upload = begin(Wire(server), "a")
    upload.stored(1, DATA[:100_000])
    upload.stored(1, DATA[:100_000])
    wait_until(lambda: upload.put(2, b"x").status == 404, what="the expiry")
    operate(server, "sweep")
    assert server.metrics()['sluice_uploads_open{bucket="photos"}'] == 0
    server.stop()
    assert leftovers(server.directory / "photos") == []


def test_killed_gateways_lose_no_part(keyed):
    """Parts, ends and kills at random: what was acknowledged is there, and each object is exact and made once."""
    server, chance = keyed(), random.Random(5)
    wire = Wire(server)
    size = 40_000
    for turn in range(12):
        upload, acknowledged = begin(wire, f"{turn}"), {}
        for _ in range(chance.randrange(1, 9)):
            number, content = chance.randrange(1, 6), chance.randrange(15)
            body = DATA[content * size:(content + 1) * size][:chance.choice([size, size, size, 100])]
            if chance.randrange(3):
                upload.stored(number, body)
                acknowledged[number] = body
                continue
            request = Raw(server, "PUT", f"{upload.path}&part={number}", [("Content-Length", len(body))])
            request.send(body[:chance.randrange(len(body))])
            server.stop(signal.SIGKILL)
            request.close()
            server.start()
        listed = {part["part"]: part["etag"] for part in upload.list()["parts"]}
        assert listed == {number: hashlib.md5(body).hexdigest() for number, body in acknowledged.items()}
        if not listed:
            assert upload.cancel().status == 204
            continue
        done = upload.complete(sorted(listed))
        assert done.status == 201, done
        server.stop(signal.SIGKILL)
        server.start()
        assert upload.complete(sorted(listed)).json == done.json
        assert wire.get(f"{turn}").body == b"".join(acknowledged[number] for number in sorted(acknowledged))
    server.stop()
    assert leftovers(server.directory / "photos") == []
