"""Signed links permit exactly the request that they describe."""

import concurrent.futures
import json
import os
import socket
import subprocess
import time
import urllib.parse

import pytest

from identities import Key, access_lines, claims, key_set
from program import BINARY, wait_until
from rulesets import rules
from secret_words import link, secret
from signed_links import new_key, sign
from wire import Wire

RULES = rules(
    "match /{name=**} { allow get, create, delete: if request.auth.uid == 'alice'; }",
    "match /small/{n} { allow create: if request.auth.uid == 'bob' && request.resource.size < 100 && "
    "request.resource.contentType == 'text/plain'; }",
    "match /once/{n} { allow create: if request.auth.uid == 'bob' && resource == null; }",
)


@pytest.fixture
def keys(tmp_path):
    """The file of keys that the gateway has."""
    file = tmp_path / "link-keys"
    file.write_text("# newest first\n" + new_key("k2") + new_key("k1"))
    return file


@pytest.fixture
def serve(launch, tmp_path, keys):
    def start(rules=RULES, bucket="", more=""):
        (tmp_path / "storage.rules").write_text(rules)
        key = Key()
        (tmp_path / "keys.json").write_bytes(key_set(key))
        running = launch(
            extra=f"log: {{ format: json }}\nlinks: {{ keys: \"{keys}\", maximumLifetime: 1h }}\n"
                  f"issuers:\n  ci: {{ jwks: {{ issuer: ci, audiences: [sluice], keys: \"{tmp_path}/keys.json\" }} }}\n" + more,
            environment={"SLUICE_RULES": str(tmp_path / "storage.rules")},
            buckets=f"  photos: {{ directory: {{ path: {tmp_path}/photos }}{bucket} }}\n"
                    f"  other: {{ directory: {{ path: {tmp_path}/other }} }}\n")
        running.token = lambda uid: ("Authorization", "Bearer " + key.sign(claims("ci", sub=uid)))
        return running
    return start


def refused(response, code="invalid-link"):
    response.is_problem(code)


@pytest.mark.parametrize("transport", ["http1", "h2c", "h2"])
def test_a_link_allows_its_one_request(serve, keys, transport):
    server = serve()
    wire = Wire(server, transport)
    path = "/b/photos/o/dir/a"
    assert wire.call("GET", path).status == 401
    up = sign(keys, path, "--method", "put", "--size", "5", "--type", "text/plain")
    plain = ("Content-Type", "text/plain")
    refused(wire.call("PUT", up, [plain], "four"))
    refused(wire.call("PUT", up, [plain], "sixsix"))
    refused(wire.call("PUT", up, [("Content-Type", "text/html")], "fives"))
    refused(wire.call("PUT", up, [], "fives"))
    refused(wire.call("PUT", up, [("Content-Type", "text/plain; charset=utf-8")], "fives"))
    refused(wire.call("GET", up))
    refused(wire.call("PATCH", up, [], "{}"))
    assert wire.call("PUT", up, [plain], "fives").status == 201
    assert wire.call("PUT", up, [plain], "other").status == 200
    down = sign(keys, path)
    assert wire.call("GET", down).body == b"other"
    assert wire.call("GET", down, ["Range: bytes=1-2"]).body == b"th"
    head = wire.call("HEAD", down)
    assert head.status == 200 and head["content-length"] == "5"
    refused(wire.call("PUT", down, [], "x"))
    refused(wire.call("DELETE", down))
    # With a link, other credentials are ignored.
    assert wire.call("GET", down, [("Authorization", "Bearer junk")]).status == 200
    refused(wire.call("PUT", down, [server.token("alice")], "x"))
    gone = sign(keys, path, "--method", "DELETE")
    refused(wire.call("GET", gone))
    assert wire.call("DELETE", gone).status == 204
    wire.call("GET", down).is_problem("object-not-found")


def test_a_body_without_a_length_does_not_match_a_size(serve, keys, tmp_path):
    server = serve()
    up = sign(keys, "/b/photos/o/a", "--method", "PUT", "--size", "4")
    with open(keys) as pipe:
        done = subprocess.run(["curl", "-sS", "--http1.1", "-T", "-", server.url(up), "-w", "%{http_code}", "-o", os.devnull],
                              stdin=pipe, capture_output=True, text=True)
    assert done.stdout == "403"
    assert not any((tmp_path / "photos" / "staging").iterdir())


