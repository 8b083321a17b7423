"""A client of the Firebase Storage protocol: single requests with curl, with the bytes that the SDKs send."""

import json
import urllib.parse

from secret_words import secret

BOUNDARY = "00198712340918237409182374"


def encoded(name):
    return urllib.parse.quote(name, safe="")


def related(metadata, content, kind="text/plain", boundary=BOUNDARY):
    """A body as the JavaScript SDK writes it: without a line end at its end."""
    text = metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()
    return (f"--{boundary}\r\nContent-Type: application/json; charset=utf-8\r\n\r\n".encode() + text
            + f"\r\n--{boundary}\r\nContent-Type: {kind}\r\n\r\n".encode() + content + f"\r\n--{boundary}--".encode())


def refused(answer, status, text=None):
    """Checks a failure's body; returns its message."""
    assert answer.status == status, answer
    assert answer["content-type"] == "application/json", answer
    error = answer.json["error"]
    assert set(answer.json) == {"error"} and set(error) == {"code", "message"} and error["code"] == status, answer
    assert text is None or text in error["message"], answer
    return error["message"]


class Firebase:
    """A client of one bucket."""

    def __init__(self, wire, bucket="photos", token=None):
        self.wire, self.bucket = wire, bucket
        self.credential = [("Authorization", f"Firebase {token}")] if token else []

    def call(self, method, path, fields=(), body=None):
        answer = self.wire.call(method, f"/v0/b/{self.bucket}/o{path}", [*self.credential, *fields], body)
        if answer["content-type"] == "application/json" and b"downloadTokens" in answer.body:
            secret(answer.json.get("downloadTokens", ""))
        return answer

    def put(self, name, content=b"", kind=None, method="POST", fields=()):
        return self.call(method, f"?name={encoded(name)}", [*([("Content-Type", kind)] if kind else []), *fields], content)

    def stored(self, name, content=b"stored", kind=None):
        answer = self.put(name, content, kind)
        assert answer.status == 200, answer
        return answer.json

    def multipart(self, name, metadata, content, kind="text/plain", fields=(), **options):
        body = related(metadata, content, kind, **options)
        return self.raw_multipart(name, body, fields)

    def raw_multipart(self, name, body, fields=(), kind=f"multipart/related; boundary={BOUNDARY}"):
        return self.call("POST", f"?name={encoded(name)}", [
            ("X-Goog-Upload-Protocol", "multipart"), ("Content-Type", kind), *fields], body)

    def metadata(self, name, *fields):
        return self.call("GET", f"/{encoded(name)}", fields)

    def get(self, name, *fields, token=None, method="GET"):
        query = f"&token={secret(token)}" if token else ""
        return self.call(method, f"/{encoded(name)}?alt=media{query}", fields)

    def patch(self, name, change, *fields):
        text = change if isinstance(change, (str, bytes)) else json.dumps(change)
        return self.call("PATCH", f"/{encoded(name)}", [("Content-Type", "application/json; charset=utf-8"), *fields], text)

    def delete(self, name):
        return self.call("DELETE", f"/{encoded(name)}")

    def list(self, **query):
        answer = self.call("GET", "?" + urllib.parse.urlencode(query))
        return answer

    def start(self, name, length=None, metadata=b"", kind=None, fields=()):
        fields = [("X-Goog-Upload-Protocol", "resumable"), ("X-Goog-Upload-Command", "start"), *fields]
        if length is not None:
            fields.append(("X-Goog-Upload-Header-Content-Length", str(length)))
        if kind:
            fields.append(("X-Goog-Upload-Header-Content-Type", kind))
        if isinstance(metadata, dict):
            metadata = json.dumps(metadata)
            fields.append(("Content-Type", "application/json; charset=utf-8"))
        return self.call("POST", f"?name={encoded(name)}", fields, metadata or None)

    def begin(self, name, length=None, **options):
        answer = self.start(name, length, **options)
        assert answer.status == 200 and answer.body == b"" and answer["content-length"] == "0", answer
        return Upload(self, answer)


class Upload:
    """An upload session, by the answer that started it."""

    def __init__(self, client, answer):
        self.client, self.started, self.url = client, answer, answer["x-goog-upload-url"]
        parts = urllib.parse.urlsplit(self.url)
        self.path = f"{parts.path}?{parts.query}"
        self.token = secret(urllib.parse.parse_qs(parts.query)["upload_id"][0])

    def command(self, command, offset=None, body=None, fields=(), method="POST", path=None):
        fields = [("X-Goog-Upload-Command", command), *fields]
        if offset is not None:
            fields.append(("X-Goog-Upload-Offset", str(offset)))
        answer = self.client.wire.call(method, path or self.path, fields, body)
        if answer.status == 200 and answer.body:
            secret(answer.json.get("downloadTokens", ""))
        return answer

    def query(self):
        answer = self.command("query")
        # The result of an upload that has ended is repeated.
        assert answer.status == 200 and (answer.body != b"") == (answer["x-goog-upload-status"] == "final"), answer
        return answer["x-goog-upload-status"], int(answer["x-goog-upload-size-received"])


def active(answer, received, status=200):
    assert answer.status == status, answer
    assert (answer["x-goog-upload-status"], answer["x-goog-upload-size-received"]) == ("active", str(received)), answer
    return answer


def final(answer, status=200):
    assert (answer.status, answer["x-goog-upload-status"]) == (status, "final"), answer
    return answer.json
