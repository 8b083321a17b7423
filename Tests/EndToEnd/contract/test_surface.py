"""The HTTP contract that all requests share: routes, methods, problems, request ids, CORS, operator endpoints."""

import json
import re
import urllib.error
import urllib.request

import pytest

import wire as wire_client
from program import Server, wait_until

OBJECT_METHODS = {"GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"}


def words(text):
    return set(re.split(r", *", text))


@pytest.mark.parametrize("path", [
    "/", "/b", "/b/", "/b/photos", "/b/photos/", "/b/photos/x", "/b/photos/oo", "/b/photos/o.", "/b//o/a", "/B/photos/o/a",
    "/v0/b/photos/o/a", "/metrics", "/readyz", "/favicon.ico", "//b/photos/o/a", "/b/photos/O/a", "/b/photos%2Fo/a", "/?b",
])
def test_an_unknown_route(wire, path):
    for method in ("GET", "PUT", "DELETE", "POST"):
        wire.call(method, path).is_problem("not-found")
    assert wire.call("HEAD", path).status == 404


@pytest.mark.parametrize("bucket", ["none", "Photos", "photos.", "%70hotoz", "%00", "%FF", "x" * 300])
def test_an_unknown_bucket(wire, bucket):
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        wire.call(method, f"/b/{bucket}/o/a", body=b"{}").is_problem("bucket-not-found")
    wire.call("GET", f"/b/{bucket}/o").is_problem("bucket-not-found")
    wire.call("OPTIONS", f"/b/{bucket}/o/a").is_problem("bucket-not-found")


def test_a_bucket_is_decoded_too(wire, folder):
    wire.stored(f"{folder}/a", b"x")
    assert wire.get(f"{folder}/a", bucket="%70hoto%73").body == b"x"
    wire.get(f"{folder}/a", bucket="photos%").is_problem("invalid-name")


@pytest.mark.parametrize("method", ["POST", "TRACE", "COPY", "MKCOL", "PROPFIND", "FOO", "get"])
def test_an_unsupported_method(wire, folder, method):
    response = wire.call(method, f"/b/photos/o/{folder}/a")
    response.is_problem("method-not-allowed")
    assert words(response["allow"]) == OBJECT_METHODS


def test_methods_of_lists_and_metadata(wire, folder):
    for method in ("PUT", "POST", "PATCH", "DELETE"):
        response = wire.call(method, "/b/photos/o", body=b"{}")
        response.is_problem("method-not-allowed")
        assert words(response["allow"]) == {"GET", "HEAD", "OPTIONS"}
    wire.stored(f"{folder}/a", b"x")
    for method in ("PUT", "POST", "DELETE"):
        response = wire.call(method, f"/b/photos/o/{folder}/a?metadata", body=b"{}")
        response.is_problem("method-not-allowed")
        assert words(response["allow"]) == {"GET", "HEAD", "PATCH", "OPTIONS"}
    assert wire.patch(f"{folder}/a?metadata", {}).status == 200
    assert wire.get(f"{folder}/a").body == b"x"


def test_options_without_cors(wire, folder):
    for path, allowed in ((f"/{folder}/a", OBJECT_METHODS), ("", {"GET", "HEAD", "OPTIONS"}), ("/a/", {"GET", "HEAD", "OPTIONS"}),
                          ("/a?metadata", {"GET", "HEAD", "PATCH", "OPTIONS"})):
        response = wire.call("OPTIONS", f"/b/photos/o{path}", [
            "Origin: https://app.example", "Access-Control-Request-Method: PUT"])
        assert response.status == 204 and response.body == b"" and words(response["allow"]) == allowed
        assert not [name for name, _ in response.fields if name.startswith("access-control")]
    assert wire.get(f"{folder}/", "Origin: https://app.example")["access-control-allow-origin"] is None


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("cors"), extra=(
        "cors: { origins: ['https://app.example', 'https://b.example'], maximumAge: 90s, exposedHeaders: [etag, x-request-id] }\n"))
    yield running
    assert running.stop() == 0


