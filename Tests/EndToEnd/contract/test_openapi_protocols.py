"""Sources/Gateway/NativeAPI/openapi.yaml describes the paths of upload sessions, tus and Firebase: every response that a test
gets from the program is described, and every response that is described occurs."""

import base64
import collections

import pytest

from firebase import BOUNDARY, related
from openapi import DESCRIPTION, PROTOCOLS, check, head, send
from program import ROOT, Server, new_token

ORIGIN = ("Origin", "https://app.example")
PREFLIGHT = [ORIGIN, ("Access-Control-Request-Method", "PATCH"), ("Access-Control-Request-Headers", "a, b")]
PARTIAL = ("Content-Type", "application/partial-upload")
CHUNK = ("Content-Type", "application/offset+octet-stream")
TUS = ("Tus-Resumable", "1.0.0")
OBJECT = "/v0/b/photos/o/a%2Fb"
OBJECTS = "/v0/b/photos/o"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("protocols")
    token, line = new_token("alice")
    buckets = f"  photos: {{ directory: {{ path: {directory}/photos }}, maximumObjectSize: 100000 }}\n"
    cors = f"cors: {{ origins: ['{ORIGIN[1]}'] }}\n"
    running = Server(directory, buckets=buckets, tls=False, extra=f"firebase: true\n{cors}tokens:\n{line}\n"
                     "firebaseOptions: { administrators: [alice] }\n")
    running.credential = ("Authorization", f"Bearer {token}")
    yield running
    assert running.stop() == 0, running.output()


class Requests:
    """Makes requests, and checks each response against the description."""

    def __init__(self, server):
        self.server, self.seen = server, collections.Counter()

    def __call__(self, name, target, status, *fields, body=None):
        operation = PROTOCOLS[name]
        fields = [*fields, *([("Content-Length", str(len(body)))] if body is not None else [])]
        response = send(self.server, operation, head(operation, target, fields) + (body or b""))
        assert response.status == status, (name, target, response)
        check(operation, response)
        self.seen[name, status if status in operation.responses else "default"] += 1
        return response

    def created(self, path, *fields, body=b"x"):
        """The path of an upload session that a `PUT` has made."""
        operation = PROTOCOLS["appendUpload"]
        raw = head(operation, path, [*fields, ("Upload-Complete", "?0"), ("Content-Length", str(len(body)))])
        response = send(self.server, operation, raw.replace(b"PATCH", b"PUT", 1) + body)
        assert response.status == 201, response
        return "/" + response.fields["location"].split("/", 3)[3]


def sessions(ask):
    name = "/b/photos/o/session"
    for version in (None, ("Upload-Draft-Interop-Version", "8"), ("Upload-Draft-Interop-Version", "3")):
        fields = [version] if version else []
        is_third = version and version[1] == "3"
        complete = (lambda last: ("Upload-Incomplete", "?0" if last else "?1")) if is_third else (
            lambda last: ("Upload-Complete", "?1" if last else "?0"))
        path = ask.created(name)
        ask("getUpload", path, 204, *fields)
        ask("headUpload", path, 204, *fields, ORIGIN)
        ask("appendUpload", path, 204, *fields, PARTIAL, ("Upload-Offset", "1"), complete(False), body=b"y")
        ask("appendUpload", path, 409, *fields, PARTIAL, ("Upload-Offset", "1"), complete(False), body=b"y")
        ask("appendUpload", path, 400, *fields, PARTIAL, complete(False), body=b"y")
        ask("appendUpload", path, 413, *fields, PARTIAL, ("Upload-Offset", "2"), complete(False), body=bytes(100_000))
        path = ask.created(name)
        ask("appendUpload", path, 200 if version else 201, *fields, PARTIAL, ("Upload-Offset", "1"), complete(True), ORIGIN, body=b"")
        ask("headUpload", path, 204, *fields)
        ask("cancelUpload", path, 204, *fields)
        ask("cancelUpload", path, 404, *fields)
        ask("getUpload", path, 404, *fields)
        ask("headUpload", path, 404)
    ask("appendUpload", ask.created(name), 415, ("Content-Type", "a/b"), ("Upload-Offset", "1"), ("Upload-Complete", "?0"), body=b"y")
    ask("appendUpload", ask.created(name, ask.server.credential), 401, PARTIAL, ("Upload-Offset", "1"), ("Upload-Complete", "?0"), body=b"y")
    ask("optionsUpload", path, 204)
    ask("optionsUpload", path, 204, *PREFLIGHT)
    ask("optionsUpload", "/b/none/u/x", 404)


