"""Uploads in several requests by draft-ietf-httpbis-resumable-upload, request by request, over each transport."""

import base64
import hashlib
import urllib.parse

import pytest

from secret_words import secret
from sessions import PARTIAL, Raw, Session, begin, complete, problem
from wire import Wire

DATA = hashlib.shake_256(b"resumable").digest(200_000)


def md5(data):
    return base64.b64encode(hashlib.md5(data).digest()).decode()


def test_the_tour(wire, folder):
    session = begin(wire, f"{folder}/a.txt", b"hello", ("Upload-Length", "9"), ("Content-Type", "text/plain"))
    created = session.created
    assert (created["upload-offset"], created["upload-complete"]) == ("5", "?0")
    assert created["location"].startswith("http") and created["content-location"] == f"/b/photos/o/{folder}/a.txt"
    assert created["upload-limit"].startswith("max-size=") and ", max-age=" in created["upload-limit"]
    # Nothing of it is visible.
    wire.missing(f"{folder}/a.txt")
    assert wire.call("GET", f"/b/photos/o?prefix={folder}/").json["items"] == []
    for method in ("HEAD", "GET"):
        state = session.head(method=method)
        assert state.status == 204 and state.body == b""
        assert (state["upload-offset"], state["upload-complete"], state["upload-length"]) == ("5", "?0", "9")
        assert state["cache-control"] == "no-store" and "max-age=" in state["upload-limit"]
    middle = session.patch(5, b" y")
    assert (middle.status, middle["upload-offset"], middle["upload-complete"]) == (204, "7", "?0")
    done = session.patch(7, b"ou", last=True)
    assert (done.status, done["upload-offset"], done["upload-complete"]) == (201, "9", "?1"), done
    assert done.json["md5Hash"] == md5(b"hello you") and done["etag"]
    got = wire.get(f"{folder}/a.txt")
    assert got.body == b"hello you" and got["content-type"] == "text/plain"


def test_a_finished_session_repeats_its_result(wire, folder):
    session = begin(wire, f"{folder}/o", DATA[:1000])
    first = session.patch(1000, DATA[1000:], last=True)
    assert first.status == 201
    again = session.patch(len(DATA), None, last=True)
    assert (again.status, again.json) == (201, first.json) and again["upload-complete"] == "?1"
    state = session.head()
    assert (state["upload-complete"], state["upload-offset"], state["upload-length"]) == ("?1", str(len(DATA)), str(len(DATA)))
    # A client takes a failure that is complete for the upload's result: these are not.
    for refused, code, kind in ((session.patch(len(DATA), b"more"), "upload-conflict", "completed-upload"),
                                (session.patch(len(DATA), b"more", last=True), "upload-conflict", "completed-upload"),
                                (session.patch(3, b"more"), "upload-offset-mismatch", "mismatching-upload-offset"),
                                (session.patch(3, None, last=True), "upload-offset-mismatch", "mismatching-upload-offset")):
        found = problem(refused, 409, code)
        assert found["type"] == f"https://iana.org/assignments/http-problem-types#{kind}"
        assert (refused["upload-complete"], refused["upload-offset"]) == ("?0", str(len(DATA)))
    # A body without bytes may have no length.
    chunked = session.patch(len(DATA), b"", ("Transfer-Encoding", "chunked"), last=True)
    assert (chunked.status, chunked.json) == (201, first.json)
    assert wire.get(f"{folder}/o").body == DATA
    # The object stays when the session is removed.
    assert session.cancel().status == 204 and session.head().status == 404
    assert wire.get(f"{folder}/o").status == 200


def test_creation_without_a_body_and_by_post(wire, folder):
    session = begin(wire, f"{folder}/o", None, ("Content-Type", PARTIAL), method="POST")
    assert session.created["upload-offset"] == "0"
    assert session.patch(0, DATA, last=True).status == 201
    # The label of the request is not the object's type.
    assert wire.get(f"{folder}/o")["content-type"] != PARTIAL
    again = begin(wire, f"{folder}/o", b"other", method="POST")
    replaced = again.patch(5, None, last=True)
    assert replaced.status == 200 and wire.get(f"{folder}/o").body == b"other"