@pytest.mark.parametrize("transport", wire_client.TRANSPORTS)
def test_cors(shared, transport):
    client = wire_client.Wire(shared, transport)
    preflight = ["Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: content-type, x-object-meta-a"]
    response = client.call("OPTIONS", "/b/photos/o/a", ["Origin: https://app.example", *preflight])
    assert response.status == 204 and response["access-control-allow-origin"] == "https://app.example"
    assert words(response["access-control-allow-methods"]) >= {"PUT", "GET"}
    assert words(response["access-control-allow-headers"]) == {"content-type", "x-object-meta-a"}
    assert response["access-control-max-age"] == "90"
    assert "Origin" in ", ".join(response.all("vary"))
    for origin in ("https://evil.example", "https://app.example.evil.example", "http://app.example", "null", "https://APP.example"):
        response = client.call("OPTIONS", "/b/photos/o/a", [f"Origin: {origin}", *preflight])
        assert not [name for name, _ in response.fields if name.startswith("access-control")], origin
        assert client.get("", f"Origin: {origin}")["access-control-allow-origin"] is None
        assert "Origin" in ", ".join(response.all("vary"))
    client.stored("a", b"x")
    for response in (client.get("a", "Origin: https://b.example"), client.get("none", "Origin: https://b.example"),
                     client.put("a", b"x", "Origin: https://b.example"), client.get("a//b", "Origin: https://b.example")):
        assert response["access-control-allow-origin"] == "https://b.example", response
        assert words(response["access-control-expose-headers"]) == {"etag", "x-request-id"}
        assert response["access-control-allow-credentials"] is None
    response = client.call("OPTIONS", "/b/photos/o/a", ["Origin: https://b.example"])
    assert response.status == 204 and response["access-control-allow-methods"] is None and response["allow"]


def test_cors_for_all(launch):
    client = wire_client.Wire(launch(extra="cors: { origins: ['*'] }\n"))
    response = client.get("none", "Origin: https://anything.example")
    assert response["access-control-allow-origin"] == "*"


def test_every_response_has_a_unique_request_id(wire, folder):
    responses = [wire.put(f"{folder}/a", b"x"), wire.get(f"{folder}/a"), wire.head(f"{folder}/a"), wire.get(f"{folder}/a?metadata"),
                 wire.get(f"{folder}/a", "If-None-Match: *"), wire.get(f"{folder}/a", "Range: bytes=0-0"), wire.get(f"{folder}/"),
                 wire.patch(f"{folder}/a", {}), wire.delete(f"{folder}/a"), wire.delete(f"{folder}/a"), wire.head(f"{folder}/a"),
                 wire.call("OPTIONS", "/b/photos/o/a"), wire.call("GET", "/nothing"), wire.call("POST", "/b/photos/o/a")]
    ids = [response["x-request-id"] for response in responses]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[\x21-\x7e]{8,64}", id) for id in ids)
    for response in responses:
        if response.status >= 400 and response.body:
            assert response.json["instance"] == response["x-request-id"]


def test_a_request_id_of_the_client_is_ignored(http1):
    response = http1.get("none", "X-Request-Id: forged")
    assert response["x-request-id"] != "forged"


def test_the_request_id_is_in_the_log(wire, server, folder):
    secret = "s3cret-value"
    response = wire.get(f"{folder}/none?token={secret}&x=1", f"Authorization: Bearer {secret}", f"Cookie: a={secret}")
    lines = wait_until(lambda: [line for line in server.output().splitlines() if f'"{response["x-request-id"]}"' in line])
    entry = json.loads(lines[0])
    assert entry["status"] == 404 and entry["path"] == f"/b/photos/o/{folder}/none" and entry["method"] == "GET"
    assert entry["code"] == "object-not-found" and entry["operation"] == "get" and entry["bucket"] == "photos"
    assert secret not in server.output()


def test_a_problem_contains_nothing_internal(wire, server):
    for response in (wire.get("none"), wire.get("a//b"), wire.call("GET", "/x"), wire.get("?pageToken=x")):
        assert str(server.directory) not in response.body.decode() and "Swift" not in response.body.decode()
        assert response["x-content-type-options"] == "nosniff" and response["cache-control"] == "no-store"


def operator(server, path, method="GET"):
    request = urllib.request.Request(f"http://127.0.0.1:{server.operator}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as response:
        return response.code, response.headers, response.read().decode()


def test_operator_endpoints(server, http1):
    assert operator(server, "/livez")[0] == operator(server, "/healthz")[0] == 200
    status, _, text = operator(server, "/readyz?verbose")
    assert status == 200 and "photos" in text
    status, fields, text = operator(server, "/metrics")
    assert status == 200 and fields["content-type"].startswith("text/plain")
    status, _, text = operator(server, "/version")
    assert status == 200 and text.strip()
    assert operator(server, "/b/photos/o")[0] == 404 and operator(server, "/nothing")[0] == 404
    assert operator(server, "/livez", "POST")[0] == 405