def tus(ask):
    def encoded(text):
        return base64.b64encode(text.encode()).decode()
    named = ("Upload-Metadata", f"bucketName {encoded('photos')},objectName {encoded('tus')}")
    for origin in ([], [ORIGIN]):
        made = ask("createTusUpload", "/tus", 201, TUS, named, ("Upload-Length", "3"), *origin)
        path = "/" + made.fields["location"].split("/", 3)[3]
        ask("headTusUpload", path, 200, TUS, *origin)
        ask("appendTusUpload", path, 204, TUS, CHUNK, ("Upload-Offset", "0"), *origin, body=b"a")
        ask("appendTusUpload", path, 460, TUS, CHUNK, ("Upload-Offset", "1"), ("Upload-Checksum", f"md5 {'A' * 22}=="), *origin, body=b"b")
        ask("appendTusUpload", path, 409, TUS, CHUNK, ("Upload-Offset", "3"), *origin, body=b"a")
        ask("appendTusUpload", path, 413, TUS, CHUNK, ("Upload-Offset", "1"), *origin, body=b"abc")
        ask("appendTusUpload", path, 415, TUS, ("Upload-Offset", "1"), *origin, body=b"a")
        ask("appendTusUpload", path, 204, TUS, CHUNK, ("Upload-Offset", "1"), *origin, body=b"bc")
        ask("cancelTusUpload", path, 204, TUS, *origin)
        ask("cancelTusUpload", path, 404, TUS, *origin)
        ask("headTusUpload", path, 404, TUS, *origin)
        ask("headTusUpload", path, 412, *origin)
        ask("createTusUpload", "/tus", 400, TUS, named, *origin)
        ask("createTusUpload", "/tus", 201, TUS, CHUNK, named, ("Upload-Defer-Length", "1"), *origin, body=b"a")
        ask("createTusUpload", "/tus", 201, TUS, CHUNK, named, ("Upload-Length", "1"), *origin, body=b"a")
    for name, path in (("optionsTus", "/tus"), ("optionsTusUpload", "/tus/x")):
        ask(name, path, 204)
        ask(name, path, 204, *PREFLIGHT)
    ask("optionsTus", "/tus", 417, ("Expect", "x"))
    ask("optionsTusUpload", "/tus/x", 417, ("Expect", "x"))