def test_altered_links_are_rejected(serve, keys):
    server = serve()
    wire = Wire(server)
    for name in ("a", "b"):
        assert wire.put(name, b"1", server.token("alice")).status == 201
    link = sign(keys, "/b/photos/o/a")
    assert wire.call("GET", link).status == 200
    path, query = link.split("?")
    parameters = dict(urllib.parse.parse_qsl(query))
    assert list(parameters) == ["link-method", "link-issued", "link-expires", "link-key", "link-signature"]

    def with_query(separator="&", **changes):
        changed = {**parameters, **{"link-" + name: value for name, value in changes.items()}}
        return path + "?" + separator.join(f"{name}={value}" for name, value in changed.items() if value is not None)

    assert wire.call("GET", with_query()).status == 200
    flipped = ("B" if parameters["link-signature"][0] == "A" else "A") + parameters["link-signature"][1:]
    later = str(int(parameters["link-expires"]) + 1)
    altered = [
        link.replace("/o/a", "/o/b"), link.replace("/o/a", "/o/a/"), link.replace("/b/photos", "/b/other"),
        with_query(expires=later), with_query(expires="-1"), with_query(expires="9" * 30), with_query(expires=""),
        with_query(expires="%2B" + parameters["link-expires"]), with_query(expires="0" + parameters["link-expires"]),
        with_query(issued=later), with_query(issued=""), with_query(issued=None), with_query(object="none"), with_query(deadline="true"),
        with_query(method="PUT"), with_query(method="HEAD"), with_query(method="get"), with_query(method=None),
        with_query(key="k1"), with_query(key="none"), with_query(key=None),
        with_query(signature=flipped), with_query(signature=""), with_query(signature=parameters["link-signature"] + "="),
        with_query(signature=parameters["link-signature"][:-1]),
        with_query(size="1"), with_query(size=""), with_query(type="text/plain"), with_query(type=""),
        link + "&link-method=GET", link + "&%zz=1", link + "&%ff=1", link + "&%FF", link + "&alt=media", link + "&generation=1",
        link.replace("/o/a", "/o/%2561"), link.replace("/o/a", "/o/A"), link.replace("/o/a", "/o/a%2F"), link + "&metadata", link + "&alt=media", link + "&link-other=1", link + "&sign",
        path + f"?link-expires={later}&" + query, link.replace("link-expires", "Link-Expires"),
    ]
    for target in altered:
        response = wire.call("GET", target)
        assert response.status == 403, (target[40:], response.status)
        refused(response)
    # A link is invalid for another method.
    for method in ("PUT", "DELETE", "PATCH", "POST"):
        response = wire.call(method, link, [], "x")
        assert response.status in (403, 405), (method, response)
    # Other ways to write the same.
    for target in (link.replace("/o/a", "/o/%61"), link.replace("/b/photos", "/b/%70hotos"), path + "?&&" + query + "&",
                   path + "?" + "&".join(reversed(query.split("&"))), with_query(method="%47ET")):
        assert wire.call("GET", target).status == 200, target
    # Without its signature a query is a query like any other.
    assert wire.call("GET", with_query(signature=None)).status == 401
    assert wire.call("GET", link.replace("/o/a", "/o/%61")).status == 200
    assert wire.get("b", server.token("alice")).body == b"1"


def test_links_expire(serve, keys):
    server = serve()
    wire = Wire(server)
    assert wire.put("a", b"1", server.token("alice")).status == 201
    link = sign(keys, "/b/photos/o/a", "--expires", "2s")
    end = int(urllib.parse.parse_qs(link)["link-expires"][0])
    assert wire.call("GET", link).status == 200 or time.time() >= end
    response = wait_until(lambda: (lambda a: a if a.status != 200 else None)(wire.call("GET", link)), what="the end")
    assert time.time() >= end
    refused(response, "link-expired")
    # An altered link does not reveal when the original expired.
    refused(wire.call("GET", link.replace("/o/a", "/o/b")))


