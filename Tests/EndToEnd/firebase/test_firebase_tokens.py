"""Download tokens: what they open, who changes them, and that nothing shows them."""

import concurrent.futures
import json
import subprocess
import uuid

import pytest

import program
import wire as wire_client
from firebase import Firebase, refused
from secret_words import secret

ADMINISTRATORS = "firebaseOptions: { administrators: [alice] }\n"
KEY = "firebaseStorageDownloadTokens"


def test_a_token_reads_one_object(ruled):
    client = ruled()
    alice, nobody = client("alice"), client()
    token = alice.stored("users/alice/a", b"secret")["downloadTokens"]
    other = alice.stored("users/alice/b")["downloadTokens"]
    for name, method, given, status in (
            ("users/alice/a", "GET", token, 200), ("users/alice/a", "HEAD", token, 200), ("users/alice/a", "GET", other, 403),
            ("users/alice/b", "GET", token, 403), ("users/alice/a", "GET", token[:-1], 403), ("users/alice/a", "GET", token + "x", 403),
            ("users/alice/a", "GET", "", 403), ("users/alice/a", "GET", None, 403), ("users/alice/a", "GET", f"{token},{other}", 403),
            ("users/alice/none", "GET", token, 403)):
        got = nobody.get(name, token=given, method=method)
        assert got.status == status, (name, method, got)
        if method == "HEAD":
            continue
        if status == 200:
            assert got.body == b"secret" and got["cache-control"] == "private, max-age=0"
        else:
            assert refused(got, 403) == "Permission denied. No READ permission."
    assert nobody.get("users/alice/a", ("Range", "bytes=1-2"), token=token).body == b"ec"
    # An invalid token changes nothing for those whom the rules allow.
    assert alice.get("users/alice/a", token=other).body == b"secret"
    # Nothing is taken from a cache without a request: the token may be deleted, or the object replaced.
    first = alice.get("users/alice/a")
    for got in (first, alice.get("users/alice/a", ("If-None-Match", first["etag"]))):
        assert got.status in (200, 304) and got["cache-control"] == "private, max-age=0"
    refused(alice.get("users/alice/none", token=other), 404)


def test_a_token_is_for_nothing_else(ruled):
    client = ruled()
    token = client("alice").stored("users/alice/a", b"x")["downloadTokens"]
    nobody, query = client(), f"token={secret(token)}"
    for method, path in (("GET", f"/users%2Falice%2Fa?{query}"), ("GET", f"?prefix=users%2Falice%2F&{query}"), ("DELETE", f"/users%2Falice%2Fa?{query}"),
                         ("PATCH", f"/users%2Falice%2Fa?{query}"), ("PUT", f"/users%2Falice%2Fa?{query}"), ("DELETE", f"/users%2Falice%2Fa?alt=media&{query}")):
        refused(nobody.call(method, path, [], None if method in ("GET", "DELETE") else "{}"), 403)
    nobody.wire.get(f"users/alice/a?{query}&alt=media").is_problem("unauthenticated")
    assert client("alice").get("users/alice/a").body == b"x"


def test_path_rules_hold_for_tokens(launch, tmp_path):
    def buckets(denied):
        return f"  photos: {{ directory: {{ path: {tmp_path}/photos }}, firebase: true{denied} }}\n"
    server = launch(buckets=buckets(""))
    client = Firebase(wire_client.Wire(server))
    token = client.stored("private/a")["downloadTokens"]
    assert client.get("private/a", token=token).status == 200
    server.stop()
    later = Firebase(wire_client.Wire(launch(buckets=buckets(", paths: { denied: ['private/**'] }"))))
    refused(later.get("private/a", token=token), 400)


def test_a_stored_cache_control_wins(client, folder):
    token = client.multipart(f"{folder}/a", {"cacheControl": "public, max-age=9"}, b"x").json["downloadTokens"]
    assert client.get(f"{folder}/a", token=token)["cache-control"] == "public, max-age=9"