def firebase(ask):
    start = [("X-Goog-Upload-Protocol", "resumable"), ("X-Goog-Upload-Command", "start")]
    for name in ("uploadFirebaseObject", "putFirebaseObject"):
        multipart = related({"contentType": "a/b", "metadata": {"k": "v"}, "cacheControl": "no-cache", "contentLanguage": "de"}, b"x")
        ask(name, f"{OBJECTS}?name=a%2Fb", 200, ("X-Goog-Upload-Protocol", "multipart"),
            ("Content-Type", f"multipart/related; boundary={BOUNDARY}"), ORIGIN, body=multipart)
        ask(name, f"{OBJECTS}?name=c", 200, body=b"media")
        ask(name, OBJECTS, 400, ORIGIN, body=b"media")
        begun = ask(name, f"{OBJECTS}?name=d", 200, *start, body=b"{}")
        path = "/" + begun.fields["x-goog-upload-url"].split("/", 3)[3]
        for command, offset, status, body in [("query", None, 200, b""), ("upload", "0", 200, b"x"), ("upload", "9", 400, b"x"),
                                              ("upload, finalize", "1", 200, b"y"), ("query", None, 200, b""), ("cancel", None, 400, b"")]:
            fields = [("X-Goog-Upload-Command", command), *([("X-Goog-Upload-Offset", offset)] if offset else [])]
            ask(name, path, status, *fields, body=body)
    ask("listFirebaseObjects", f"{OBJECTS}?delimiter=/&maxResults=1", 200, ORIGIN)
    ask("listFirebaseObjects", f"{OBJECTS}?maxResults=0", 400)
    tag = ask("getFirebaseObject", f"{OBJECT}?alt=media", 200, ORIGIN).fields["etag"]
    for name in ("getFirebaseObject", "headFirebaseObject"):
        ask(name, OBJECT, 200)
        ask(name, f"{OBJECT}?alt=media", 200)
        ask(name, f"{OBJECT}?alt=media", 304, ("If-None-Match", tag), ORIGIN)
        ask(name, "/v0/b/photos/o/none", 404)
        ask(name, "/v0/b/none/o/none", 404)
        ask(name, OBJECT, 401, ("Authorization", "Firebase x"))
    ask("getFirebaseObject", f"{OBJECT}?alt=media", 206, ("Range", "bytes=0-0"))
    ask("getFirebaseObject", f"{OBJECT}?alt=media", 416, ("Range", "bytes=5-"))
    for name in ("changeFirebaseObject", "replaceFirebaseObject"):
        ask(name, OBJECT, 200, body=b"media")
        ask(name, OBJECT, 200, ("X-HTTP-Method-Override", "PATCH"), body=b"{}")
        ask(name, f"{OBJECT}?create_token=true", 200, ask.server.credential, body=b"")
        ask(name, f"{OBJECT}?create_token=true", 403, body=b"")
        ask(name, OBJECT, 200, *start, body=b"")
        ask(name, OBJECT, 413, *start, ("X-Goog-Upload-Header-Content-Length", "100001"), body=b"")
    ask("patchFirebaseObject", OBJECT, 200, ORIGIN, body=b'{"metadata": {"a": "b"}, "contentType": null}')
    ask("getFirebaseObject", OBJECT, 200)
    ask("patchFirebaseObject", OBJECT, 400, body=b"{")
    ask("deleteFirebaseObject", OBJECT, 204, ORIGIN)
    ask("deleteFirebaseObject", OBJECT, 404, ORIGIN)
    for name, path in (("optionsFirebaseObjects", OBJECTS), ("optionsFirebaseObject", OBJECT)):
        ask(name, path, 204)
        ask(name, path, 204, *PREFLIGHT)
        ask(name, path.replace("photos", "none"), 204)


def limited(ask, directory):
    """Preflights of the Firebase dialect fail for callers over their limit alone."""
    ask.server = Server(directory, tls=False, extra="firebase: true\ncallers: { anonymous: { requests: 1 } }\n")
    for name, path in (("optionsFirebaseObjects", OBJECTS), ("optionsFirebaseObject", OBJECT)):
        operation, answers = PROTOCOLS[name], []
        while 503 not in answers:
            answer = send(ask.server, operation, head(operation, path, []))
            check(operation, answer)
            answers.append(answer.status)
        ask.seen[name, "default"] += 1
    assert ask.server.stop() == 0, ask.server.output()


def test_what_is_described_occurs_and_nothing_else(server, tmp_path):
    ask = Requests(server)
    sessions(ask)
    tus(ask)
    firebase(ask)
    limited(ask, tmp_path)
    described = {(operation.id, status) for operation in PROTOCOLS.values()
                 for status in [*operation.responses, *(["default"] if operation.other else [])]}
    assert set(ask.seen) == described, described ^ set(ask.seen)


def test_the_pages_name_the_paths():
    pages = {"Uploads": "uploads.md", "tus": "uploads.md", "Firebase": "firebase.md"}
    for operation in PROTOCOLS.values():
        [page] = {pages[tag] for tag in operation.tags}
        path = operation.path.replace("{bucket}", "BUCKET").replace("{object}", "NAME").replace("{token}", "TOKEN")
        assert path in (ROOT / "docs" / page).read_text(), operation.path
    text = (ROOT / "docs" / "firebase.md").read_text()
    for name in DESCRIPTION["components"]["schemas"]["FirebaseError"]["properties"]["error"]["properties"]:
        assert f'"{name}"' in text
