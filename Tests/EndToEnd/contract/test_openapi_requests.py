"""Copies, moves, uploads in parts and deletions of many objects: each of their responses occurs, and is as openapi.yaml has it. They
share operations with other requests, so test_openapi.py brings about each status of their operations, but not of each request."""

import json

import pytest

from openapi import DESCRIPTION, OPERATIONS, call, check, head, send, validator
from openapi_gateways import Gateways
from secret_words import secret

POST, PUT, GET, HEAD, DELETE = (OPERATIONS[name] for name in ("postObject", "putObject", "getObject", "headObject", "deleteObject"))
DELETIONS = OPERATIONS["deleteObjects"]


@pytest.fixture(scope="module")
def gateways(tmp_path_factory):
    found = Gateways(tmp_path_factory.mktemp("requests"))
    yield found
    found.stop()


def ask(server, operation, query, status, *fields, body=b"", name="dir/new.png", code=None):
    """Makes a request, and checks its response against the description. Returns its JSON; for `HEAD` and 204 its fields."""
    response = call(server, operation, operation.target(query, name=name), fields, body)
    assert response.status == status, response
    check(operation, response)
    if operation is HEAD or status == 204:
        return response.fields
    found = json.loads(response.body)
    assert status < 400 or code is None or found["code"] == code, response
    return found


def has(schema, value):
    """Whether the value is as the schema has it, and not only as one of several."""
    return validator(DESCRIPTION["components"]["schemas"][schema]).is_valid(value)


def begun(server, *fields, **named):
    """The query of an upload in parts that has begun."""
    made = ask(server, POST, "parts", 201, *fields, **named)
    assert has("BegunUpload", made)
    return "parts=" + secret(made["url"].partition("?parts=")[2])


def test_copies_and_moves(gateways):
    server = gateways["plain"]
    for status in (201, 200):
        assert has("ObjectMetadata", ask(server, POST, "copyFrom=c.txt", status))
    change = b'{"cacheControl": null, "customMetadata": {"a": "b"}}'
    made = ask(server, POST, "copyFrom=c.txt", 200, ("Content-Type", "application/merge-patch+json"), body=change)
    assert "cacheControl" not in made and made["customMetadata"] == {"a": "b", "k": "v"}
    for status in (201, 200):
        assert has("ObjectMetadata", ask(server, POST, "moveFrom=dir%2Fnew.png", status, name="moved.png"))
        ask(server, POST, "copyFrom=c.txt", 201)
    for how in ("copyFrom", "moveFrom"):
        ask(server, POST, f"{how}=none", 404, code="object-not-found")
        ask(server, POST, f"{how}=dir%2Fnew.png", 400, code="invalid-argument")
        ask(server, POST, f"{how}=c.txt&sourceGeneration=1", 412, code="precondition-failed")
        ask(server, POST, f"{how}=c.txt", 412, ("If-None-Match", "*"), code="precondition-failed")
        ask(server, POST, f"{how}=c.txt", 413, body=bytes(64 * 1024 + 1), code="payload-too-large")
        ask(server, POST, f"{how}=c.txt", 415, ("Content-Type", "text/plain"), body=b"{}", code="unsupported-media-type")
        for digest in ("Content-MD5", "Content-Digest", "Repr-Digest"):
            ask(server, POST, f"{how}=c.txt", 400, (digest, "x"), code="invalid-argument")
        for kind, status in (("strict", 401), ("denying", 403), ("damaged", 500), ("unreachable", 502), ("busy", 503), ("full", 507)):
            ask(gateways[kind], POST, f"{how}=c.txt", status, *([("Authorization", "Bearer x")] if status == 401 else []))
        with gateways.stalled(how) as other:
            ask(other, POST, f"{how}=c.txt", 504)
        for operation in (GET, HEAD, PUT, DELETE, OPERATIONS["patchObject"]):
            ask(server, operation, f"{how}=c.txt", 405)
    assert ask(server, GET, "metadata", 200, name="c.txt")["size"] == "10"


def test_an_upload_in_parts(gateways):
    server = gateways["plain"]
    upload = begun(server, ("Content-Type", "text/x"), ("X-Object-Meta-Kind", "oak"), name="parts")
    assert ask(server, GET, upload, 200, name="parts") == {"parts": []}
    for number in (3, 1, 2):
        assert has("Part", ask(server, PUT, f"{upload}&part={number}", 200, body=b"abc", name="parts"))
    pages = [ask(server, GET, f"{upload}&maxResults=2{after}", 200, ("Range", "bytes=0-0"), ("If-Match", '"x"'), name="parts")
             for after in ("", "&after=2")]
    assert all(has("PartList", page) for page in pages)
    assert [[part["part"] for part in page["parts"]] for page in pages] == [[1, 2], [3]]
    assert [page.get("after") for page in pages] == [2, None]
    assert ask(server, HEAD, upload, 200, name="parts")["cache-control"] == "no-store"
    selection = b'{"parts": [1, {"part": 2, "etag": "900150983cd24fb0d6963f7d28e17f72"}]}'
    for _ in range(2):
        made = ask(server, POST, upload, 201, body=selection, name="parts")
        assert has("ObjectMetadata", made) and made["size"] == "6" and made["contentType"] == "text/x"
    for operation, query in ((GET, upload), (HEAD, upload), (PUT, f"{upload}&part=3")):
        ask(server, operation, query, 409, name="parts", code="upload-conflict")
    ask(server, DELETE, upload, 204, ("If-Match", '"x"'), name="parts")
    for operation, query in ((GET, upload), (HEAD, upload), (PUT, f"{upload}&part=3"), (POST, upload), (DELETE, upload)):
        ask(server, operation, query, 404, name="parts", code="upload-not-found")
    upload = begun(server, name="parts")
    ask(server, PUT, f"{upload}&part=1", 200, body=b"", name="parts")
    assert ask(server, POST, upload, 200, name="parts")["size"] == "0"


