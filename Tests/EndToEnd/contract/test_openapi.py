"""Sources/Gateway/NativeAPI/openapi.yaml is valid; the program gives every response that it describes, and no other.

Every operation is made to respond with every status that its description has. Then each parameter is given values that it
can't have, alone and together: whatever comes back must be described, with its fields and its body.
"""

import hashlib
import json
import random
import re
import urllib.parse

import openapi_spec_validator
import pytest

from identities import Key, claims
from openapi import DESCRIPTION, FILE, OPERATIONS, PAGE, call, check, head, resolved, send, validator
from openapi_gateways import Gateways
from program import ROOT
from secret_words import secret

# The description


def test_it_is_valid():
    openapi_spec_validator.validate(DESCRIPTION)
    assert DESCRIPTION["openapi"].startswith("3.1.")


def swift_codes():
    """The codes of Problem.swift with their statuses."""
    [file] = ROOT.glob("Sources/**/Problem.swift")
    text = file.read_text()
    body = text[text.index("enum Code"):text.index("public var title")]
    names = {name: value or name for name, value in re.findall(r"^\s*case `?(\w+)`?(?: = \"([a-z-]+)\")?$", body, re.M)}
    found = {}
    for cases, status in re.findall(r"case ((?:\.\w+,?\s*)+):\s*(\d{3})", body):
        found |= {names[case]: int(status) for case in re.findall(r"\.(\w+)", cases)}
    assert set(found) == set(names.values()) and len(found) >= 35
    return found


