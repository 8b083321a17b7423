"""Resumable uploads of the Firebase Storage protocol, command by command, with the bytes of the SDKs."""

import base64
import hashlib
import socket
import subprocess

import pytest

import wire as wire_client
from firebase import BOUNDARY, Firebase, Upload, active, encoded, final, refused, related
from program import BINARY, wait_until

DATA = hashlib.shake_256(b"firebase").digest(700_000)


def md5(data):
    return base64.b64encode(hashlib.md5(data).digest()).decode()


def test_the_start(each, folder):
    answer = each.start(f"{folder}/a b", 5, metadata={"contentType": "text/plain"})
    assert answer.status == 200 and answer.body == b"" and answer["content-length"] == "0"
    assert answer["x-goog-upload-status"] == "active" and answer["x-goog-upload-chunk-granularity"] == "262144"
    url = answer["x-goog-upload-url"]
    assert url == answer["x-goog-upload-control-url"]
    scheme, rest = url.split("://")
    port = each.wire.server.https if each.wire.transport == "h2" else each.wire.server.http
    assert scheme == each.wire.scheme and rest.startswith(f"127.0.0.1:{port}/v0/b/photos/o?name={encoded(folder)}%2Fa%20b&upload_id=")
    assert url.endswith("&upload_protocol=resumable") and answer["x-guploader-uploadid"] and answer["x-guploader-uploadid"] not in url


def test_the_tour_of_the_javascript_sdk(each, folder):
    upload = each.begin(f"{folder}/js", len(DATA), metadata={"contentType": "image/png", "metadata": {"k": "v"}}, kind="text/plain")
    for start, end in ((0, 262_144), (262_144, 524_288)):
        active(upload.command("upload", start, DATA[start:end]), end)
        assert upload.query() == ("active", end)
    refused(each.metadata(f"{folder}/js"), 404)
    stored = final(upload.command("upload, finalize", 524_288, DATA[524_288:]))
    assert stored["md5Hash"] == md5(DATA) and stored["contentType"] == "image/png" and stored["metadata"] == {"k": "v"}
    assert stored["downloadTokens"] and upload.query() == ("final", len(DATA))
    assert final(upload.command("query")) == stored
    assert each.get(f"{folder}/js").body == DATA and each.metadata(f"{folder}/js").json == stored


def test_the_tour_of_ios(client, folder):
    for content in (b"", b"hello"):
        start = client.call("POST", f"/{folder}%2Fios?name={folder}%2Fios&uploadType=resumable", [
            ("X-Goog-Upload-Protocol", "resumable"), ("X-Goog-Upload-Command", "start"), ("X-Goog-Upload-Content-Length", str(len(content))),
            ("X-Goog-Upload-Content-Type", "text/plain"), ("Content-Type", "application/json; charset=UTF-8")], b'{"name":"x"}')
        assert start.status == 200 and start.body == b"", start
        upload = Upload(client, start)
        stored = final(upload.command("upload, finalize", 0, content))
        assert stored["size"] == str(len(content)) and stored["contentType"] == "text/plain"


def test_an_upload_of_nothing(client, folder):
    # firebase-tools' cases: no length declared, empty requests, and a JSON body beside the command 'finalize'.
    first = client.begin(f"{folder}/a")
    active(first.command("upload", 0, method="PUT"), 0)
    assert final(first.command("finalize", method="PUT"))["size"] == "0"
    second = client.begin(f"{folder}/b")
    assert final(second.command("finalize", body=b"{}", fields=[("Content-Type", "application/json")]))["size"] == "0"
    third = client.begin(f"{folder}/c")
    assert final(third.command("upload, finalize", 0, method="PUT"))["size"] == "0"


@pytest.mark.parametrize("text", ["upload, finalize", "upload,finalize", "finalize, upload", "UPLOAD ,  Finalize", " upload,,finalize"])
def test_commands_are_lists(client, folder, text):
    assert final(client.begin(f"{folder}/a").command(text, 0, b"x"))["size"] == "1"


