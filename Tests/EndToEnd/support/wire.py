"""Sends single requests with curl, over each transport of the contract, and parses the responses."""

import itertools
import json
import pathlib
import subprocess
import tempfile

import secret_words

TRANSPORTS = {
    "http1": ("http", "--http1.1"),
    "h2c": ("http", "--http2-prior-knowledge"),
    "h2": ("https", "--http2", "--insecure"),
}
NUMBERS = itertools.count(1)

#: The status for each problem code.
STATUS = {
    "invalid-name": 400, "invalid-argument": 400, "checksum-mismatch": 400, "unauthenticated": 401,
    "unauthorized": 403, "object-not-found": 404, "bucket-not-found": 404, "not-found": 404,
    "method-not-allowed": 405, "request-timeout": 408, "precondition-failed": 412,
    "payload-too-large": 413, "unsupported-media-type": 415, "range-not-satisfiable": 416,
    "misdirected-request": 421, "too-many-requests": 429, "internal": 500, "not-implemented": 501, "upstream-unavailable": 502,
    "overloaded": 503, "keys-unavailable": 503, "upstream-timeout": 504, "insufficient-storage": 507,
    **dict.fromkeys(["token-malformed", "unsupported-scheme", "unknown-issuer", "wrong-audience", "token-expired",
                     "token-not-yet-valid", "bad-signature", "unknown-token", "certificate-expired",
                     "certificate-untrusted"], 401),
    "invalid-link": 403, "link-expired": 403, "upload-not-found": 404, "upload-offset-mismatch": 409,
    "upload-length-mismatch": 400, "upload-conflict": 409, "too-many-uploads": 429, "watch-expired": 410,
}


class Response:
    """A final response. Field names are in lower case."""

    def __init__(self, heads, body):
        blocks = [block for block in heads.split(b"\r\n\r\n") if block]
        self.interim = [int(block.split(b" ")[1]) for block in blocks[:-1]]
        line, *lines = blocks[-1].split(b"\r\n")
        self.version, status = line.split(b" ")[:2]
        self.status, self.body = int(status), body
        pairs = [text.split(b":", 1) for text in lines]
        self.fields = [(name.decode().lower(), value.strip().decode("utf-8", "surrogateescape"))
                       for name, value in pairs]

    def all(self, name):
        return [value for field, value in self.fields if field == name]

    def __getitem__(self, name):
        """The value of the only field with that name; None if there is none."""
        values = self.all(name)
        assert len(values) <= 1, (name, values)
        return values[0] if values else None

    @property
    def json(self):
        return json.loads(self.body)

    def is_problem(self, code):
        """Checks the members of a problem response; returns its detail."""
        assert self.status == STATUS[code], (self.status, self.body)
        assert self["content-type"] == "application/problem+json"
        problem = self.json
        assert set(problem) == {"status", "code", "title", "detail", "instance"}, problem
        assert problem["code"] == code, problem
        assert problem["status"] == self.status
        assert problem["instance"] == self["x-request-id"] != ""
        assert problem["title"] and problem["detail"]
        return problem["detail"]

    def __repr__(self):
        return f"{self.status} {self.fields} {self.body[:300]!r}"


class Wire:
    """A client for one server and one transport."""

    def __init__(self, server, transport="http1"):
        self.server, self.transport = server, transport
        self.scheme, *self.options = TRANSPORTS[transport]

    def call(self, method, path, fields=(), body=None, more=()):
        """`fields` are pairs or whole lines. A field with an empty value is sent with an empty value."""
        secret_words.link(path)
        command = ["curl", "-sS", "--max-time", "30", "--path-as-is", "--globoff", *self.options]
        command += ["--head"] if method == "HEAD" else ["-X", method]
        names = []
        for field in fields:
            name, value = field if isinstance(field, tuple) else field.split(": ", 1)
            names.append(name)
            secret_words.sent(name, value)
            command += ["-H", f"{name}: {value}" if value else f"{name};"]
        with tempfile.TemporaryDirectory() as directory:
            folder = pathlib.Path(directory)
            if body is not None:
                (folder / "body").write_bytes(body.encode() if isinstance(body, str) else body)
                # Not -T, which appends the file's name to a URL that ends in a slash.
                command += ["--data-binary", f"@{folder / 'body'}"]
                if not any(name.lower() == "content-type" for name in names):
                    command += ["-H", "Content-Type:"]
            command += ["-D", str(folder / "heads"), "-o", str(folder / "response"), *more]
            done = subprocess.run([*command, self.server.url(path, self.scheme)], capture_output=True)
            assert done.returncode == 0, (command, done.returncode, done.stderr)
            taken = folder / "response"
            heads = (folder / "heads").read_bytes()
            content = b"" if method == "HEAD" or not taken.exists() else taken.read_bytes()
        response = Response(heads, content)
        assert response["x-request-id"], response
        return response

    def put(self, name, body=b"", *fields, bucket="photos"):
        return self.call("PUT", f"/b/{bucket}/o/{name}", fields, body)

    def get(self, name, *fields, bucket="photos"):
        return self.call("GET", f"/b/{bucket}/o/{name}", fields)

    def head(self, name, *fields, bucket="photos"):
        return self.call("HEAD", f"/b/{bucket}/o/{name}", fields)

    def patch(self, name, change, *fields, bucket="photos"):
        text = change if isinstance(change, (str, bytes)) else json.dumps(change)
        return self.call("PATCH", f"/b/{bucket}/o/{name}", fields, text)

    def delete(self, name, *fields, bucket="photos"):
        return self.call("DELETE", f"/b/{bucket}/o/{name}", fields)

    def metadata(self, name, bucket="photos"):
        response = self.get(name + "?metadata", bucket=bucket)
        assert response.status == 200, response
        return response.json

    def stored(self, name, body=b"stored", *fields, bucket="photos"):
        """Uploads an object; returns its metadata."""
        response = self.put(name, body, *fields, bucket=bucket)
        assert response.status in (200, 201), response
        return response.json

    def missing(self, name, bucket="photos"):
        self.get(name, bucket=bucket).is_problem("object-not-found")


def unique():
    """The name of a folder that no other test uses."""
    return f"t{next(NUMBERS)}"


def fetch(server, name, transport="http1", *options):
    """A download that may be cut off; returns curl's exit status, the response's status and its body."""
    scheme, *mode = TRANSPORTS[transport]
    done = subprocess.run(
        ["curl", "-s", "--max-time", "30", "-w", "%{stderr}%{http_code}", *mode, *options,
         server.url(f"/b/photos/o/{name}", scheme)], capture_output=True)
    return done.returncode, int(done.stderr or 0), done.stdout