def test_the_beginning_of_an_upload_in_parts(gateways):
    server = gateways["plain"]
    ask(server, POST, "copyFrom=c.txt", 200, name="dir/a.png")
    ask(server, POST, "parts", 400, ("Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA=="), code="invalid-argument")
    ask(server, POST, "parts", 400, ("Repr-Digest", "md5=:AAAAAAAAAAAAAAAAAAAAAA==:"), code="invalid-argument")
    ask(server, POST, "parts", 412, ("If-None-Match", "*"), name="dir/a.png", code="precondition-failed")
    ask(server, POST, "parts", 413, ("Upload-Length", "100001"), code="payload-too-large")
    for kind, status in (("strict", 401), ("denying", 403), ("damaged", 500), ("unreachable", 502), ("unconditional", 501)):
        ask(gateways[kind], POST, "parts", status, *([("Authorization", "Bearer x")] if status == 401 else []))
    for operation in (GET, HEAD, PUT, DELETE, OPERATIONS["patchObject"]):
        ask(server, operation, "parts", 405)
        ask(server, operation, "parts=", 405)
    ask(server, OPERATIONS["patchObject"], begun(server), 405)


def test_a_part_and_the_end_of_an_upload_can_fail(gateways):
    server = gateways["plain"]
    upload = begun(server)
    part = f"{upload}&part=1"
    ask(server, PUT, upload, 400, code="invalid-argument")
    ask(server, PUT, part, 400, ("Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA=="), body=b"abc", code="checksum-mismatch")
    ask(server, PUT, part, 413, body=bytes(100_001), code="payload-too-large")
    chunked = send(server, PUT, head(PUT, PUT.target(part, name="dir/new.png"), [("Transfer-Encoding", "chunked")]) + b"0\r\n\r\n")
    assert chunked.status == 400
    check(PUT, chunked)
    ask(server, POST, upload, 400, code="invalid-argument")
    for number in (1, 2):
        ask(server, PUT, f"{upload}&part={number}", 200, body=bytes(50_001))
    for body in (b'{"parts": [2, 1]}', b'{"parts": [1, 1]}', b'{"parts": [3]}', b'{"parts": [{"part": 1, "etag": "x"}]}'):
        assert has("PartSelection", json.loads(body))
        ask(server, POST, upload, 400, body=body, code="invalid-argument")
    ask(server, POST, upload, 413, body=bytes((4 << 20) + 1), code="payload-too-large")
    ask(server, POST, upload, 413, code="payload-too-large")
    for name, field, status, code in (("digest", ("Repr-Digest", "crc32c=:AAAAAA==:"), 400, "checksum-mismatch"),
                                      ("length", ("Upload-Length", "2"), 400, "upload-length-mismatch"),
                                      ("condition", ("If-None-Match", "*"), 412, "precondition-failed")):
        upload = begun(server, field, name=name)
        ask(server, PUT, f"{upload}&part=1", 200, body=b"abc", name=name)
        ask(server, PUT, "", 201, name=name)
        ask(server, POST, upload, status, name=name, code=code)


def test_others_and_limits(gateways):
    server = gateways["tight"]
    alice, bob = server.credentials
    uploads = [(begun(server, *fields), fields) for fields in ([alice], [bob], [])]
    upload = uploads[0][0]
    for operation, query in ((GET, upload), (HEAD, upload), (PUT, f"{upload}&part=1"), (POST, upload), (DELETE, upload)):
        ask(server, operation, query, 401, code="unauthenticated")
        ask(server, operation, query, 404, bob, code="upload-not-found")
    ask(server, PUT, f"{upload}&part=1", 429, alice, body=bytes(501), code="too-many-uploads")
    for upload, fields in uploads[:2]:
        ask(server, PUT, f"{upload}&part=1", 200, *fields, body=bytes(500))
    ask(server, PUT, f"{uploads[2][0]}&part=1", 507, body=b"x", code="insufficient-storage")
    begun(server)
    ask(server, POST, "parts", 429, code="too-many-uploads")