def test_every_problem_code_is_described():
    codes = swift_codes()
    assert set(DESCRIPTION["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]) == set(codes)
    described = {}
    for response in DESCRIPTION["components"]["responses"].values():
        for kind, content in response.get("content", {}).items():
            if kind == "application/problem+json" and "allOf" in content["schema"]:
                properties = content["schema"]["allOf"][1]["properties"]
                for code in properties["code"]["enum"]:
                    described.setdefault(code, set()).add(properties["status"]["const"])
    # Malformed HTTP has invalid-argument with other statuses.
    assert described.pop("invalid-argument") == {400, 414, 417, 431, 505}
    assert described == {code: {status} for code, status in codes.items() if code != "invalid-argument"}


def test_every_problem_code_is_in_the_page():
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (\d{3}) \|", PAGE, re.M))
    assert {code: int(status) for code, status in rows.items()} == swift_codes()


def test_the_page_names_everything_described():
    parts = {name for operation in OPERATIONS.values() for name in [entry["name"] for entry in operation.parameters]}
    parts -= {"bucket", "name", "folder"}
    for operation in OPERATIONS.values():
        for status, response in operation.responses.items():
            parts |= {name for name in response.get("headers", {}) if not name.startswith("Access-Control-")}
            assert str(status) in PAGE, status
    for name, schema in DESCRIPTION["components"]["schemas"].items():
        if not name.startswith("Firebase"):
            parts |= set(schema.get("properties", {}))
    page = PAGE.lower()
    assert [part for part in sorted(parts) if part.lower() not in page] == []
    for operation in OPERATIONS.values():
        path = operation.path.replace("{bucket}", "BUCKET").replace("{name}", "NAME").replace("{folder}", "FOLDER")
        assert f"`{path}`" in PAGE or f" {path}" in PAGE, operation.path


# How each status is brought about: for every operation, or for the one of that id.


@pytest.fixture(scope="module")
def gateways(tmp_path_factory):
    found = Gateways(tmp_path_factory.mktemp("openapi"))
    yield found
    found.stop()


def begun(gateways, *parts, **named):
    """The token of an upload in parts that has these."""
    begin, put = OPERATIONS["postObject"].asking("parts"), OPERATIONS["putObject"]
    response = call(gateways["plain"], begin, begin.target(**named))
    check(begin, response)
    upload = secret(response.fields["location"].partition("?parts=")[2])
    for number, part in enumerate(parts, 1):
        response = call(gateways["plain"], put, put.target(f"parts={upload}&part={number}", **named), body=part)
        check(put, response)
        assert response.status == 200 and json.loads(response.body)["etag"] == hashlib.md5(part).hexdigest(), response
    return upload


def missing(gateways, operation):
    return call(gateways["plain"], operation, operation.target(bucket="none"))


def malformed(gateways, operation):
    return send(gateways["plain"], operation, head(operation, operation.target(), [("Bad field", "x")]))


def coded(gateways, operation):
    return send(gateways["plain"], operation, head(operation, operation.target(), [("Transfer-Encoding", "gzip")]))


def slowly(gateways, operation):
    return send(gateways["slow"], operation, head(operation, operation.target())[:-2])


def limited(gateways, operation):
    # Of OPTIONS those that fail are counted.
    bucket = "none" if operation.method == "OPTIONS" else "photos"
    for _ in range(10):
        response = call(gateways["limited"], operation, operation.target(bucket=bucket))
        if response.status == 429:
            break
    return response


def plain(target=None, query="", fields=(), body=None):
    return lambda gateways, operation: call(
        gateways["plain"], operation, target or operation.target(query), fields, body)


def at(kind, *fields, **more):
    return lambda gateways, operation: call(gateways[kind], operation, fields=fields, **more)


def created(gateways, operation):
    call(gateways["plain"], OPERATIONS["deleteObject"], operation.target(name="new.png"))
    return call(gateways["plain"], operation, operation.target(name="new.png"))


def deleted(gateways, operation):
    call(gateways["plain"], OPERATIONS["putObject"], operation.target(name="old.png"))
    return call(gateways["plain"], operation, operation.target(name="old.png"))


def copied(gateways, operation):
    call(gateways["plain"], OPERATIONS["deleteObject"], operation.target("x", name="new.png"))
    return call(gateways["plain"], operation, operation.target("copyFrom=c.txt", name="new.png"))


def ended(gateways, operation):
    upload, end = begun(gateways, b"abc", name="parts.png"), OPERATIONS["postObject"]
    assert call(gateways["plain"], end, end.target(f"parts={upload}", name="parts.png")).status in (200, 201)
    return call(gateways["plain"], operation, operation.target(f"parts={upload}&part=1", name="parts.png"))


def stalled(gateways, operation):
    with gateways.stalled(operation.id) as server:
        return call(server, operation)


def keyless(gateways, operation):
    token = Key().sign(claims("ci"))
    return call(gateways["keyless"], operation, fields=[("Authorization", f"Bearer {token}")])


WAYS = {
    200: plain(), 201: created, 204: plain(),
    206: plain(fields=[("Range", "bytes=2-3")]),
    304: plain(fields=[("If-None-Match", "*")]),
    400: malformed,
    401: at("strict", ("Authorization", "Bearer x")),
    403: at("denying"),
    404: missing,
    405: plain(query="sign"), ("putObject", 405): plain(query="metadata"), ("deleteObject", 405): plain(query="metadata"),
    ("postObject", 405): plain(query="other"), ("deleteObjects", 405): plain(query="other"),
    ("listObjects", 405): plain(query="delete"), ("headObjects", 405): plain(query="delete"),
    408: slowly,
    409: ended,
    410: lambda gateways, operation: call(gateways["watched"], operation, operation.target("watch=999999")),
    412: plain(fields=[("If-Match", '"other"')]),
    413: plain(body=bytes(100_001)),
    414: plain(query="x=" + "x" * 9000),
    415: plain(fields=[("Content-Type", "text/plain")]),
    416: plain(fields=[("Range", "bytes=10-")]),
    417: plain(fields=[("Expect", "x")]),
    421: at("development", host="page.example"),
    429: limited,
    431: plain(fields=[("X", "x" * 40_000)]),
    500: at("damaged"),
    501: coded,
    502: at("unreachable"), 503: at("busy"), 504: stalled,
    505: at("plain", version="HTTP/3.0"), 507: at("full"),
    ("deleteObject", 204): deleted,
    ("deleteObjects", 413): plain(body=bytes((2 << 20) + 1)), ("deleteObjects", 503): keyless,
    ("postObject", 201): copied,
    ("postObject", 412): plain(query="copyFrom=c.txt", fields=[("If-Match", '"other"')]),
    ("postObject", 415): plain(query="copyFrom=c.txt", fields=[("Content-Type", "text/plain")]),
    ("postObject", 507): lambda gateways, operation: call(gateways["full"], operation.asking("copyFrom=c.txt")),
}


def described():
    for operation in OPERATIONS.values():
        for status in operation.responses:
            yield pytest.param(operation, status, id=f"{operation.id}-{status}")


@pytest.mark.parametrize("operation,status", list(described()))
def test_every_described_response_occurs(gateways, operation, status):
    way = WAYS.get((operation.id, status)) or WAYS[status]
    response = way(gateways, operation)
    assert response.status == status, response
    check(operation, response)


def test_a_slow_body(gateways):
    for name in ("putObject", "patchObject", "postObject", "deleteObjects"):
        operation = OPERATIONS[name]
        response = send(gateways["slow"], operation, head(operation, operation.target(), [("Content-Length", "9")]) + b"{")
        assert response.status == 408, response
        check(operation, response)


def test_metadata_is_described(gateways):
    operation = OPERATIONS["getObject"]
    response = call(gateways["plain"], operation, operation.target("metadata"))
    check(operation, response)
    schema = DESCRIPTION["components"]["schemas"]["ObjectMetadata"]
    assert list(validator(schema).iter_errors(json.loads(response.body))) == []
    head_response = call(gateways["plain"], OPERATIONS["headObject"], operation.target("metadata"))
    check(OPERATIONS["headObject"], head_response)
    for name in ("etag", "last-modified", "accept-ranges", "repr-digest"):
        assert name not in response.fields and name not in head_response.fields
    # The response with content matches its description.
    assert {"etag", "last-modified", "accept-ranges", "repr-digest"} <= set(call(gateways["plain"], operation).fields)


def test_pages_are_described(gateways):
    operation, token = OPERATIONS["listObjects"], ""
    for _ in range(10):
        response = call(gateways["plain"], operation, operation.target(f"maxResults=1{token}"))
        assert response.status == 200
        check(operation, response)
        following = json.loads(response.body).get("nextPageToken")
        if not following:
            return
        token = f"&pageToken={following}"
    raise AssertionError("the list does not end")


def test_cross_origin_responses_are_described(gateways):
    fields = [("Origin", "https://app.example"), ("Access-Control-Request-Method", "PUT"), ("Access-Control-Request-Headers", "a, b")]
    for operation in OPERATIONS.values():
        if not operation.is_operators:
            response = call(gateways["cors"], operation, fields=fields)
            check(operation, response)
            assert response.fields["access-control-allow-origin"] == "https://app.example"


def test_a_link_is_as_described(gateways):
    operation = OPERATIONS["postObject"]
    for method in ("GET", "PUT", "DELETE"):
        wanted = json.dumps({"method": method, **({"size": 13, "contentType": "image/png"} if method == "PUT" else {})})
        response = call(gateways["plain"], operation, operation.target(name="linked.png"), body=wanted.encode())
        check(operation, response)
        path = json.loads(response.body)["path"]
        used = OPERATIONS[{"GET": "getObject", "PUT": "putObject", "DELETE": "deleteObject"}[method]]
        known = {entry["name"]: entry["schema"] for entry in used.parameters if entry["in"] == "query"}
        for name, value in urllib.parse.parse_qsl(path.partition("?")[2], strict_parsing=True):
            assert validator(known[name]).is_valid(coerced(known[name], value)), (name, value)
        check(used, call(gateways["plain"], used, path))
        refused = call(gateways["plain"], used, path + "&x=1")
        assert refused.status == 403
        check(used, refused)


def test_the_operator_serves_the_description(gateways):
    response = call(gateways["plain"], OPERATIONS["openapi"])
    assert response.status == 200 and response.body == FILE.read_bytes()


# Values that parameters can't have

PATHS = ["%", "%2", "%zz", "%00", "%0d%0a", "%ff", "%c0%af", "a%2f%2fb", "a//b", ".", "..", "%2e%2e", "a/../b", "a/", "%2F", "x" * 1025,
         ".well-known/acme-challenge/x", "a%5Bb", "\udcff", "%EF%BF%BD", "\ufffd", "+", "%F0%9F%8C%B2", "a;b=c", "a:b@c", "%25"]
QUERIES = ["", "0", "1", "1000", "1001", "-1", "007", "1.5", "1e3", "%205", "9" * 30, "x", "/", "//", "%2F", "%zz", "%", "%ff", "%00", "%0a",
           "x" * 1024, "x" * 1025, "%F0%9F%8C%B2", "a%26b", "=", "null", "true", "GET", "AAAA"]
FIELDS = [b"", b"x", b"*", b"0", b"1", b"-1", b"1.5", b"9" * 19, b"9" * 30, b"1, 2", b'"', b'"open', b'"a"', b'W/"a"', b'"a", "b"', b'"a" "b"',
          b",", b";", b"=", b":::", b"bytes", b"bytes=", b"bytes=0-1", b"bytes=5-1", b"bytes=0-1,3-4", b"bytes=-0", b"bytes 0-1/2", b"x" * 2048,
          b"x" * 2049, b"a\tb", b"\xc3\xa9", b"\xff", b"sha-256=:AAAA:", b"md5=1", b"md5=:AAAAAAAAAAAAAAAAAAAAAA==:", b"md5=:AAAAAAAAAAAAAAAAAAAAAA:",
          b"crc32c=:AAAAAA==:", b"unknown=:AAAA:", b"AAAAAAAAAAAAAAAAAAAAAA==", b"AAAAAAAAAAAAAAAAAAAAAA", b"?0", b"?1", b"100-continue",
          b"Sat, 01 Jan 2000 00:00:00 GMT", b"Sat, 31 Feb 2000 99:00:00 GMT", b"https://app.example", b"text/html", b"null"]
VALUES = {"path": PATHS, "query": QUERIES, "header": FIELDS}
#: The requests that share an operation, by the parameters that make them, with those parameters that they look at. The value
#: TOKEN is that of an upload in parts that has begun.
TOKEN = object()
COMMON = {"bucket", "name", "Origin", "Expect"}
DIGESTS = {"Content-MD5", "Content-Digest", "Repr-Digest"}
CONDITIONS = {"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "X-Object-Generation-Match",
              "X-Object-Metageneration-Match"}
PROPERTIES = {"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "X-Object-Metadata"}
SHARED = {
    "getObject": [({"parts": TOKEN}, {"parts", "after", "maxResults"})],
    "headObject": [({"parts": TOKEN}, {"parts", "after", "maxResults"})],
    "putObject": [({"parts": TOKEN, "part": "1"}, {"parts", "part", *DIGESTS})],
    "deleteObject": [({"parts": TOKEN}, {"parts"})],
    "postObject": [
        ({"sign": ""}, {"sign"}),
        ({"copyFrom": "c.txt"}, {"copyFrom", "sourceBucket", "sourceGeneration", *CONDITIONS}),
        ({"moveFrom": "none"}, {"moveFrom", "sourceBucket", "sourceGeneration"}),
        ({"parts": ""}, {"Repr-Digest", "Upload-Length", *PROPERTIES, *CONDITIONS}),
        ({"parts": TOKEN}, {"parts"}),
    ],
    "deleteObjects": [({"delete": ""}, {"delete", "bucket", "Origin", "Expect"})],
}
#: Statuses by which a value that can't be is rejected.
REJECTED = {400, 417, 501}
#: Parameters that accept any value, are ignored if malformed, or need more than a schema to be validated.
ANY = {"metadata", "sign", "verbose", "Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers", "Range", "If-Range",
       "If-Modified-Since", "If-Unmodified-Since", "Content-Digest", "Repr-Digest", "Content-MD5", "bucket", "pageToken", "delete", "parts",
       "Upload-Length", "sourceBucket", "watch", "wait"}


#: The operation that a path of an object means if it ends in a slash.
FOLDERS = {"GET": "listFolder", "HEAD": "headFolder", "OPTIONS": "optionsFolder"}


def coerced(schema, text):
    """A parameter's value as its schema sees it."""
    return int(text) if schema.get("type") == "integer" and re.fullmatch(r"-?[0-9]{1,25}", text) else text


def is_possible(parameter, value):
    """Whether the description allows the value; None if its schema does not decide that."""
    if parameter["name"] in ANY or parameter["name"].startswith("link-"):
        return None
    if parameter["in"] == "header":
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return None
        if parameter["name"].startswith("X-Object-") and len(text) > 18:
            # More than 64 bits, or a value that never matches.
            return None
    else:
        try:
            raw = value.replace("+", " ") if parameter["in"] == "query" else value
            if re.search("%(?![0-9A-Fa-f]{2})", raw):
                return False
            text = urllib.parse.unquote(raw, errors="strict")
            if len(text.encode()) > resolved(parameter["schema"]).get("maxLength", 1024):
                return False
        except UnicodeError:
            return False
    return validator(resolved(parameter["schema"])).is_valid(coerced(resolved(parameter["schema"]), text))


def variants(operation):
    """The requests of an operation: the values that make each one, and the names of its parameters."""
    found, known = SHARED.get(operation.id, []), {entry["name"] for entry in operation.parameters}
    others = known - {name for _, names in found for name in names - DIGESTS}
    if operation.method != "POST":
        yield {}, others | (known & COMMON)
    for made, names in found:
        assert names <= known, names - known
        yield made, names | (known & COMMON)


def test_the_requests_of_an_operation_have_all_its_parameters():
    for operation in OPERATIONS.values():
        assert {entry["name"] for entry in operation.parameters} == {name for _, names in variants(operation) for name in names}


def made_by(gateways, values):
    """The values of parameters that make a request, with the token of an upload."""
    return {name: [begun(gateways, b"abc") if value is TOKEN else value] for name, value in values.items()}


def request_with(operation, values):
    """The target and the fields of a request whose parameters have these values, by name."""
    names, query, fields = {}, [], []
    for parameter in operation.parameters:
        for value in values.get(parameter["name"], ()):
            if parameter["in"] == "path":
                names[parameter["name"]] = value
            elif parameter["in"] == "query":
                query.append(f"{parameter['name']}={value}")
            else:
                fields.append((parameter["name"], value))
    return operation.target("&".join(query), **names), fields


def parameters():
    for operation in OPERATIONS.values():
        for made, names in variants(operation):
            kind = "".join(f"-{name}" if value is TOKEN else f"-{name}={value}" for name, value in made.items())
            for parameter in operation.parameters:
                if parameter["name"] in names:
                    yield pytest.param(operation, made, parameter, id=f"{operation.id}{kind}-{parameter['name']}")


@pytest.mark.parametrize("operation,made,parameter", list(parameters()))
def test_values_of_a_parameter(gateways, operation, made, parameter):
    server = gateways["plain"]
    name = parameter["name"]
    kind = made_by(gateways, made)
    values = VALUES[parameter["in"]] + (PATHS if name in ("copyFrom", "moveFrom") else [])
    for value in values:
        target, fields = request_with(operation, {**kind, name: [value]})
        response = call(server, operation, target, fields)
        if name == "name" and operation.method in FOLDERS and re.search("(/|%2F)$", value):
            check(OPERATIONS[FOLDERS[operation.method]], response)
            continue
        check(operation, response)
        if name == "name" and operation.method == "POST" and "sign" not in made and re.search("(/|%2F)$", value):
            # Of a folder there is nothing to make.
            assert response.status == 405
            continue
        possible = is_possible(parameter, value)
        # OPTIONS does not look at names.
        if possible is None or operation.method == "OPTIONS" and parameter["in"] == "path":
            continue
        said = f"{operation.id} {name} {value!r}: {response}"
        if not possible:
            assert response.status in REJECTED, said
        else:
            assert response.status not in REJECTED, said


@pytest.mark.parametrize("method,query", [
    ("getObject", "after=1&after=1"), ("headObject", "maxResults=1&maxResults=1"), ("putObject", "part=1&part=1"),
    ("postObject", "copyFrom=c.txt&copyFrom=c.txt"), ("postObject", "copyFrom=c.txt&moveFrom=c.txt"),
    ("postObject", "copyFrom=c.txt&sourceGeneration=1&sourceGeneration=1"),
    ("postObject", "copyFrom=c.txt&sourceBucket=photos&sourceBucket=photos"),
])
def test_a_parameter_that_is_given_twice(gateways, method, query):
    operation = OPERATIONS[method].asking(query if "From" in query else f"parts={begun(gateways)}&{query}")
    response = call(gateways["plain"], operation)
    assert response.status == 400
    check(operation, response)


@pytest.mark.parametrize("name", ["prefix", "delimiter", "maxResults", "pageToken", "view"])
def test_a_duplicate_parameter(gateways, name):
    operation = OPERATIONS["listObjects"]
    value = {"maxResults": "5", "delimiter": "/", "view": "full"}.get(name, "a")
    response = call(gateways["plain"], operation, operation.target(f"{name}={value}&{name}={value}"))
    assert response.status == 400
    check(operation, response)


@pytest.mark.parametrize("seed", range(4))
def test_many_values_at_once(gateways, seed):
    """Whatever is asked, the response is described."""
    choose, server = random.Random(seed), gateways["plain"]
    kinds = list(OPERATIONS.values())
    for _ in range(250):
        operation = choose.choice(kinds)
        values = {}
        for parameter in operation.parameters:
            if parameter["in"] == "path":
                # Mostly existing objects, so that the remaining parameters are evaluated.
                if choose.random() < 0.1:
                    values[parameter["name"]] = [choose.choice(PATHS[:9] + PATHS[10:13] + PATHS[15:])]
            elif parameter["name"] != "Expect" and choose.random() < 0.25:
                values[parameter["name"]] = choose.choices(VALUES[parameter["in"]], k=choose.choice([1, 1, 1, 2]))
        made, _ = choose.choice(list(variants(operation)))
        target, fields = request_with(operation, {**values, **made_by(gateways, made)})
        if re.search("(/|%2[Ff])(\\?|$)", target) and operation.path.endswith("{name}"):
            continue
        body = choose.choice(BODIES).encode() if operation.method in ("PATCH", "POST") else None
        check(operation, call(server, operation, target, fields, body))


# Bodies

LONG = json.dumps("x" * 2049)
PATCHES = [
    "{}", '{"contentType": "text/x"}', '{"contentType": null}', '{"contentType": ""}', '{"cacheControl": "a\\tb"}', '{"contentLanguage": "é"}',
    '{"customMetadata": {"a": "b", "c": null}}', '{"customMetadata": null}', '{"customMetadata": {}}', '{"customMetadata": {"é": "ü"}}',
    '{"contentType": 1}', '{"contentType": true}', '{"contentType": []}', '{"contentType": {}}', '{"contentType": " x"}', '{"contentType": "x "}',
    '{"contentType": "a\\nb"}', '{"contentType": "a\\u0000"}', '{"contentDisposition": "a\\u007f"}', '{"contentEncoding": %s}' % LONG,
    '{"customMetadata": 1}', '{"customMetadata": []}', '{"customMetadata": "x"}', '{"customMetadata": {"": "x"}}', '{"customMetadata": {"a": 1}}',
    '{"customMetadata": {"sluice-a": "b"}}', '{"customMetadata": {"Sluice-a": null}}', '{"customMetadata": {"sluice": "b"}}',
    '{"customMetadata": {"firebasestorageDownloadTokens": "b"}}', '{"customMetadata": {"firebaseStorageDownloadTokens2": "b"}}',
    '{"customMetadata": {"a": {"b": "c"}}}', '{"customMetadata": {"a": "\\u0000"}}', '{"customMetadata": {"\\u0000": "a"}}', '{"size": "1"}',
    '{"etag": null}', '{"unknown": "x"}', '{"ContentType": "x"}', "[]", '"x"', "null", "1", "true",
]
LINKS = [
    "{}", '{"method": "GET"}', '{"method": "PUT"}', '{"method": "DELETE"}', '{"expiresIn": 1}', '{"expiresIn": 604800}',
    '{"method": "PUT", "size": 0}', '{"method": "PUT", "size": 100000, "contentType": "a/b"}', '{"method": "HEAD"}', '{"method": "get"}',
    '{"method": null}', '{"method": 1}', '{"expiresIn": 0}', '{"expiresIn": -1}', '{"expiresIn": 2592001}', '{"expiresIn": 1.5}', '{"expiresIn": "9"}',
    '{"expiresIn": null}', '{"size": 1}', '{"contentType": "a/b"}', '{"method": "GET", "size": 1}', '{"method": "PUT", "size": -1}',
    '{"method": "PUT", "size": "1"}', '{"method": "PUT", "contentType": ""}', '{"method": "PUT", "contentType": 1}',
    '{"method": "PUT", "contentType": %s}' % LONG, '{"path": "x"}', "[]", '"x"', "null", "1",
]
SELECTIONS = [
    '{"parts": ["1"]}', '{"parts": [{"part": "1"}]}', '{"parts": [{"part": 1, "etag": 5}]}', '{"parts": [1]}', '{"parts": [1, 2, 3]}', '{"parts": [2, {"part": 3}]}', '{"parts": [{"part": 1, "etag": "TAG"}]}', '{"parts": []}',
    '{"parts": [0]}', '{"parts": [-1]}', '{"parts": [10001]}', '{"parts": [1.5]}', '{"parts": ["x"]}', '{"parts": [null]}', '{"parts": [[1]]}',
    '{"parts": [{}]}', '{"parts": [{"etag": "TAG"}]}', '{"parts": [{"part": null}]}', '{"parts": [{"part": 0}]}', '{"parts": [{"part": 10001}]}',
    '{"parts": [{"part": 1, "size": 3}]}', '{"parts": 1}', '{"parts": {"part": 1}}', '{"parts": null}', '{"parts": [1], "more": 1}', "{}", "[1]",
    "1", "null", '"x"', json.dumps({"parts": list(range(1, 10_002))}),
]
DELETIONS = [
    '{"objects": ["none"]}', '{"objects": ["none", "none", {"name": "none"}]}', '{"objects": [{"name": "none", "generation": "1"}]}',
    '{"objects": [{"name": "none", "metageneration": "007", "generation": "0"}]}', '{"objects": ["", "a//b", "../c", "\\u0000"]}',
    json.dumps({"objects": ["none"] * 1000}), json.dumps({"objects": ["none"] * 1001}), '{"objects": []}', '{"objects": "none"}',
    '{"objects": [1]}', '{"objects": [null]}', '{"objects": [["none"]]}', '{"objects": {"name": "none"}}', '{"objects": [{}]}',
    '{"objects": [{"name": 1}]}', '{"objects": [{"name": null}]}', '{"objects": [{"generation": "1"}]}',
    '{"objects": [{"name": "none", "generation": 1}]}', '{"objects": [{"name": "none", "generation": "-1"}]}',
    '{"objects": [{"name": "none", "generation": ""}]}', '{"objects": [{"name": "none", "metageneration": null}]}',
    '{"objects": [{"name": "none", "metageneration": "99999999999999999999"}]}', '{"objects": [{"name": "none", "size": "1"}]}',
    '{"objects": ["none"], "more": 1}', '{"names": ["none"]}', "{}", '["none"]', '"none"', "null", "1",
]
NOT_JSON = ["", "{", "}", "{]", "{'a': 1}", '{"a"}', '{"contentType": "x",}', "\ufeff{}", '{"contentType": "\\ud800"}', "nul", "{} {}", "NaN"]
BODIES = PATCHES + LINKS + SELECTIONS + DELETIONS + NOT_JSON


@pytest.mark.parametrize("name,query,schema,bodies", [
    ("patchObject", "", "ObjectPatch", PATCHES), ("postObject", "sign", "LinkRequest", LINKS),
    ("postObject", "copyFrom=c.txt", "ObjectPatch", PATCHES), ("postObject", "parts", "PartSelection", SELECTIONS),
    ("deleteObjects", "delete", "DeletionRequest", DELETIONS),
], ids=["patch", "link", "copy", "selection", "deletions"])
def test_bodies_that_the_schema_allows_and_others(gateways, name, query, schema, bodies):
    operation, judge = OPERATIONS[name], validator(DESCRIPTION["components"]["schemas"][schema])
    put = OPERATIONS["putObject"]
    assert call(gateways["plain"], put, put.target(), [], b"x").status in (200, 201)

    def respond(body, *fields):
        wanted = f"parts={begun(gateways, *[b'abc'] * 3)}" if query == "parts" else query
        body = body.replace("TAG", hashlib.md5(b"abc").hexdigest()).encode()
        response = call(gateways["plain"], operation, operation.target(wanted), fields, body)
        check(operation, response)
        return response

    responses = set()
    for body in bodies:
        response = respond(body, ("Content-Type", "application/json"))
        possible = judge.is_valid(json.loads(body))
        assert response.status == (200 if possible else 400), (body, response)
        responses.add(possible)
    assert responses == {True, False}
    for body in NOT_JSON:
        response = respond(body)
        # An empty request asks for a link to download, for an unchanged copy, or for all parts.
        assert response.status == (200 if not body and name == "postObject" else 400), (body, response)
    # What a `POST` can have is what one of its requests can have.
    if name == "postObject":
        body = validator(operation.body["content"]["application/json"]["schema"])
        assert all(body.is_valid(json.loads(text)) for text in bodies if judge.is_valid(json.loads(text)))
