"""Reads the OpenAPI description: its operations, requests to them, and validation of responses."""

import contextlib
import copy
import http.client
import json
import re
import socket

import jsonschema
import yaml

from program import ROOT

FILE = ROOT / "Sources" / "Gateway" / "NativeAPI" / "openapi.yaml"
DESCRIPTION = yaml.safe_load(FILE.read_text())
PAGE = (ROOT / "docs" / "http-api.md").read_text()
#: Fields of HTTP itself, which the description omits.
OWN = {"date", "content-length", "transfer-encoding", "connection", "content-type"}
FAMILIES = tuple(name.lower() for name in DESCRIPTION["x-header-families"])


def resolved(value):
    """The target of a reference."""
    while "$ref" in value:
        target = DESCRIPTION
        for part in value["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        value = target
    return value


def matches(_, pattern, value, schema):
    """As in JavaScript, `$` matches only at the end, not before a final line break."""
    if isinstance(value, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": matches})


def validator(schema):
    """A validator that knows the description's components."""
    return Validator({**schema, "components": DESCRIPTION["components"]}, format_checker=jsonschema.FormatChecker())


#: The bodies that fit an operation.
BODIES = {"putObject": b"not a picture", "patchObject": b"{}", "deleteObjects": b'{"objects": ["none"]}'}


class Operation:
    def __init__(self, path, method, item):
        operation = item[method]
        self.id, self.path, self.method = operation["operationId"], path, method.upper()
        self.parameters = [resolved(entry) for entry in item.get("parameters", []) + operation.get("parameters", [])]
        responses = {status: resolved(entry) for status, entry in operation["responses"].items()}
        #: What every status that is not described has; None if none is possible.
        self.other = responses.pop("default", None)
        self.responses = {int(status): entry for status, entry in responses.items()}
        self.tags = set(operation["tags"])
        self.body = operation.get("requestBody")
        #: The query and the body of a request that a test does not want to be another. A `POST` means nothing without a query.
        self.query, self.sent = {"postObject": "sign", "deleteObjects": "delete"}.get(self.id, ""), BODIES.get(self.id)
        #: On the operator's listener.
        self.is_operators = "servers" in item

    def target(self, query="", **names):
        """The request target; names are encoded already."""
        path = self.path
        for name, value in {"bucket": "photos", "folder": "dir", "name": "dir/a.png", **names}.items():
            path = path.replace("{%s}" % name, value)
        query = query or self.query
        return path + ("?" + query if query else "")

    def asking(self, query, body=None):
        """The same operation with another query and body."""
        other = copy.copy(self)
        other.query, other.sent = query, self.sent if body is None else body
        return other


ALL = [Operation(path, method, item) for path, item in DESCRIPTION["paths"].items()
       for method in item if method not in ("parameters", "servers")]
#: The protocols that other bodies define, of which the failures are not described one by one.
PROTOCOLS = {operation.id: operation for operation in ALL if operation.tags & {"Uploads", "tus", "Firebase"}}
OPERATIONS = {operation.id: operation for operation in ALL if operation.id not in PROTOCOLS}


class Response:
    def __init__(self, taken, body):
        self.status, self.body = taken.status, body
        #: Those that come twice are one.
        self.fields = {}
        for name, value in taken.getheaders():
            name = name.lower()
            self.fields[name] = f"{self.fields[name]}, {value}" if name in self.fields else value

    def __repr__(self):
        return f"{self.status} {self.fields} {self.body[:500]!r}"


def send(server, operation, raw):
    """Sends bytes to the operation's listener and returns the response."""
    port = server.operator if operation.is_operators else server.http
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        # A server that has responded already may end the connection.
        with contextlib.suppress(ConnectionError):
            connection.sendall(raw)
        taken = http.client.HTTPResponse(connection, method=operation.method)
        taken.begin()
        return Response(taken, taken.read())


def head(operation, target, fields=(), version="HTTP/1.1", host="127.0.0.1"):
    lines = [f"{operation.method} {target} {version}".encode("utf-8", "surrogateescape"), b"Host: " + host.encode()]
    lines += [name.encode() + b": " + (value if isinstance(value, bytes) else value.encode()) for name, value in fields]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def call(server, operation, target=None, fields=(), body=None, **more):
    """Makes a request, with a body that fits the operation unless there is one."""
    fields = list(fields)
    if body is None:
        body = operation.sent or b""
    if operation.method in ("PUT", "PATCH", "POST"):
        fields.append(("Content-Length", str(len(body))))
    return send(server, operation, head(operation, target or operation.target(), fields, **more) + body)


def check(operation, response):
    """The response is as the description has it."""
    said = f"{operation.id}: {response}"
    assert response.status in operation.responses or operation.other and response.status >= 400, said
    described = operation.responses.get(response.status, operation.other)
    headers = {name.lower(): resolved(entry) for name, entry in described.get("headers", {}).items()}
    for name, entry in headers.items():
        assert not entry.get("required") or name in response.fields, f"{said}: no {name}"
        if name in response.fields:
            assert validator(entry["schema"]).is_valid(response.fields[name]), f"{said}: {name}"
    for name in response.fields:
        assert name in headers or name in OWN or name.startswith(FAMILIES), f"{said}: {name} is not described"
    content = described.get("content")
    if operation.id in OPERATIONS and response.status in (200, 201):
        check_version(operation, response, said)
    if operation.method == "HEAD" or response.status in (204, 304):
        assert response.body == b"", said
        return
    is_absent = described.get("x-body-may-be-absent") and "content-type" not in response.fields
    if not content or is_absent:
        assert response.body == b"", said
        return
    kind = response.fields["content-type"].split(";")[0]
    entry = content.get(kind) or content.get("*/*")
    assert entry, f"{said}: {kind} is not described"
    if kind.endswith("json") and kind in content:
        errors = list(validator(entry["schema"]).iter_errors(json.loads(response.body)))
        assert not errors, f"{said}: {errors}"
    if kind == "application/problem+json":
        assert json.loads(response.body)["instance"] == response.fields["x-request-id"], said


def check_version(operation, response, said):
    """The fields of an object's version are optional in the description of operations that requests share. Each response has all or none."""
    fields, version = response.fields, {"x-object-generation", "x-object-metageneration"}
    if operation.id in ("putObject", "postObject"):
        made = json.loads(response.body)
        all_fields = version | {"etag", "location"}
        wanted = all_fields if "fullPath" in made else {"etag"} if "part" in made else {"location"} if "url" in made else set()
        assert all_fields & set(fields) == wanted, said
        assert "fullPath" not in made or fields["location"].startswith("/b/"), said
        assert "url" not in made or fields["location"] == made["url"], said
    if operation.id in ("getObject", "headObject") and not version & set(fields):
        assert fields["content-type"] == "application/json" and fields["cache-control"] == "no-store", said
        schema = DESCRIPTION["components"]["schemas"]["PartList"]
        assert operation.method == "HEAD" or validator(schema).is_valid(json.loads(response.body)), said