@pytest.mark.parametrize("text", ["", "start", "uploads", "upload; finalize", "query, upload", "cancel, finalize", "start, upload", "upload finalize", ","])
def test_unknown_commands_change_nothing(client, folder, text):
    client.stored(f"{folder}/a", b"old")
    upload = client.begin(f"{folder}/a")
    active(upload.command("upload", 0, b"abc"), 3)
    refused(upload.command(text, 3, b"x"), 400)
    refused(client.wire.call("POST", upload.path, [], b"new"), 400)
    assert upload.query() == ("active", 3) and client.get(f"{folder}/a").body == b"old"


def test_other_methods_on_upload_urls_change_nothing(client, folder):
    upload = client.begin(f"{folder}/a")
    for method in ("DELETE", "PATCH"):
        refused(client.wire.call(method, upload.path, [("X-Goog-Upload-Command", "cancel")]), 405)
    assert upload.query() == ("active", 0)


def test_offsets(each, folder):
    upload = each.begin(f"{folder}/o")
    active(upload.command("upload", 0, DATA[:1000]), 1000)
    for command in ("upload", "upload, finalize"):
        answer = active(upload.command(command, 1001, b"x"), 1000, status=400)
        refused(answer, 400)
    # Below the offset bytes are skipped, whatever they are.
    active(upload.command("upload", 0, b"other" * 200 + DATA[1000:1500]), 1500)
    active(upload.command("upload", 0, b"short"), 1500)
    active(upload.command("upload", 1499, b"?" + DATA[1500:1501]), 1501)
    active(upload.command("upload", 1501, b""), 1501)
    for wrong in (None, "", "-1", "x", "1.0", "99999999999999999999"):
        refused(upload.command("upload", wrong, b"x"), 400)
    refused(upload.command("upload, finalize", 3, b"too short"), 400)
    for wrong in (0, 1500, 1502):
        active(upload.command("finalize", wrong), 1501, status=400)
    final(upload.command("upload, finalize", 1024, b"!" * 477 + DATA[1501:]))
    assert each.get(f"{folder}/o").body == DATA


def test_lengths(client, folder):
    short = client.begin(f"{folder}/short", 10)
    active(short.command("upload", 0, b"12345"), 5)
    for _ in range(2):
        refused(active(short.command("finalize"), 5, status=400), 400)
    active(short.command("upload, finalize", 5, b"678"), 8, status=400)
    refused(client.metadata(f"{folder}/short"), 404)
    # One more byte than was declared is refused, and what is there can be finished.
    refused(short.command("upload", 8, b"9012"), 400)
    assert short.query()[0] == "active"
    assert final(short.command("upload, finalize", 8, b"90"))["size"] == "10"
    for wrong in ("x", "-1", "1 2"):
        refused(client.start(f"{folder}/x", wrong), 400)


def test_repeated_ends(client, folder):
    upload = client.begin(f"{folder}/a", 5)
    stored = final(upload.command("upload, finalize", 0, b"hello"))
    assert final(upload.command("finalize")) == stored == final(upload.command("upload, finalize", 0, b"hello"))
    refused(upload.command("upload", 5, b"x"), 400)
    assert upload.command("upload", 5, b"x")["x-goog-upload-status"] == "final"
    answer = upload.command("cancel")
    refused(answer, 400)
    assert answer["x-goog-upload-status"] == "final" and upload.query() == ("final", 5)
    assert client.metadata(f"{folder}/a").json["generation"] == stored["generation"]


def test_cancelling(each, folder):
    upload = each.begin(f"{folder}/a")
    active(upload.command("upload", 0, b"abc"), 3)
    for _ in range(2):
        answer = upload.command("cancel")
        assert (answer.status, answer["x-goog-upload-status"], answer.body) == (200, "cancelled", b""), answer
        assert upload.command("query")["x-goog-upload-status"] == "cancelled"
    for command, offset, body in (("upload", 3, b"x"), ("upload, finalize", 3, b"x"), ("finalize", None, None)):
        answer = upload.command(command, offset, body)
        assert "cancelled" in refused(answer, 400)
        assert answer["x-goog-upload-status"] == "cancelled"
    refused(each.metadata(f"{folder}/a"), 404)


