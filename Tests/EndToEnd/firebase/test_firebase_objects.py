"""Objects over the Firebase Storage protocol: uploads in one request, metadata, downloads, deletion, failures."""

import base64
import hashlib
import json
import re

import pytest

import wire as wire_client
from firebase import BOUNDARY, Firebase, encoded, refused, related

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def md5(data):
    return base64.b64encode(hashlib.md5(data).digest()).decode()


def test_a_media_upload(each, folder):
    stored = each.stored(f"{folder}/a b+c.txt", b"foo", "text/plain")
    assert stored == {
        "name": f"{folder}/a b+c.txt", "bucket": "photos", "generation": stored["generation"], "metageneration": "1",
        "contentType": "text/plain", "timeCreated": stored["timeCreated"], "updated": stored["timeCreated"],
        "storageClass": "STANDARD", "size": "3", "md5Hash": md5(b"foo"), "crc32c": "z8SuHQ==", "etag": stored["etag"],
        "contentEncoding": "identity", "contentDisposition": "inline", "downloadTokens": stored["downloadTokens"]}
    assert TIME.fullmatch(stored["timeCreated"]) and UUID.fullmatch(stored["downloadTokens"])
    assert stored["generation"].isdigit() and stored["etag"]
    assert each.metadata(f"{folder}/a b+c.txt").json == stored
    assert each.get(f"{folder}/a b+c.txt").body == b"foo"


@pytest.mark.parametrize("path", ["?name=%s", "/%s", "/%s?name=other", "/?name=%s"])
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_where_the_name_is(client, folder, path, method):
    name = f"{folder}/a/b c"
    answer = client.call(method, path % encoded(name), [("Content-Type", "a/b")], b"x")
    assert answer.status == 200 and answer.json["name"] == name and answer.json["contentType"] == "a/b", answer


def test_names_are_decoded_once(client, folder):
    for name in ("a%2Fb", "a+b", "ä ö", "%41", "a?b&c=d"):
        assert client.stored(f"{folder}/{name}")["name"] == f"{folder}/{name}"
        assert client.metadata(f"{folder}/{name}").json["name"] == f"{folder}/{name}"
        assert client.wire.get(f"{folder}/{encoded(name)}").status == 200
    # In a query a plus sign is a space, in a path it is itself.
    assert client.call("POST", f"?name={folder}%2Fx+y", [], b"").json["name"] == f"{folder}/x y"
    assert client.call("POST", f"?name={folder}%2Fx%2By", [], b"").json["name"] == f"{folder}/x+y"
    assert client.call("POST", f"/{folder}%2Fz+z", [], b"").json["name"] == f"{folder}/z+z"


@pytest.mark.parametrize("name", ["a//b", "a/", "/a", ".", "a/../b", "a\nb", "x" * 1025, ".sluice/x"])
def test_names_that_are_none(client, name):
    for answer in (client.put(name, b"x"), client.metadata(name), client.get(name), client.delete(name), client.patch(name, {}),
                   client.start(name)):
        refused(answer, 400)


@pytest.mark.parametrize("path", ["?name=", "", "?name=a&name=b", "?name=%ff", "?name=%"])
def test_uploads_without_a_name(client, path):
    refused(client.call("POST", path, [], b"x"), 400)


def test_defaults(client, folder):
    assert client.stored(f"{folder}/a.txt", b"")["contentType"] == "application/octet-stream"
    again = client.put(f"{folder}/a.txt", b"more", "", fields=[("Cache-Control", "no-cache"), ("X-Object-Meta-K", "v")]).json
    # The body's type is all that the head says of the object.
    assert "cacheControl" not in again and "metadata" not in again