def test_keys_of_links_rotate(serve, keys):
    server = serve()
    wire = Wire(server)
    assert wire.put("a", b"1", server.token("alice")).status == 201
    first, second = [line for line in keys.read_text().splitlines() if not line.startswith("#")]
    newest = sign(keys, "/b/photos/o/a")
    keys.write_text(second + "\n")
    oldest = sign(keys, "/b/photos/o/a")
    assert "link-key=k2" in newest and "link-key=k1" in oldest
    wait_until(lambda: wire.call("GET", newest).status == 403, what="the key that is gone")
    assert wire.call("GET", oldest).status == 200
    keys.write_text(new_key("k3") + second + "  # older\n")
    wait_until(lambda: wire.call("GET", sign(keys, "/b/photos/o/a")).status == 200, what="the new key")
    made = wire.call("POST", "/b/photos/o/a?sign", [server.token("alice")])
    assert "link-key=k3" in made.json["path"] and wire.call("GET", oldest).status == 200
    # A new secret for the same ID does not verify older links.
    keys.write_text(new_key("k1"))
    wait_until(lambda: wire.call("GET", oldest).status == 403, what="the other secret")
    # An unreadable file changes nothing, and its error message has no part of a key.
    secret = second.split()[1]
    keys.write_text(f"k1 {secret[:-20]}\n")
    wait_until(lambda: "keys of links not loaded" in server.output(), what="the error")
    assert secret[:-20] not in server.output() and "line 1" in server.output()
    assert "line 1: expected base64url" in server.readiness()[1]


NAMES = ["a b", "100%", "a+b", "a?b", "a#b", "a&b=c", "link-signature=x", "naïve/ünï/文字/😀", "a;b,c", "~'()*!@:$", '"\\<>|^`{}', "%2F", "a=b"]


def test_odd_names(serve, keys):
    server = serve()
    for transport in ("http1", "h2c"):
        wire = Wire(server, transport)
        for name in NAMES:
            path = "/b/photos/o/" + urllib.parse.quote(name, safe="/")
            response = wire.call("PUT", sign(keys, path, "--method", "PUT"), [], name)
            assert response.status in (200, 201) and response.json["fullPath"] == name, (name, response)
            made = wire.call("POST", path + "?sign", [server.token("alice")])
            assert made.status == 200, (name, made)
            for link in (sign(keys, path), made.json["path"]):
                assert wire.call("GET", link).body == name.encode(), link
    for path in ["/b/photos/o/a%0Ab", "/b/photos/o/a%00", "/b/photos/o/a%zz", "/b/photos/o/", "/b/photos/o", "/b/photos",
                 "/b/photos/o/a?x=1", "photos/o/a", "", "/b/photos/o/a%0D", "/b/photos/o/" + "a" * 1025]:
        done = sign(keys, path, check=False)
        assert done.returncode in (1, 64) and done.stderr and not done.stdout, (path, done)