def test_urls(client, folder):
    upload = client.begin(f"{folder}/a")
    other = Firebase(client.wire, bucket="none")
    for path in (upload.path.replace(upload.token, "foo"), upload.path.replace(upload.token, upload.token[:-2]),
                 upload.path.replace("%2Fa&", "%2Fb&"), f"/v0/b/photos/o/{folder}%2Fb?upload_id={upload.token}"):
        refused(upload.command("query", path=path), 404)
    for path in (f"/v0/b/photos/o?name={folder}%2Fa", f"/v0/b/photos/o/{folder}%2Fa", "/v0/b/photos/o"):
        refused(upload.command("query", path=path), 400)
    refused(upload.command("query", path=f"{upload.path}&upload_id=x"), 400)
    for path in (f"/v0/b/photos/o?upload_id={upload.token}", f"/v0/b/photos/o/{folder}%2Fa?upload_id={upload.token}"):
        assert upload.command("query", path=path)["x-goog-upload-status"] == "active"
    # A session of another dialect.
    native = client.wire.put(f"{folder}/a", b"x", ("Upload-Complete", "?0"))["location"].rpartition("/")[2]
    refused(upload.command("query", path=f"/v0/b/photos/o?upload_id={native}"), 404)
    assert client.wire.call("HEAD", f"/b/photos/u/{upload.token}").status == 404
    refused(upload.command("query", path=upload.path.replace("/photos/", "/none/")), 404)
    assert other.bucket == "none" and upload.query() == ("active", 0)


def test_hashes(client, folder):
    upload = client.begin(f"{folder}/a", metadata={"md5Hash": md5(b"hello")})
    active(upload.command("upload", 0, b"hel"), 3)
    assert final(upload.command("upload, finalize", 3, b"lo"))["size"] == "5"
    wrong = client.begin(f"{folder}/b", metadata={"md5Hash": md5(b"hello")})
    final(wrong.command("upload, finalize", 0, b"other"), status=400)
    refused(client.metadata(f"{folder}/b"), 404)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"contentType":1}', b"x" * 65537])
def test_starts_that_fail(client, folder, body):
    answer = client.start(f"{folder}/a", metadata=body)
    assert answer.status in (400, 413) and answer["x-goog-upload-status"] == "final", answer


def test_tokens_are_made_at_the_start_or_named(client, folder):
    upload = client.begin(f"{folder}/a", metadata={"metadata": {"firebaseStorageDownloadTokens": "mine"}})
    assert final(upload.command("upload, finalize", 0, b"x"))["downloadTokens"] == "mine"
    assert client.get(f"{folder}/a", token="mine")["cache-control"] == "private, max-age=0"


# MARK: Rules and callers

def test_rules_decide_at_the_start_and_at_the_end(ruled):
    client = ruled()
    nobody = client()
    for answer in (nobody.start("users/alice/a"), nobody.start("small/a", 10), nobody.start("text/a", kind="a/b")):
        assert refused(answer, 403) == "Permission denied. No WRITE permission."
        assert answer["x-goog-upload-status"] == "final"
    # Without a length it may be allowed.
    upload = nobody.begin("small/a")
    for command, body in (("upload, finalize", b"0123456789"), ("finalize", None), ("upload, finalize", b"0123456789")):
        answer = upload.command(command, 0 if body else None, body)
        assert answer["x-goog-upload-status"] == "final" and refused(answer, 403) == "Permission denied. No WRITE permission."
    answer = upload.command("query")
    assert answer["x-goog-upload-status"] == "final" and refused(answer, 403) == "Permission denied. No WRITE permission."
    refused(nobody.metadata("small/a"), 404)
    assert final(nobody.begin("small/a").command("upload, finalize", 0, b"12345"))["size"] == "5"
    assert nobody.begin("text/a", metadata={"contentType": "text/plain", "metadata": {"k": "v"}})
    once = [nobody.begin("once/a") for _ in range(2)]
    assert final(once[0].command("upload, finalize", 0, b"x")) and final(once[1].command("upload, finalize", 0, b"x"), status=403)