def test_a_multipart_upload(each, folder):
    metadata = {"name": "other", "contentType": "image/png", "cacheControl": "max-age=3", "contentDisposition": "attachment",
                "contentEncoding": "gzip", "contentLanguage": "de", "md5Hash": md5(b"bytes"), "unknown": {"a": 1},
                "metadata": {"k": "v", "n": 1.0, "t": True, "o": {"a": [1, None]}, "s": None}}
    answer = each.multipart(f"{folder}/m", metadata, b"bytes")
    assert answer.status == 200, answer
    stored = answer.json
    assert stored["name"] == f"{folder}/m" and stored["contentType"] == "image/png" and stored["size"] == "5"
    assert stored["metadata"] == {"k": "v", "n": "1", "t": "true", "o": '{"a":[1,null]}', "s": "null"}
    assert [stored[key] for key in ("cacheControl", "contentDisposition", "contentEncoding", "contentLanguage")] == [
        "max-age=3", "attachment", "gzip", "de"]
    got = each.get(f"{folder}/m")
    assert got.body == b"bytes" and got["content-encoding"] == "gzip" and got["content-language"] == "de"
    assert got["content-disposition"] == "attachment" and got["cache-control"] == "max-age=3"


@pytest.mark.parametrize("content", [b"", b"\r\n", b"\r\n--", b"\r\r\n\r\n--" + BOUNDARY[:-1].encode() + b"\r\n-", b"--" + BOUNDARY.encode(),
                                     bytes(range(256)) * 3000, b"\r" * 70_000, b"\r\n--0" * 20_000])
def test_multipart_content_is_kept(client, folder, content):
    stored = client.multipart(f"{folder}/m", {}, content)
    assert stored.status == 200 and stored.json["md5Hash"] == md5(content), stored
    assert client.get(f"{folder}/m").body == content


@pytest.mark.parametrize("kind, boundary", [
    ('multipart/related; boundary="B B"', "B B"), ("Multipart/Related;boundary=B", "B"), ("multipart/related; type=x; BOUNDARY = 'B'", "B"),
    ('multipart/related; boundary="' + "b" * 70 + '"', "b" * 70), ("multipart/related; boundary==_a/b:c?", "=_a/b:c?")])
def test_boundaries(client, folder, kind, boundary):
    answer = client.raw_multipart(f"{folder}/m", related({"metadata": {"k": "v"}}, b"x", boundary=boundary), kind=kind)
    assert answer.status == 200 and answer.json["metadata"] == {"k": "v"} and answer.json["size"] == "1", answer


@pytest.mark.parametrize("kind", ["foo", "multipart/related", "multipart/related; boundary=", "multipart/mixed; boundary=B",
                                  "multipart/related; boundary=" + "b" * 71, "multipart/related; boundary=B; boundary=B",
                                  'multipart/related; boundary="B', "multipart/related; boundary=a\u00e4", None])
def test_bad_content_types(client, folder, kind):
    fields = [("X-Goog-Upload-Protocol", "multipart"), *([("Content-Type", kind)] if kind else [])]
    refused(client.call("POST", f"?name={folder}%2Fm", fields, related({}, b"x", boundary="B")), 400, "Bad content type.")


GOOD = related({"k": 1}, b"content")
B = BOUNDARY.encode()
HEAD = b"--" + B + b"\r\nContent-Type: application/json\r\n\r\n"