def test_the_rules_decide_requests_for_links(serve, keys):
    server = serve()
    wire = Wire(server)

    def ask(name, uid, **body):
        return wire.call("POST", f"/b/photos/o/{name}?sign", [server.token(uid)] if uid else [],
                         json.dumps(body) if body else None)

    ask("a", None).is_problem("unauthenticated")
    ask("a", "bob").is_problem("unauthorized")
    ask("a", "bob", method="PUT").is_problem("unauthorized")
    made = ask("a", "alice", method="PUT", expiresIn=60)
    assert made.status == 200 and set(made.json) == {"method", "path", "expires"} and made["cache-control"] == "no-store"
    assert wire.call("PUT", made.json["path"], [], "x").status == 201
    assert wire.call("GET", ask("a", "alice").json["path"]).body == b"x"
    # The link binds the properties of the body that the rules read.
    ask("small/a", "bob", method="PUT").is_problem("unauthorized")
    ask("small/a", "bob", method="PUT", size=10).is_problem("unauthorized")
    ask("small/a", "bob", method="PUT", size=100, contentType="text/plain").is_problem("unauthorized")
    made = ask("small/a", "bob", method="PUT", size=10, contentType="text/plain").json["path"]
    refused(wire.call("PUT", made, [("Content-Type", "text/plain")], "x" * 11))
    assert wire.call("PUT", made, [("Content-Type", "text/plain")], "x" * 10).status == 201
    # It binds what they read of the object too: the link creates and never replaces.
    once = ask("once/a", "bob", method="PUT")
    assert once.status == 200 and wire.call("PUT", once.json["path"], [], "1").status == 201
    refused(wire.call("PUT", once.json["path"], [], "2"), "link-expired")
    ask("once/a", "bob", method="PUT").is_problem("unauthorized")
    # A link can only be requested for a permitted operation.
    for method in ("GET", "DELETE"):
        ask("once/new", "bob", method=method).is_problem("unauthorized")
    for body in [{"method": "POST"}, {"method": 1}, {"expiresIn": 0}, {"expiresIn": 3601}, {"expiresIn": "60"}, {"expiresIn": 1.5},
                 {"size": -1}, {"size": 1}, {"contentType": "a\nb", "method": "PUT"}, {"contentType": "", "method": "PUT"},
                 {"other": 1}, {"method": None}]:
        ask("a", "alice", **body).is_problem("invalid-argument")
    ask("a", "alice", method="PUT", size=2**64 - 1).is_problem("payload-too-large")
    for text in ["[]", "{", "1", '{"method": "GET", "method": "PUT"}', "\0", "x" * 16_384]:
        wire.call("POST", "/b/photos/o/a?sign", [server.token("alice")], text).is_problem("invalid-argument")
    wire.call("POST", "/b/photos/o/a?sign", [server.token("alice")], " " * 16_385).is_problem("payload-too-large")
    wire.call("POST", "/b/photos/o/?sign", [server.token("alice")]).is_problem("invalid-name")
    wire.call("POST", "/b/photos/o/a", [server.token("alice")]).is_problem("method-not-allowed")
    assert "POST" in wire.call("OPTIONS", "/b/photos/o/a")["allow"].split(", ")
    # Log lines of requests with links name the key, without anything that permits another request.
    output = server.output()
    assert '"principal":"link:k2"' in output and '"group":"links"' in output
    # Log lines of requests for links name the caller and the operation.
    asked = {(line["principal"], line.get("operation")) for line in access_lines(server) if line["method"] == "POST"}
    assert {("alice", "get"), ("alice", "create"), ("bob", "create"), ("bob", "delete")} <= asked
    assert "link-signature" not in output and made.rsplit("=", 1)[1] not in output
    assert server.metrics()['sluice_caller_requests_total{group="links"}'] == 5


#: Rules that read the object that is there.
READING = rules(
    "match /{name=**} { allow read, write: if request.auth.uid == 'alice'; }",
    "match /once/{n} { allow create: if request.auth.uid == 'bob' && resource == null; }",
    "match /own/{n} { allow read, write: if request.auth.uid == 'bob' && resource.metadata.owner == 'bob'; }",
)