def test_complete_without_a_version_is_a_plain_upload(wire, folder):
    for method, status in (("PUT", 201), ("POST", 200)):
        answer = wire.call(method, f"/b/photos/o/{folder}/o", [complete(True)], DATA)
        assert answer.status == status and answer.interim in ([], [100]) and answer["upload-complete"] == "?1", answer
        assert answer["location"] == f"/b/photos/o/{folder}/o"
    wire.call("POST", f"/b/photos/o/{folder}/o", [], b"x").is_problem("method-not-allowed")
    assert wire.put(f"{folder}/o", b"x", ("Upload-Complete", "?0;a=1")).status == 201


@pytest.mark.parametrize("fields", [
    [("Upload-Complete", "false")], [("Upload-Complete", "?0, ?0")], [("Upload-Complete", "")],
    [("Upload-Complete", "?0"), ("Upload-Complete", "?0")], [("Upload-Complete", "?1"), ("Upload-Complete", "?0")],
    [("Upload-Incomplete", "1")], [("Upload-Draft-Interop-Version", "3"), ("Upload-Complete", "?0")],
    [("Upload-Draft-Interop-Version", "6"), ("Upload-Incomplete", "?1")],
])
def test_a_malformed_part_is_no_whole_object(wire, folder, fields):
    for method in ("PUT", "POST"):
        problem(wire.call(method, f"/b/photos/o/{folder}/o", fields, DATA), 400, "invalid-argument")
    assert wire.get(f"{folder}/o").status == 404


@pytest.mark.parametrize("version", [3, 4, 5, 6, 7, 8])
def test_versions(wire, folder, version):
    announce = ("Upload-Draft-Interop-Version", str(version))
    name, (yes, no) = ("upload-incomplete", ("?0", "?1")) if version == 3 else ("upload-complete", ("?1", "?0"))
    whole = wire.put(f"{folder}/whole", DATA, announce, (name, yes))
    assert whole.status == 201 and whole.interim[0] == 104 and whole[name] == yes, whole
    assert whole["upload-draft-interop-version"] == str(version) and "/u/" in whole["location"]
    assert whole["content-location"] == f"/b/photos/o/{folder}/whole" and whole["upload-offset"] == str(len(DATA))
    created = wire.put(f"{folder}/part", DATA[:10], announce, (name, no))
    assert created.interim[0] == 104 and created[name] == no
    assert (", expires=" in created["upload-limit"]) == (version == 6)
    session = Session(wire, created)
    fields = [announce, ("Upload-Offset", "10"), *([("Content-Type", PARTIAL)] if version >= 6 else [])]
    middle = wire.call("PATCH", session.path, [*fields, (name, no)], DATA[10:20])
    assert (middle.status, middle[name], middle["upload-offset"]) == (204, no, "20"), middle
    assert session.head(announce)[name] == no
    fields[1] = ("Upload-Offset", "20")
    last = wire.call("PATCH", session.path, [*fields, *([] if version <= 6 else [(name, yes)])], DATA[20:])
    assert last.status == 201 and last[name] == yes, last
    assert wire.get(f"{folder}/part").body == DATA == wire.get(f"{folder}/whole").body


@pytest.mark.parametrize("version", ["2", "9", "x", "8, 8", "-8", "99999999999999999999"])
def test_unknown_versions_get_no_104(wire, folder, version):
    session = begin(wire, f"{folder}/o", b"x", ("Upload-Draft-Interop-Version", version))
    assert 104 not in session.created.interim and session.created["upload-draft-interop-version"] is None
    problem(wire.call("PATCH", session.path, [("Upload-Offset", "1"), complete(True)], b"x"), 415, "unsupported-media-type")


def test_offsets(http1, folder):
    session = begin(http1, f"{folder}/o", DATA[:100])
    for offset in (0, 99, 101, 10 ** 14):
        answer = session.patch(offset, b"x", last=True)
        found = problem(answer, 409, "upload-offset-mismatch")
        assert (found["expected-offset"], found["provided-offset"]) == (100, offset)
        assert found["type"] == "https://iana.org/assignments/http-problem-types#mismatching-upload-offset"
        assert (answer["upload-offset"], answer["upload-complete"]) == ("100", "?0")
    assert session.offset() == 100
    # A number of structured fields may have a sign (RFC 9651, section 4.2.4).
    assert begin(http1, f"{folder}/o").patch("-0", b"x").status == 204