@pytest.mark.parametrize("body", [
    None, b"", b"x", GOOD[:-1], GOOD[:-3], GOOD[:40], GOOD[:-len(B) - 10], GOOD[2:], b"x" * 8192 + b"\r\n" + GOOD,
    HEAD + b"{}\r\n--" + B + b"--", related({}, b"x")[:-2] + b"\r\nContent-Type: a/b\r\n\r\nthird\r\n--" + B + b"--",
    GOOD.replace(b"Content-Type: text/plain\r\n", b""), GOOD.replace(b"Content-Type: text", b"Content-Type : text"),
    GOOD.replace(b"Content-Type: text", b"Content-Type: text\r\n folded"), GOOD.replace(b"text/plain", b"a/b\r\nContent-Type: c/d"),
    GOOD.replace(b"text/plain", b""), GOOD.replace(b"text/plain", b"a\x00b"), GOOD.replace(b"text/plain", b"a" * 9000),
    related(b"{", b"x"), related(b"[]", b"x"), related(b'{"a":1,"a":2}', b"x"), related(b"\xff", b"x"),
    related(b'{"contentType":5}', b"x"), related(b'{"metadata":"x"}', b"x"), related(b'{"md5Hash":"x"}', b"x"),
    related(b'{"contentType":"a\\nb"}', b"x"), related(b'{"metadata":{"":"x"}}', b"x"), related(b'{"metadata":{"sluice-x":"y"}}', b"x"),
    related({"metadata": {"k": "v" * 9000}}, b"x"), related(b'{"a":"' + b"a" * 65536 + b'"}', b"x"),
    GOOD.replace(b"--" + B + b"\r\nContent-Type: text", b"--" + B + b"x\r\nContent-Type: text"),
])
def test_malformed_bodies_store_nothing(client, folder, body):
    refused(client.raw_multipart(f"{folder}/m", body), 400)
    refused(client.metadata(f"{folder}/m"), 404)


def test_what_other_clients_write_is_accepted(client, folder):
    assert client.raw_multipart(f"{folder}/m", GOOD + b"\r\n").status == 200
    assert client.raw_multipart(f"{folder}/m", GOOD + b"junk" * 100_000).json["size"] == "7"
    assert client.raw_multipart(f"{folder}/m", GOOD.replace(B + b"\r\n", B + b" \t\r\n")).json["size"] == "7"
    for body in (b"a preamble\r\n" + GOOD, b"\r\n" + GOOD, GOOD.replace(b"\r\n", b"\n"), b"a preamble\n" + GOOD.replace(b"\r\n", b"\n")):
        assert client.raw_multipart(f"{folder}/m", body).json["size"] == "7"


def test_digests(client, folder):
    refused(client.multipart(f"{folder}/m", {"md5Hash": md5(b"other")}, b"bytes"), 400)
    refused(client.metadata(f"{folder}/m"), 404)
    assert client.put(f"{folder}/m", b"x", fields=[("Content-MD5", md5(b"x"))]).status == 200
    refused(client.put(f"{folder}/m", b"x", fields=[("Content-MD5", md5(b"y"))]), 400)


def test_patches(each, folder):
    name = f"{folder}/p"
    first = each.multipart(name, {"metadata": {"a": "1", "b": "2"}, "cacheControl": "no-cache"}, b"x").json
    change = {"contentType": "text/x", "cacheControl": None, "contentLanguage": "fr", "metadata": {
        "a": None, "c": 3, "d": [1, [2, None], "x"], "e": {"f": 1}, "g": False, "firebaseStorageDownloadTokens": "stolen"},
        "name": "other", "size": "9", "downloadTokens": "stolen", "contentEncoding": "identity", "contentDisposition": "inline"}
    answer = each.patch(name, change)
    assert answer.status == 200 and answer["content-encoding"] is None, answer
    second = answer.json
    assert second["metadata"] == {"b": "2", "c": "3", "d": "1,2,,x", "e": "[object Object]", "g": "false"}
    assert (second["contentType"], second["contentLanguage"], second["metageneration"]) == ("text/x", "fr", "2")
    assert second["generation"] == first["generation"] and second["downloadTokens"] == first["downloadTokens"]
    assert "cacheControl" not in second and second["name"] == name and second["size"] == "1"
    third = each.call("PUT", f"/{encoded(name)}", [("X-HTTP-Method-Override", "PATCH")], json.dumps({"contentType": None, "metadata": None})).json
    assert "contentType" not in third and "metadata" not in third and third["metageneration"] == "3"
    assert third["downloadTokens"] == first["downloadTokens"]
    assert each.call("POST", f"/{encoded(name)}", [("X-HTTP-Method-Override", "patch")], "{}").json["metageneration"] == "4"
    assert each.get(name)["content-type"] == "application/octet-stream"
    native = each.wire.metadata(name)
    assert "contentEncoding" not in native and "contentDisposition" not in native


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '{"contentType":1}', '{"metadata":[]}', '{"metadata":{"":"x"}}',
                                  '{"metadata":{"sluice-a":"x"}}', '{"cacheControl":"a\\u0000"}', '{"metadata":{"k":"%s"}}' % ("x" * 9000)])