@pytest.mark.parametrize("transport", ["http1", "h2c", "h2"])
def test_a_link_is_for_the_object_that_the_rules_have_read(serve, keys, transport):
    server = serve(READING)
    wire = Wire(server, transport)
    alice, bob = server.token("alice"), server.token("bob")

    def ask(name, **body):
        made = wire.call("POST", f"/b/photos/o/{name}?sign", [bob], json.dumps(body))
        assert made.status == 200, made
        return made.json["path"]

    # The link only creates: not if the object exists, and not if another request creates it first.
    links = [ask("once/a", method="PUT") for _ in range(2)]
    assert "&link-object=none&" in links[0]
    assert wire.call("PUT", links[0], [], "bob's").status == 201
    for link in links:
        for condition in ([], ["If-Match: *"]):
            refused(wire.call("PUT", link, condition, "replaced"), "link-expired")
    assert wire.get("once/a", alice).body == b"bob's"
    for size in (0, 100_000):
        refused(wire.call("PUT", links[1], [], "x" * size), "link-expired")
    assert wire.delete("once/a", alice).status == 204
    assert wire.call("PUT", links[1], [], "again").status == 201
    # The version that was read: of the bytes, and of the metadata.
    owned = ("X-Object-Meta-Owner", "bob")
    assert wire.put("own/a", b"1", alice, owned).status == 201
    get, put, delete = (ask("own/a", method=method) for method in ("GET", "PUT", "DELETE"))
    assert wire.call("GET", get).body == b"1" and wire.call("HEAD", get).status == 200
    assert wire.patch("own/a", {"customMetadata": {"owner": "eve"}}, alice).status == 200
    for method, link in (("GET", get), ("HEAD", get), ("PUT", put), ("DELETE", delete)):
        assert wire.call(method, link, [], "2" if method == "PUT" else None).status == 403, method
    refused(wire.call("GET", get), "link-expired")
    assert wire.get("own/a", alice).body == b"1"
    # The same metadata again is another version.
    assert wire.put("own/a", b"2", alice, owned).status == 200
    refused(wire.call("GET", get), "link-expired")
    put, delete = ask("own/a", method="PUT"), ask("own/a", method="DELETE")
    assert wire.call("PUT", put, [owned], "3").status == 200
    refused(wire.call("PUT", put, [owned], "4"), "link-expired")
    refused(wire.call("DELETE", delete), "link-expired")
    assert wire.call("DELETE", ask("own/a", method="DELETE")).status == 204
    refused(wire.call("PUT", put, [owned], "5"), "link-expired")
    assert wire.get("own/a", alice).status == 404
    # The rules read nothing, so nothing is bound.
    open_link = wire.call("POST", "/b/photos/o/a?sign", [alice], '{"method": "PUT"}').json["path"]
    assert "link-object" not in open_link
    assert [wire.call("PUT", open_link, [], "x").status for _ in range(2)] == [201, 200]


def test_many_uses_of_a_creating_link_create_once(serve, keys):
    server = serve(READING)
    links = [Wire(server).call("POST", "/b/photos/o/once/a?sign", [server.token("bob")], '{"method": "PUT"}').json["path"]
             for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda link: Wire(server).call("PUT", link, [], "x" * 50_000), links))
    assert sorted(response.status for response in responses) == [201] + [403] * 7


def test_rules_that_read_the_time_bound_their_links(serve, keys):
    deadline = int(time.time()) + 600
    server = serve(rules(
        f"match /until/{{n}} {{ allow read, write: if request.auth != null && request.time < timestamp.value({deadline}000); }}",
        "match /hours/{n} { allow read, write: if request.auth != null && request.time.seconds() < 60; }",
        "match /always/{n} { allow read, write: if request.auth != null && (request.time.year() < 3000 || true); }",
        # Without a credential, which would end sooner.
        f"match /open/{{n}} {{ allow read, write: if request.time < timestamp.value({deadline}000); }}"))
    wire = Wire(server)

    def ask(name, lifetime, method="GET"):
        return wire.call("POST", f"/b/photos/o/{name}?sign", [server.token("alice")],
                         json.dumps({"method": method, "expiresIn": lifetime}))

    made = ask("until/a", 60, "PUT")
    assert made.status == 200 and "&link-deadline=true&" in made.json["path"]
    assert wire.call("PUT", made.json["path"], [], "1").status == 201
    assert wire.call("GET", ask("until/a", 60).json["path"]).body == b"1"
    for lifetime in (1, 60):
        ask("hours/a", lifetime).is_problem("unauthorized")
    made = ask("always/a", 3600, "PUT")
    assert made.status == 200 and "link-deadline" not in made.json["path"]
    late = wire.call("POST", "/b/photos/o/open/a?sign", [], '{"expiresIn": 900}')
    assert "shorter expiresIn" in late.is_problem("unauthorized")
    assert wire.call("POST", "/b/photos/o/open/a?sign", [], '{"expiresIn": 60}').status == 200