@pytest.mark.parametrize("fields", [
    [("Upload-Complete", "?0")], [("Upload-Offset", "1")], [("Upload-Offset", "-1"), ("Upload-Complete", "?0")],
    [("Upload-Offset", "-01"), ("Upload-Complete", "?0")], [("Upload-Offset", "1.0"), ("Upload-Complete", "?0")], [("Upload-Offset", "1"), ("Upload-Complete", "1")],
    [("Upload-Offset", "1"), ("Upload-Offset", "1"), ("Upload-Complete", "?0")],
    [("Upload-Offset", "9" * 16), ("Upload-Complete", "?0")],
    [("Upload-Offset", "1"), ("Upload-Complete", "?0"), ("Content-Digest", "md5=1")],
])
def test_malformed_appends(http1, folder, fields):
    session = begin(http1, f"{folder}/o", b"x")
    problem(http1.call("PATCH", session.path, [("Content-Type", PARTIAL), *fields], b"y"), 400, "invalid-argument")
    assert session.offset() == 1


def test_types_of_appends(http1, folder):
    session = begin(http1, f"{folder}/o", b"x")
    for kind in ("text/plain", "application/partial-uploads", None):
        fields = [("Upload-Offset", "1"), complete(False), *([("Content-Type", kind)] if kind else [])]
        answer = http1.call("PATCH", session.path, fields, b"y")
        problem(answer, 415, "unsupported-media-type")
        assert answer["accept-patch"] == PARTIAL
    fields = [("Upload-Offset", "1"), complete(True), ("Content-Type", f"{PARTIAL.upper()} ; x=1")]
    assert http1.call("PATCH", session.path, fields, b"y").status == 201


def test_lengths(http1, folder):
    name = f"{folder}/o"
    for fields in ([("Upload-Length", "2"), complete(False)], [("Upload-Length", "9"), complete(True)]):
        found = problem(http1.put(name, b"three", *fields), 400, "upload-length-mismatch")
        assert found["type"].endswith("#inconsistent-upload-length")
    session = begin(http1, name, b"123", ("Upload-Length", "9"))
    for offset, body, fields, last in [
            (3, b"456", [("Upload-Length", "8")], False), (3, b"4567890", [], False), (3, b"456", [], True),
            (3, None, [], True), (3, b"456789", [("Upload-Length", "10")], True)]:
        problem(session.patch(offset, body, *fields, last=last), 400, "upload-length-mismatch")
        assert session.offset() == 3
    # The length that the offset has reached does not complete the upload.
    assert session.patch(3, b"456789").status == 204 and session.head()["upload-complete"] == "?0"
    http1.missing(name)
    assert session.patch(9, None, last=True).status == 201
    late = begin(http1, name, b"123")
    assert late.head()["upload-length"] is None
    # A length that is none is ignored, as the draft has it.
    for wrong in ("x", "-1", "5.0", "5, 5", "9" * 16):
        assert late.patch(3, None, ("Upload-Length", wrong)).status == 204
    assert late.head()["upload-length"] is None
    assert late.patch(3, b"4", ("Upload-Length", "5")).status == 204 and late.head()["upload-length"] == "5"
    assert begin(http1, name, b"123", ("Upload-Length", "x")).head()["upload-length"] is None


def test_what_is_too_large_names_the_limit(launch, tmp_path):
    buckets = f"  photos: {{ directory: {{ path: {tmp_path}/photos }}, maximumObjectSize: 1000 }}\n"
    server = launch(buckets=buckets)
    wire = Wire(server)
    for last in (False, True):
        answer = wire.put("o", b"x", complete(last), ("Upload-Length", "1001"))
        if last:
            problem(answer, 400, "upload-length-mismatch")
        else:
            problem(answer, 413, "payload-too-large")
        assert answer["upload-limit"] == "max-size=1000" and answer["upload-complete"] == "?1", answer
    for version in ([], [("Upload-Draft-Interop-Version", "8")]):
        answer = wire.put("o", b"x" * 1001, complete(False), *version)
        problem(answer, 413, "payload-too-large")
        assert answer["upload-complete"] == "?1" and answer["location"] is None and 104 not in answer.interim, answer
    assert server.metrics()['sluice_uploads_open{bucket="photos"}'] == 0
    session = begin(wire, "o", b"x")
    answer = session.patch(1, b"x" * 1000)
    problem(answer, 413, "payload-too-large")
    assert answer["upload-limit"].startswith("max-size=1000, max-age="), answer