def test_slow_bodies(gateways):
    server = gateways["slow"]
    ask(server, PUT, "", 201, name="c.txt")
    upload = begun(server)
    for operation, query in ((POST, "copyFrom=c.txt"), (POST, "moveFrom=c.txt"), (PUT, f"{upload}&part=1"), (POST, upload)):
        raw = head(operation, operation.target(query, name="dir/new.png"), [("Content-Length", "9")]) + b"{"
        response = send(server, operation, raw)
        assert response.status == 408, response
        check(operation, response)


def test_each_result_of_a_deletion(gateways):
    def results(server, *objects, fields=()):
        return ask(server, DELETIONS, "", 200, *fields, body=json.dumps({"objects": objects}).encode())["results"]

    server = gateways["plain"]
    for name in ("kept", "deleted"):
        ask(server, PUT, "", 201, name=name)
    found = results(server, {"name": "kept", "generation": "1"}, "deleted", "none", "a//b", {"name": "none", "metageneration": "1"})
    assert [(entry["name"], entry["status"], entry.get("code")) for entry in found] == [
        ("kept", 412, "precondition-failed"), ("deleted", 204, None), ("none", 404, "object-not-found"), ("a//b", 400, "invalid-name"),
        ("none", 404, "object-not-found")]
    for kind, status in (("denying", 403), ("damaged", 500), ("unreachable", 502), ("busy", 503), ("full", 507)):
        assert [entry["status"] for entry in results(gateways[kind], "a", "b")] == [status] * 2, kind
    with gateways.stalled("deletions") as other:
        assert [entry["status"] for entry in results(other, "a")] == [504]
    for operation in (OPERATIONS["listObjects"], OPERATIONS["headObjects"]):
        response = call(server, operation, operation.target("delete"))
        assert response.status == 405 and response.fields["allow"] == "POST, OPTIONS", response
        check(operation, response)


def test_watches(gateways):
    server, listing = gateways["watched"], OPERATIONS["listObjects"]
    for name, status in (("dir/a", 201), ("dir/a", 200)):
        ask(server, PUT, "", status, ("X-Object-Meta-K", "v"), ("Cache-Control", "no-cache"), body=b"abc", name=name)
    ask(server, OPERATIONS["patchObject"], "", 200, ("Content-Type", "application/json"), body=b"{}", name="dir/a")
    ask(server, DELETE, "", 204, name="dir/a")
    for operation in (listing, OPERATIONS["headObjects"]):
        response = call(server, operation, operation.target(""))
        assert response.fields["x-object-sequence"] == "4", response
        check(operation, response)
    found = ask(server, listing, "watch=0", 200)
    assert has("ObjectChanges", found) and not has("ObjectList", found)
    assert [event["type"] for event in found["events"]] == ["finalized", "finalized", "metadataUpdated", "deleted"]
    assert found["events"][1]["overwroteGeneration"] == found["events"][0]["generation"]
    assert ask(server, listing, "watch=4&wait=0s", 200) == {"sequence": "4", "events": []}
    ask(server, listing, "watch=5", 410, code="watch-expired")
    for query in ("watch=x", "watch=0&wait=61s", "watch=0&delimiter=/", "watch=0&view=full"):
        ask(server, listing, query, 400, code="invalid-argument")
    ask(gateways["plain"], listing, "watch=0", 501, code="not-implemented")
    ask(gateways["denying"], listing, "watch=0", 403, code="unauthorized")


def test_cross_origin_requests(gateways):
    server, origin = gateways["cors"], ("Origin", "https://app.example")
    preflight = [origin, ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "content-type")]
    ask(server, PUT, "", 201, name="c.txt")
    upload = begun(server, origin)
    for operation, query, status in ((POST, "copyFrom=c.txt", 201), (PUT, f"{upload}&part=1", 200), (GET, upload, 200), (HEAD, upload, 200),
                                     (POST, upload, 200), (GET, upload, 409), (DELETE, upload, 204), (DELETE, upload, 404),
                                     (POST, "moveFrom=c.txt", 200), (DELETIONS, "", 200)):
        response = call(server, operation, operation.target(query, name="dir/new.png"), [origin])
        assert response.status == status and response.fields["access-control-allow-origin"] == origin[1], response
        check(operation, response)
    for operation, query, allowed in (
            (OPERATIONS["optionsObject"], "copyFrom=c.txt", "POST, OPTIONS"), (OPERATIONS["optionsObject"], "moveFrom=c.txt", "POST, OPTIONS"),
            (OPERATIONS["optionsObject"], "parts", "POST, OPTIONS"), (OPERATIONS["optionsObjects"], "delete", "POST, OPTIONS"),
            (OPERATIONS["optionsObject"], "parts=x", "GET, HEAD, PUT, POST, DELETE, OPTIONS")):
        for fields in ([], [origin], preflight):
            response = call(server, operation, operation.target(query), fields)
            assert response.status == 204 and response.fields["allow"] == allowed, response
            check(operation, response)
