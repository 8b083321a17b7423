"""A client of tus 1.0.0 uploads: single requests with curl."""

import base64
import urllib.parse

from secret_words import secret

VERSION = ("Tus-Resumable", "1.0.0")
CHUNK = ("Content-Type", "application/offset+octet-stream")


def metadata(name, bucket="photos", **more):
    """The field Upload-Metadata. A value of None has no base64."""
    pairs = {"bucketName": bucket, "objectName": name, **more}
    texts = [key if value is None else f"{key} {encoded(value)}" for key, value in pairs.items()]
    return ("Upload-Metadata", ",".join(texts))


def encoded(value):
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def post(wire, *fields, body=None, path="/tus", version=VERSION):
    kind = [CHUNK] if body is not None and not any(name == "Content-Type" for name, _ in fields) else []
    return wire.call("POST", path, [*([version] if version else []), *kind, *fields], body)


class Upload:
    """An upload, by the answer that created it."""

    def __init__(self, answer, wire):
        assert answer.status == 201 and answer["tus-resumable"] == "1.0.0", answer
        self.wire, self.created = wire, answer
        self.path = urllib.parse.urlsplit(answer["location"]).path
        assert self.path.startswith("/tus/"), answer
        secret(self.path.rpartition("/")[2])

    def call(self, method, *fields, body=None):
        return self.wire.call(method, self.path, [VERSION, *fields], body)

    def head(self, *fields):
        return self.call("HEAD", *fields)

    def offset(self):
        answer = self.head()
        assert answer.status == 200, answer
        return int(answer["upload-offset"])

    def patch(self, offset, body=b"", *fields):
        return self.call("PATCH", CHUNK, ("Upload-Offset", str(offset)), *fields, body=body)


def create(wire, name, length, *fields, body=None, **more):
    """Creates an upload; `length` is None for one that is declared later."""
    declared = ("Upload-Defer-Length", "1") if length is None else ("Upload-Length", str(length))
    return Upload(post(wire, declared, metadata(name, **more), *fields, body=body), wire)