def test_a_first_part_beyond_the_limits_makes_no_session(launch):
    server = launch(extra="uploads: { stagedBytes: 1000 }\n")
    for version in ([], [("Upload-Draft-Interop-Version", "8")]):
        answer = Wire(server).put("o", b"x" * 1001, complete(False), *version)
        problem(answer, 429, "too-many-uploads")
        assert answer["upload-complete"] == "?1" and answer["location"] is None and 104 not in answer.interim, answer
    assert server.metrics()['sluice_uploads_open{bucket="photos"}'] == 0


def test_a_stopped_creation_reports_no_older_offset(launch):
    server = launch()
    fields = [complete(False), ("Content-Length", 10), ("Upload-Draft-Interop-Version", 8)]
    creation = Raw(server, "PUT", "/b/photos/o/o", fields)
    creation.send(b"hello")
    status, announced = creation.head()
    assert status == 104
    path = urllib.parse.urlsplit(announced["location"]).path
    secret(path.rpartition("/")[2])
    # Each request stops the append, which makes durable what it has received.
    assert Wire(server).call("HEAD", path)["upload-offset"] in ("0", "5")
    while status == 104:
        status, answer = creation.head()
    assert status == 409 and answer["upload-complete"] == "?0" and answer.get("upload-offset") != "0", answer
    creation.close()


def test_digests(http1, folder):
    whole = base64.b64encode(hashlib.sha256(DATA).digest()).decode()
    session = begin(http1, f"{folder}/o", DATA[:10], ("Repr-Digest", f"sha-256=:{whole}:"), ("Content-MD5", md5(DATA)),
                    ("Content-Digest", f"md5=:{md5(DATA[:10])}:"))
    wrong = session.patch(10, DATA[10:], ("Content-Digest", f"md5=:{md5(b'other')}:"), last=True)
    problem(wrong, 400, "checksum-mismatch")
    assert (wrong["upload-complete"], wrong["upload-offset"], session.offset()) == ("?0", "10", 10)
    # Here Content-MD5 is that of the part.
    for digest in (md5(DATA), md5(b"other")):
        problem(session.patch(10, DATA[10:], ("Content-MD5", digest), last=True), 400, "checksum-mismatch")
    assert session.offset() == 10
    right = session.patch(10, DATA[10:], ("Content-Digest", f"md5=:{md5(DATA[10:])}:"), ("Content-MD5", md5(DATA[10:])), last=True)
    assert right.status == 201
    # A declared digest of the whole that does not hold ends the upload: nothing is stored, also not the next time.
    other = begin(http1, f"{folder}/other", DATA[:10], ("Repr-Digest", f"sha-256=:{whole}:"))
    for offset, body in ((10, b"wrong"), (15, None)):
        answer = other.patch(offset, body, last=True)
        problem(answer, 400, "checksum-mismatch")
        assert answer["upload-complete"] == "?1"
    http1.missing(f"{folder}/other")


def test_preconditions_hold_at_the_commit(http1, folder):
    first = begin(http1, f"{folder}/o", b"first", ("If-None-Match", "*"))
    http1.stored(f"{folder}/o", b"second")
    for _ in range(2):
        problem(first.patch(5, None, last=True), 412, "precondition-failed")
    assert http1.get(f"{folder}/o").body == b"second"
    refused = http1.put(f"{folder}/o", b"x", complete(False), ("If-None-Match", "*"), ("Upload-Draft-Interop-Version", "8"))
    refused.is_problem("precondition-failed")
    assert refused["upload-complete"] == "?1" and refused["location"] is None and 104 not in refused.interim