def test_an_upload_makes_a_new_token(each, folder):
    first = each.stored(f"{folder}/a")["downloadTokens"]
    second = each.stored(f"{folder}/a")["downloadTokens"]
    assert first != second and first not in each.metadata(f"{folder}/a").json["downloadTokens"]
    # Changes of metadata leave it.
    assert each.patch(f"{folder}/a", {"metadata": None, "contentType": "a/b"}).json["downloadTokens"] == second
    assert each.wire.patch(f"{folder}/a", {"customMetadata": None}).status == 200
    assert each.metadata(f"{folder}/a").json["downloadTokens"] == second
    # A native upload has none.
    each.wire.stored(f"{folder}/a")
    assert second not in each.metadata(f"{folder}/a").json["downloadTokens"].split(",")


def test_uploads_that_name_tokens(ruled):
    client = ruled()
    alice, nobody, name = client("alice"), client(), "users/alice/a"
    stored = alice.multipart(name, {"metadata": {KEY: "one,two", "k": "v"}}, b"x").json
    assert stored["downloadTokens"] == "one,two" and stored["metadata"] == {"k": "v"}
    assert nobody.get(name, token="two").status == 200
    assert nobody.get(name, token="one,two").status == 403
    assert alice.multipart(name, {"metadata": {KEY: ","}}, b"x").json["downloadTokens"] not in ("", ",")
    for wrong in (",".join("abcdefghijklmnopq"), "a b", "a\u00e4", "x" * 3000):
        refused(alice.multipart(name, {"metadata": {KEY: wrong}}, b"x"), 400)


def test_tokens_are_minted_by_reading_metadata(client, folder):
    names = [f"{folder}/{number}" for number in range(3)]
    for name in names:
        client.wire.stored(name)
    # Reading the bytes makes none.
    assert client.get(names[0]).status == 200 and client.get(names[0], method="HEAD").status == 200
    assert client.wire.metadata(names[0])["metageneration"] == "1"
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for name in names:
            found = list(pool.map(lambda _: client.metadata(name).json, range(8)))
            assert len({answer["downloadTokens"] for answer in found}) == 1 and found[0]["downloadTokens"]
            assert {answer["metageneration"] for answer in found} == {"2"}


def test_minting_can_be_switched_off(launch):
    client = Firebase(wire_client.Wire(launch(extra="firebase: true\nfirebaseOptions: { mintTokens: false }\n")))
    client.wire.stored("a")
    answer = client.metadata("a").json
    assert answer["downloadTokens"] == "" and answer["metageneration"] == "1"
    assert client.stored("b")["downloadTokens"] != ""


def test_minting_needs_get_alone(ruled):
    client = ruled()
    client("alice").wire.put("users/alice/a", b"x", ("Authorization", client("alice").credential[0][1]))
    refused(client().metadata("users/alice/a"), 403)
    minted = client("alice").metadata("users/alice/a").json
    assert minted["metageneration"] == "2" and client().get("users/alice/a", token=minted["downloadTokens"]).status == 200


@pytest.mark.parametrize("entry, allowed", [("alice:alice", True), ("bob:alice", False), ("'alice:'", False), ("none:alice", False)])
def test_an_administrator_of_one_source(ruled, entry, allowed):
    client = ruled(f"firebaseOptions: {{ administrators: [{entry}] }}\n")
    alice = client("alice")
    alice.stored("users/alice/a", b"x")
    assert alice.call("POST", "/users%2Falice%2Fa?create_token=true").status == (200 if allowed else 403)


def test_check_warns_of_administrators_of_any_source(tmp_path):
    file = tmp_path / "sluice.yaml"
    digest = "0" * 64
    file.write_text(f"rules: none\nbuckets: {{ photos: {{ directory: {{ path: {tmp_path}/photos }} }} }}\n"
                    f"tokens: {{ ci: {{ sha256: '{digest}' }} }}\nissuers: {{ users: {{ firebase: {{ project: p }} }} }}\n"
                    "firebaseOptions: { administrators: [alice, 'users:bob', 'system:serviceaccount:a:b'] }\n")
    done = subprocess.run([str(program.BINARY), "check", str(file)], capture_output=True, text=True)
    warned = [line for line in done.stderr.splitlines() if "firebaseOptions.administrators: warning" in line]
    assert done.returncode == 0 and len(warned) == 2, done.stderr
    assert "alice is this uid" in warned[0] and "system:serviceaccount:a:b is" in warned[1]