def test_rules_decide_on_uploads_in_one_request(ruled):
    nobody = ruled()()
    assert nobody.multipart("text/a", {"metadata": {"k": "v"}}, b"x").status == 200
    for answer in (nobody.multipart("text/a", {"metadata": {"k": "w"}}, b"x"), nobody.multipart("text/a", {"metadata": {"k": "v"}}, b"x", kind="a/b"),
                   nobody.put("small/a", b"0123456789"), nobody.multipart("small/a", {}, b"0123456789" * 100_000), nobody.put("users/alice/a", b"")):
        assert refused(answer, 403) == "Permission denied. No WRITE permission."
    # What may be there is not revealed.
    for method in ("GET", "DELETE", "PATCH"):
        assert nobody.call(method, "/users%2Falice%2Fa", [], "{}" if method == "PATCH" else None).status == 403


@pytest.mark.parametrize("transport", ["http1", "h2c"])
def test_a_denied_body_is_not_waited_for(ruled, transport):
    client = ruled()
    denied = Firebase(wire_client.Wire(client.server, transport))
    for _ in range(3):
        assert denied.multipart("users/alice/a", {}, b"x" * 3_000_000).status == 403
        assert denied.multipart("users/alice/a", {"metadata": 1}, b"x" * 3_000_000).status == 400
    wait_until(lambda: not client.server.live(), what=lambda: f"the end of {client.server.live()}")


def test_sessions_and_credentials(ruled):
    client = ruled()
    alice, bob, nobody = client("alice"), client("bob"), client()
    upload = alice.begin("users/alice/a", 10)
    # A request needs no credential, but one that is sent must be the creator's.
    active(upload.command("upload", 0, b"12345"), 5)
    active(upload.command("upload", 5, b"6", fields=alice.credential), 6)
    answer = upload.command("upload", 6, b"7", fields=bob.credential)
    refused(answer, 403)
    refused(upload.command("upload", 6, b"7", fields=[("Authorization", "Firebase x")]), 401)
    refused(upload.command("cancel", fields=bob.credential), 403)
    assert upload.query() == ("active", 6)
    assert final(upload.command("upload, finalize", 6, b"7890"))["size"] == "10"
    assert nobody.get("users/alice/a").status == 403 and alice.get("users/alice/a").body == b"1234567890"


def test_callers(ruled):
    client = ruled()
    alice = client("alice")
    token = alice.credential[0][1].split(" ")[1]
    for scheme in ("Firebase", "firebase", "Bearer"):
        assert client().call("PUT", "/users%2Falice%2Fa", [("Authorization", f"{scheme} {token}")], b"x").status == 200
    extra = [("X-Firebase-AppCheck", "x"), ("X-Firebase-GMPID", "y"), ("X-Firebase-Storage-Version", "webjs/x")]
    assert alice.metadata("users/alice/a", *extra).status == 200
    assert client().metadata("users/alice/a", *extra).status == 403
    for wrong in ("Firebase x", "Bearer owner", "Firebase owner", "Basic eDp4"):
        answer = client().metadata("users/alice/a", ("Authorization", wrong))
        refused(answer, 401)
        assert answer["www-authenticate"].startswith("Bearer")
    denied = client().metadata("users/alice/a")
    assert denied["www-authenticate"] is None


# MARK: Cuts and limits

def test_a_cut_chunk_keeps_its_bytes(client, firebase_server, folder):
    upload = client.begin(f"{folder}/a", len(DATA))
    with socket.create_connection(("127.0.0.1", firebase_server.http)) as raw:
        raw.sendall((f"POST {upload.path} HTTP/1.1\r\nHost: x\r\nX-Goog-Upload-Command: upload\r\nX-Goog-Upload-Offset: 0\r\n"
                     f"Content-Length: {len(DATA)}\r\n\r\n").encode() + DATA[:300_000])
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(4096):
            pass
    wait_until(lambda: upload.query() == ("active", 300_000), what="the bytes of the cut chunk")
    assert final(upload.command("upload, finalize", 262_144, DATA[262_144:]))["md5Hash"] == md5(DATA)