def test_cancelled(wire, folder):
    session = begin(wire, f"{folder}/o", DATA)
    assert session.cancel().status == 204
    for answer in (session.head(method="GET"), session.patch(len(DATA), None, last=True), session.cancel()):
        problem(answer, 404, "upload-not-found")
    wire.missing(f"{folder}/o")


def test_methods(http1, folder):
    session = begin(http1, f"{folder}/o", b"x")
    for path, allow in ((session.path, "GET, HEAD, PATCH, DELETE, OPTIONS"), (f"/b/photos/o/{folder}/o", "GET, HEAD, PUT, PATCH, DELETE, OPTIONS")):
        options = http1.call("OPTIONS", path)
        # An existing session has less time than a new one.
        assert options.status == 204 and options["allow"] == allow and ("max-age=86400" in options["upload-limit"]) == (path != session.path)
        assert PARTIAL in options["accept-patch"].split(", ")
        options = http1.call("OPTIONS", path, [("Upload-Draft-Interop-Version", "6")])
        assert options["upload-draft-interop-version"] == "6" and ("expires=86400" in options["upload-limit"]) == (path != session.path)
    for method in ("PUT", "POST"):
        http1.call(method, f"/b/photos/o/{folder}/", [complete(False)], b"x").is_problem("invalid-name")
        answer = http1.call(method, session.path, [], b"x")
        answer.is_problem("method-not-allowed")
        assert answer["allow"] == "GET, HEAD, PATCH, DELETE, OPTIONS"


def test_names_that_are_reserved(http1):
    for name in (".sluice/x", "%2Esluice/uploads/x", ".sluice/a/b"):
        http1.put(name, b"x").is_problem("invalid-name")
        answer = http1.put(name, b"x", complete(False))
        answer.is_problem("invalid-name")
        assert answer["upload-complete"] == "?1"
    assert http1.put(".sluice", b"x").status in (200, 201)
    assert http1.call("GET", "/b/photos/o?prefix=.sluice/").json == {"prefixes": [], "items": []}


def test_what_leads_nowhere_is_told_alike(http1, folder):
    session = begin(http1, f"{folder}/o", b"x")
    root, _, token = session.path.rpartition("/")
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spellings = [token[:-1] + other for other in last if other != token[-1]]
    paths = [f"{root}/{other}" for other in (
        "", "x", token[:-1], token + "A", token + "=", "A" + token, token.swapcase(), token[:20] + "%2D" + token[20:],
        token.replace(token[40], "A" if token[40] != "A" else "B"), "A" * 5000, *spellings)]
    details = set()
    for path in paths:
        answer = http1.call("PATCH", path, [("Content-Type", PARTIAL), ("Upload-Offset", "1"), complete(True)], b"y")
        problem(answer, 404, "upload-not-found")
        details.add(answer.body.replace(answer["x-request-id"].encode(), b""))
    assert len(details) == 1 and session.offset() == 1
    http1.call("GET", f"/b/none/u/{token}").is_problem("bucket-not-found")


def test_cross_origin_pages_can_continue(launch):
    server = launch(extra="cors: { origins: [\"https://app.example\"], exposedHeaders: [X-Own] }\n")
    wire = Wire(server)
    session = begin(wire, "o", b"x", ("Origin", "https://app.example"))
    exposed = session.created["access-control-expose-headers"].lower().split(", ")
    assert {"x-own", "location", "upload-offset", "upload-complete", "upload-limit"} <= set(exposed)
    fields = [("Origin", "https://app.example"), ("Access-Control-Request-Method", "PATCH")]
    for path in (session.path, "/b/photos/o/o"):
        allowed = wire.call("OPTIONS", path, fields)["access-control-allow-methods"].split(", ")
        assert {"POST", "GET", "HEAD", "PATCH", "DELETE", "OPTIONS"} <= set(allowed)


def test_urls_and_announcements_as_configured(launch):
    server = launch(extra="uploads: { publicURL: https://storage.example, announceAlways: true }\n")
    wire = Wire(server)
    answer = wire.put("o", b"x", complete(False))
    assert answer["location"].startswith("https://storage.example/b/photos/u/") and answer.interim[0] == 104
    Session(wire, answer)