def test_malformed_patches(client, folder, body):
    client.stored(f"{folder}/p")
    refused(client.patch(f"{folder}/p", body), 400)
    assert client.metadata(f"{folder}/p").json["metageneration"] == "1"


def test_patches_that_are_too_large(client, folder):
    client.stored(f"{folder}/p")
    refused(client.patch(f"{folder}/p", '{"a":"%s"}' % ("x" * 65536)), 413)
    refused(client.patch(f"{folder}/none", {}), 404)
    refused(client.call("POST", f"/{folder}%2Fp", [("X-HTTP-Method-Override", "DELETE")], ""), 400)
    assert client.metadata(f"{folder}/p").status == 200


def test_deletion(each, folder):
    each.stored(f"{folder}/d")
    answer = each.delete(f"{folder}/d")
    assert answer.status == 204 and answer.body == b""
    assert refused(each.delete(f"{folder}/d"), 404) == "Not Found."


def test_downloads(each, folder):
    name = f"{folder}/sub/n\u00e4me (1).txt"
    stored = each.stored(name, b"0123456789", "text/html")
    for method in ("GET", "HEAD"):
        got = each.get(name, method=method)
        assert got.status == 200 and got.body == (b"0123456789" if method == "GET" else b"")
        assert got["content-type"] == "text/html" and got["content-length"] == "10" and got["accept-ranges"] == "bytes"
        assert got["content-disposition"] == "inline; filename*=utf-8''n%C3%A4me%20%281%29.txt"
        assert got["etag"] == f'"{stored["etag"]}"' and got["last-modified"] and got["x-content-type-options"] == "nosniff"
        assert got["x-goog-generation"] == stored["generation"] and got["x-goog-metageneration"] == "1"
        assert got["x-goog-hash"] == f"crc32c={stored['crc32c']},md5={stored['md5Hash']}"
        assert got["x-goog-stored-content-length"] == "10" and got["x-goog-storage-class"] == "STANDARD"
        assert got["content-encoding"] is None and got["cache-control"] == "private, max-age=0" and got["content-language"] is None
    assert each.get(name, ("If-None-Match", got["etag"])).status == 304
    refused(each.get(name, ("If-Match", '"x"')), 412)


@pytest.mark.parametrize("field, status, body", [
    ("bytes=0-3", 206, b"0123"), ("bytes=8-99", 206, b"89"), ("bytes=-2", 206, b"89"), ("bytes=10-", 416, None), ("bytes=0-1,3-4", 200, b"0123456789"),
    ("bytes=x", 200, b"0123456789"), ("lines=0-1", 200, b"0123456789")])
def test_ranges(client, folder, field, status, body):
    client.stored(f"{folder}/r", b"0123456789")
    got = client.get(f"{folder}/r", ("Range", field))
    assert got.status == status, got
    if status == 416:
        refused(got, 416)
        assert got["content-range"] == "bytes */10"
    else:
        assert got.body == body
    if status == 206:
        start = b"0123456789".index(body)
        assert got["content-range"] == f"bytes {start}-{start + len(body) - 1}/10"