def test_a_cut_multipart_body_stores_nothing(client, firebase_server, folder):
    body = related({}, DATA)
    for length in (10, 200, 300, 100_000, len(body) - 1):
        with socket.create_connection(("127.0.0.1", firebase_server.http)) as raw:
            raw.sendall((f"POST /v0/b/photos/o?name={folder}%2Fa HTTP/1.1\r\nHost: x\r\nX-Goog-Upload-Protocol: multipart\r\n"
                         f"Content-Type: multipart/related; boundary={BOUNDARY}\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body[:length])
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(4096):
                pass
    refused(client.metadata(f"{folder}/a"), 404)


def test_sizes(launch, tmp_path):
    buckets = f"  photos: {{ directory: {{ path: {tmp_path}/photos }}, maximumObjectSize: 1000 }}\n"
    client = Firebase(wire_client.Wire(launch(extra="firebase: true\n", buckets=buckets)))
    for answer in (client.put("a", b"x" * 1001), client.multipart("a", {}, b"x" * 1001), client.start("a", 1001)):
        refused(answer, 413)
    assert client.multipart("a", {}, b"x" * 1000).status == 200
    # Not even an epilogue has no end.
    refused(client.raw_multipart("a", related({}, b"x") + b"\r\n" + b"x" * 1_100_000), 413)
    upload = client.begin("b")
    refused(upload.command("upload", 0, b"x" * 1001), 413)
    assert final(upload.command("upload, finalize", 0, b"x" * 1000))["size"] == "1000"


def test_limits_are_503(launch):
    client = Firebase(wire_client.Wire(launch(extra="firebase: true\nuploads: { sessions: 1 }\n")))
    first = client.begin("a")
    answer = client.start("b")
    refused(answer, 503)
    assert answer["retry-after"] and answer["x-goog-upload-status"] is None
    first.command("cancel")
    assert client.start("b").status == 200
    limited = Firebase(wire_client.Wire(launch(extra="firebase: true\ncallers: { anonymous: { requests: 1 } }\n")))
    answers = [limited.metadata("none") for _ in range(10)]
    assert {answer.status for answer in answers} == {404, 503}
    over = next(answer for answer in answers if answer.status == 503)
    refused(over, 503)
    assert over["retry-after"] and over["access-control-expose-headers"] is None
    # Preflights count too, against the same limit.
    preflights = [limited.call("OPTIONS", "/a", [("Origin", "https://a.example"), ("Access-Control-Request-Method", "GET")]) for _ in range(10)]
    assert 503 in {answer.status for answer in preflights} <= {204, 503}


def test_the_public_url(launch):
    client = Firebase(wire_client.Wire(launch(extra="firebase: true\nuploads: { publicURL: https://cdn.example }\n")))
    assert client.begin("a").url.startswith("https://cdn.example/v0/b/photos/o?name=a&upload_id=")


def test_a_session_outlives_the_process(launch, tmp_path):
    keys = tmp_path / "keys"
    made = subprocess.run([str(BINARY), "uploads", "new-key", "one"], capture_output=True, check=True)
    keys.write_bytes(made.stdout)
    buckets = f"  photos: {{ directory: {{ path: {tmp_path}/photos }} }}\n"
    extra = f"firebase: true\nuploads: {{ keys: {keys} }}\n"
    server = launch(extra=extra, buckets=buckets)
    upload = Firebase(wire_client.Wire(server)).begin("a", len(DATA))
    active(upload.command("upload", 0, DATA[:300_000]), 300_000)
    server.stop(9)
    client = Firebase(wire_client.Wire(launch(extra=extra, buckets=buckets)))
    upload.client = client
    assert upload.query() == ("active", 300_000)
    assert final(upload.command("upload, finalize", 300_000, DATA[300_000:]))["md5Hash"] == md5(DATA)