def test_an_upload_by_a_link_ends_before_the_deadline(serve, keys):
    """Where the rules read the time, an upload that is under way when the link expires is not stored."""
    server = serve(rules(
        "match /until/{n} { allow write: if request.time < timestamp.date(2999, 1, 1); }",
        "match /any/{n} { allow write: if true; }"))
    wire = Wire(server)
    statuses = {}
    for name in ("until", "any"):
        path = wire.call("POST", f"/b/photos/o/{name}/a?sign", [], '{"method": "PUT", "expiresIn": 3}').json["path"]
        end = int(urllib.parse.parse_qs(path)["link-expires"][0])
        with socket.create_connection(("127.0.0.1", server.http), timeout=30) as connection:
            connection.sendall(f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\nExpect: 100-continue\r\n\r\n"
                               .encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 100")
            connection.sendall(b"abc")
            wait_until(lambda: time.time() >= end + 1, what="the end of the link")
            connection.sendall(b"def")
            statuses[name] = connection.recv(100).split(b" ")[1]
    assert statuses == {"until": b"403", "any": b"201"}


def test_a_link_expires_with_the_credential_that_requested_it(serve, keys):
    server = serve()
    wire = Wire(server)
    token_ends = int(time.time()) + 600
    made = wire.call("POST", "/b/photos/o/a?sign", [server.token("alice")], '{"expiresIn": 3600}')
    end = int(urllib.parse.parse_qs(made.json["path"])["link-expires"][0])
    assert token_ends <= end <= int(time.time()) + 600
    assert made.json["expires"] == time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(end))


def test_the_longest_lifetime_is_that_of_the_gateway(serve, keys):
    """A link with a longer lifetime than the configured maximum is rejected, even with a valid signature."""
    server = serve()
    wire = Wire(server)
    assert wire.put("a", b"1", server.token("alice")).status == 201
    assert wire.call("GET", sign(keys, "/b/photos/o/a", "--expires", "1h")).status == 200
    for lifetime in ("3601s", "100h"):
        response = wire.call("GET", sign(keys, "/b/photos/o/a", "--expires", lifetime))
        assert "3600 s" in response.is_problem("invalid-link")


def test_only_post_makes_a_link(serve, keys):
    """A link used with the wrong method changes nothing."""
    server = serve()
    wire = Wire(server)
    assert wire.put("a", b"1", server.token("alice")).status == 201
    for method, body in [("GET", None), ("HEAD", None), ("PUT", "2"), ("PATCH", "{}"), ("DELETE", None)]:
        response = wire.call(method, "/b/photos/o/a?sign", [server.token("alice")], body)
        assert response.status == 405 and response["allow"] == "POST, OPTIONS", (method, response)
    assert wire.get("a", server.token("alice")).body == b"1"


def test_guesses_are_counted(serve, keys):
    server = serve(more="callers: { anonymous: { requests: 3 } }\n")
    wire = Wire(server)
    link = sign(keys, "/b/photos/o/a")
    for target in (link.replace("/o/a", "/o/b"), link.replace("/b/photos", "/b/nowhere"), link.replace("/o/a", "/o/a//b")):
        wait_until(lambda: wire.call("GET", target).status == 429, what="the limit")
        assert wire.call("GET", link).status == 404


def test_a_link_does_not_bypass_limits_of_the_bucket(serve, keys):
    server = serve(bucket=', maximumObjectSize: 10, paths: { denied: ["secret/**"] }')
    wire = Wire(server)
    large = sign(keys, "/b/photos/o/a", "--method", "PUT")
    wire.call("PUT", large, [], "x" * 11).is_problem("payload-too-large")
    assert wire.call("PUT", large, [], "x" * 10).status == 201
    too_large = wire.call("POST", "/b/photos/o/a?sign", [server.token("alice")], '{"method": "PUT", "size": 11}')
    too_large.is_problem("payload-too-large")
    wire.call("POST", "/b/photos/o/secret/a?sign", [server.token("alice")]).is_problem("invalid-name")
    for method in ("GET", "PUT", "DELETE"):
        link = sign(keys, "/b/photos/o/secret/a", "--method", method)
        wire.call(method, link, [], "x" if method == "PUT" else None).is_problem("invalid-name")
    wire.call("GET", sign(keys, "/b/nowhere/o/a")).is_problem("bucket-not-found")
    # Conditions hold as ever.
    wire.call("PUT", large, ["If-None-Match: *"], "x").is_problem("precondition-failed")
    assert wire.call("GET", sign(keys, "/b/photos/o/a"), ["Range: bytes=20-"]).status == 416