def test_administrators_change_tokens(ruled):
    client = ruled(ADMINISTRATORS)
    alice = client("alice")
    name, path = "users/alice/a", "/users%2Falice%2Fa?"
    first = alice.stored(name, b"x")["downloadTokens"]
    for caller in (client(), client("bob")):
        for change in ("create_token=true", f"delete_token={first}"):
            for where in (path, "/open%2Fnone?", "/users%2Fcarol%2Fnone?"):
                assert refused(caller.call("POST", where + change), 403) == "Missing admin credentials."
    # An invalid credential is no other failure here.
    for change in ("create_token=true", f"delete_token={first}"):
        assert refused(client().call("POST", path + change, [("Authorization", "Bearer owner")]), 403) == "Missing admin credentials."
    for wrong in ("create_token=yes", "create_token", "create_token=", "delete_token", "delete_token=", f"create_token=true&delete_token={first}"):
        refused(alice.call("POST", path + wrong), 400)
    second = alice.call("POST", path + "create_token=true").json
    tokens = second["downloadTokens"].split(",")
    assert tokens[0] == first and len(tokens) == 2 and second["metageneration"] == "2" and uuid.UUID(tokens[1]).version == 4
    assert all(client().get(name, token=token).status == 200 for token in tokens)
    # What is not there changes nothing.
    assert alice.call("POST", path + "delete_token=none").json == second
    third = alice.call("POST", path + f"delete_token={secret(first)}").json
    assert third["downloadTokens"] == tokens[1] and third["metageneration"] == "3"
    assert client().get(name, token=first).status == 403
    # The last one is replaced.
    last = alice.call("POST", path + f"delete_token={secret(tokens[1])}").json["downloadTokens"]
    assert last and last not in tokens and "," not in last
    refused(alice.call("POST", "/open%2Fnone?create_token=true"), 404)


def test_at_most_sixteen_tokens(ruled):
    client = ruled(ADMINISTRATORS)
    alice = client("alice")
    alice.stored("open/a")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: alice.call("POST", "/open%2Fa?create_token=true"), range(20)))
    assert sorted(answer.status for answer in answers) == [200] * 15 + [400] * 5
    found = alice.metadata("open/a").json
    assert len(set(found["downloadTokens"].split(","))) == 16 and found["metageneration"] == "16"


def test_nothing_shows_tokens(ruled):
    client = ruled()
    token = client("alice").stored("open/a", b"x")["downloadTokens"]
    wire = client().wire
    for answer in (wire.get("open/a"), wire.get("open/a?metadata"), wire.head("open/a"), wire.call("GET", "/b/photos/o?prefix=open/")):
        assert token not in repr(answer) and KEY.lower() not in repr(answer).lower()
    # Rules do not see it, neither in the object nor in what is uploaded.
    assert client().multipart("clean/a", {"metadata": {KEY: secret(str(uuid.uuid4())), "k": "v"}}, b"x").status == 200
    assert client().get("clean/a").status == 200 and client().metadata("clean/a").json["metadata"] == {"k": "v"}
    for body in ({"customMetadata": {KEY: "x"}}, {"customMetadata": {KEY.lower(): None}}):
        wire.patch("open/a", body).is_problem("invalid-argument")
    wire.put("open/a", b"x", (f"X-Object-Meta-{KEY}", "x")).is_problem("invalid-argument")
    assert client("alice").patch("open/a", {"metadata": {KEY: None, KEY.upper(): "x"}}).json["downloadTokens"] == token
    assert "metadata" not in client("alice").metadata("open/a").json


def test_disabled_buckets_ignore_tokens(launch, tmp_path):
    buckets = f"  photos: {{ directory: {{ path: {tmp_path}/photos }}, firebase: VALUE }}\n"
    server = launch(buckets=buckets.replace("VALUE", "true"))
    token = Firebase(wire_client.Wire(server)).stored("a")["downloadTokens"]
    server.stop()
    rules = tmp_path / "storage.rules"
    rules.write_text("rules_version = '2';\nservice firebase.storage {}\n")
    later = Firebase(wire_client.Wire(launch(buckets=buckets.replace("VALUE", "false"), rules=rules)))
    later.get("a", token=token).is_problem("not-found")
    assert json.loads(later.wire.get(f"a?alt=media&token={secret(token)}").body)["code"] == "unauthorized"