@pytest.mark.parametrize("field", ["bytes=0-9", "bytes=0-0", "bytes=5-", "bytes=-1"])
def test_an_empty_object_ignores_ranges(each, folder, field):
    each.stored(f"{folder}/e", b"")
    got = each.get(f"{folder}/e", ("Range", field))
    assert got.status == 200 and got.body == b"" and got["content-length"] == "0", got
    # Chromium responds to the next range with 416 itself if it has stored the empty object.
    assert got["cache-control"] == "no-store", got


def test_the_root(each):
    for path in ("/v0", "/v0/"):
        got = each.wire.call("GET", path)
        assert got.status == 200 and got.json == {}, got
    assert each.wire.call("HEAD", "/v0").status == 200


@pytest.mark.parametrize("path", ["/v0/b", "/v0/b/photos", "/v0/b/photos/", "/v0/x/photos/o", "/v0/b/photos/o/a/b", "/v0/b//o", "/v0/b/none/o/a",
                                  "/v0/b/photos%2F/o/a", "/v0/b/%ff/o", "/v0/b/%/o", "/v1"])
def test_paths_that_lead_nowhere(client, path):
    for method in ("GET", "POST", "DELETE"):
        answer = client.wire.call(method, path)
        if path == "/v1":
            assert answer["content-type"] == "application/problem+json"
        else:
            assert refused(answer, 404) == "Not Found."


def test_methods(client, folder):
    client.stored(f"{folder}/a")
    for method, path in (("TRACE", f"/{folder}%2Fa"), ("DELETE", ""), ("PATCH", ""), ("PROPFIND", "")):
        answer = client.call(method, path)
        refused(answer, 405)
        assert answer["allow"]
    refused(client.put(f"{folder}/a", b"", fields=[("X-Goog-Upload-Protocol", "raw")]), 400)


ROUTES = [("GET", "/a"), ("GET", "/a?alt=media"), ("GET", ""), ("POST", "?name=x"), ("DELETE", "/a"), ("PATCH", "/a"), ("OPTIONS", "")]


@pytest.mark.parametrize("method, path", ROUTES)
def test_it_is_off_by_default(http1, method, path):
    for bucket in ("photos", "none"):
        Firebase(http1, bucket=bucket).call(method, path).is_problem("not-found")
    http1.call("GET", "/v0").is_problem("not-found")


def test_a_bucket_without_it_is_unknown(launch, tmp_path):
    buckets = "".join(f"  {name}: {{ directory: {{ path: {tmp_path}/{name} }}, firebase: {value} }}\n"
                      for name, value in (("photos", "false"), ("other", "true")))
    wire = wire_client.Wire(launch(buckets=buckets))
    wire.stored("a")
    for method, path in ROUTES:
        answer, other = Firebase(wire).call(method, path), Firebase(wire, bucket="none").call(method, path)
        if method == "OPTIONS":
            # The same for every bucket: a browser would hide any failure from its page.
            assert answer.status == other.status == Firebase(wire, bucket="other").call(method, path).status == 204
            continue
        assert refused(answer, 404) == refused(other, 404) == "Not Found."
    assert wire.get("a").status == 200


def test_one_bucket_alone(launch, tmp_path):
    buckets = "".join(f"  {name}: {{ directory: {{ path: {tmp_path}/{name} }}, firebase: {value} }}\n"
                      for name, value in (("photos", "true"), ("other", "false"), ("third", "null")))
    wire = wire_client.Wire(launch(buckets=buckets))
    assert Firebase(wire).put("a", b"x").status == 200
    refused(Firebase(wire, bucket="other").put("a", b"x"), 404)
    refused(Firebase(wire, bucket="third").put("a", b"x"), 404)


def test_preconditions(client, folder):
    stored = client.stored(f"{folder}/a")
    refused(client.put(f"{folder}/a", b"y", fields=[("If-None-Match", "*")]), 412)
    refused(client.patch(f"{folder}/a", {}, ("If-Match", '"x"')), 412)
    assert client.patch(f"{folder}/a", {}, ("If-Match", f'"{stored["etag"]}"')).status == 200