def test_without_keys_there_are_no_links(launch, keys):
    server = launch()
    refused(Wire(server).call("GET", sign(keys, "/b/photos/o/a")))
    response = Wire(server).call("POST", "/b/photos/o/a?sign")
    response.is_problem("not-implemented")
    assert "store" not in response.json["title"]
    assert "POST" not in Wire(server).call("OPTIONS", "/b/photos/o/a")["allow"]


@pytest.mark.parametrize("arguments, code, message", [
    (["--path", "/b/a/o/b"], 64, "No configuration"),
    (["--keys", "KEYS"], 64, "--path is missing"),
    (["--keys", "KEYS", "--path", "/b/a/o/b", "--method", "PATCH"], 64, "GET, PUT or DELETE"),
    (["--keys", "KEYS", "--path", "/b/a/o/b", "--expires", "15"], 64, "duration"),
    (["--keys", "KEYS", "--path", "/b/a/o/b", "--expires", "8d"], 64, "duration"),
    (["--keys", "KEYS", "--path", "/b/a/o/b", "--expires", "169h"], 64, "604800s"),
    (["--keys", "KEYS", "--path", "/b/a/o/b", "--expires", "500ms"], 64, "from 1s"),
    (["--keys", "KEYS", "--path", "/b/a/o/b", "--size", "5"], 64, "of links for PUT"),
    (["--keys", "/nowhere/keys", "--path", "/b/a/o/b"], 1, "/nowhere/keys"),
    (["--keys", "BROKEN", "--path", "/b/a/o/b"], 1, "line 2: expected base64url"),
    (["--keys", "KEYS", "--path", "/b/a/x"], 1, "/b/a/x"),
    (["--keys", "KEYS", "--path", "/b/a/o/b", "--method", "PUT", "--type", ""], 1, "the type is empty"),
    (["--keys", "KEYS", "--path", "/b/a/o/b", "--method", "PUT", "--type", "a\nb"], 1, "the type has a control character"),
    (["--keys", "KEYS", "--path", "/b/a/o/b", "--method", "PUT", "--type", " a/b"], 1, "the type begins or ends with a space"),
    (["--keys", "KEYS", "--path", "/b/a b/o/b"], 1, "No bucket can have this name"),
    (["--keys", "KEYS", "--path", "/b/a/o/../b"], 1, "segment"),
    (["--keys", "KEYS", "--path", "/b/a/o/b", "--expires=-5m"], 64, "duration"),
    (["--keys", "KEYS", "--path", "/b/a/o/b", "--expires", "99999999999999999999h"], 64, "duration"),
    (["--keys", "KEYS", "--path", "/b/a/o/b", "--method", "PUT", "--size=-1"], 64, "invalid for '--size"),
    (["--keys", "KEYS", "--path", "/b/a/o/b", "--method", "PUT", "--size", "18446744073709551616"], 64, "invalid for '--size"),
    (["--new-key", "a b"], 64, "can't be a name"),
])
def test_sign_reports_errors(keys, tmp_path, arguments, code, message):
    broken = tmp_path / "broken"
    broken.write_text("# a comment\nk1 abcdefgh-secret\n")
    words = {"KEYS": str(keys), "BROKEN": str(broken)}
    done = subprocess.run([str(BINARY), "sign", *(words.get(word, word) for word in arguments)], capture_output=True,
                          text=True, env={k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")})
    assert done.returncode == code and message in done.stderr and not done.stdout, done
    assert "abcdefgh" not in done.stderr


def test_sign_takes_the_keys_of_the_configuration(serve, keys):
    server = serve()
    command = [str(BINARY), "sign", "--config", str(server.config), "--path", "/b/photos/o/a", "--origin", "https://s.example/"]
    environment = {**os.environ, **server.environment}
    done = subprocess.run([*command, "--expires", "1h"], capture_output=True, text=True, env=environment)
    assert done.stdout.startswith("https://s.example/b/photos/o/a?link-method=GET&"), done
    done = subprocess.run([*command, "--expires", "61m"], capture_output=True, text=True, env=environment)
    assert done.returncode == 64 and "links.maximumLifetime" in done.stderr
