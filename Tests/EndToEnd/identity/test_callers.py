"""Bearer tokens: verification, the claims that rules see, and problems for invalid tokens."""

import hashlib
import json
import os
import re
import signal
import subprocess
import threading
import time

import pytest

from identities import Certificate, Key, KeyServer, access_lines, claims, encode, key_set, loopback_names
from program import BINARY, curl, log_lines, new_token, status, wait_until
from rulesets import rules
from wire import Wire

#: Each depends on the caller, except `open`.
RULES = rules(
    "match /open/{n} { allow read, write: if true; }",
    "match /nobody/{n} { allow read: if request.auth == null; }",
    "match /users/{user}/{n} { allow read, write: if request.auth.uid == user; }",
    "match /verified/{n} { allow read: if request.auth.token.email_verified && "
    "request.auth.token.firebase.sign_in_provider == 'password'; }",
    "match /namespaces/{namespace}/{n} { allow read: if request.auth.token['kubernetes.io'].namespace == namespace; }",
    "match /roles/{role}/{n} { allow read: if role in request.auth.token.roles; }",
)


@pytest.fixture
def key_servers():
    """Starts key servers: `key_servers(pages…)`."""
    started = []

    def start(tls=None, running=True):
        server = KeyServer(tls)
        started.append(server)
        return server.start() if running else server

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def serve(launch, tmp_path):
    """Starts a gateway with issuers and the rules above."""
    def start(callers="", environment=None, **options):
        (tmp_path / "storage.rules").write_text(RULES)
        return launch(extra="log: { format: json, allowedSample: 1 }\n" + callers,
                      environment={"SLUICE_RULES": str(tmp_path / "storage.rules"), **(environment or {})}, **options)
    return start


def jwks(name, issuer, keys, more=""):
    return f'  {name}: {{ jwks: {{ issuer: "{issuer}", audiences: [sluice, other], keys: "{keys}" }}{more} }}\n'


def bearer(token, scheme="Bearer"):
    return ("Authorization", f"{scheme} {token}")


def ask(server, name, token=None, scheme="Bearer"):
    """GET of a missing object: 404 if the rules allow it."""
    return Wire(server).get(name, *([bearer(token, scheme)] if token is not None else []))


@pytest.mark.parametrize("transport", ["http1", "h2c", "h2"])
def test_issuers_are_distinguished(serve, key_servers, transport):
    keys = [Key("RS256"), Key("ES256", "k2"), Key("EdDSA", "k3")]
    servers = [key_servers(), key_servers()]
    servers[0].pages["/keys"] = 200, key_set(keys[0])
    servers[1].pages["/keys"] = 200, key_set(*keys[1:])
    server = serve("issuers:\n" + jwks("one", "https://one.example", servers[0].url + "/keys")
                   + jwks("two", "two", servers[1].url + "/keys", ", uid: client"))
    wire = Wire(server, transport)
    for token, uid in [
        (keys[0].sign(claims("https://one.example")), "alice"),
        (keys[1].sign(claims("two", client="bob")), "bob"),
        (keys[2].sign(claims("two", client="eve", aud=["a", "other"])), "eve"),
    ]:
        for _ in range(2):
            assert wire.put(f"users/{uid}/a", b"x", bearer(token)).status in (200, 201)
            wire.get("users/carol/a", bearer(token)).is_problem("unauthorized")
    # A key is valid for its own issuer only.
    forged = keys[1].sign(claims("https://one.example"))
    wire.get("open/a", bearer(forged)).is_problem("bad-signature")
    wait_until(lambda: len(access_lines(server)) == 12, what="the access lines")
    assert {(line["principal"], line["group"]) for line in access_lines(server)} == {("alice", "one"), ("bob", "two"), ("eve", "two")}


def altered(token):
    head, body, signature = token.split(".")
    return f"{head}.{body}.{encode(bytes(len(signature) * 3 // 4))}"


def test_each_wrong_token_has_its_code(serve, tmp_path):
    key, stranger = Key("ES256"), Key("ES256")
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(key))
    server = serve("issuers:\n" + jwks("ci", "ci", file))
    now = int(time.time())
    good = key.sign(claims("ci"))
    assert ask(server, "users/alice/a", good).status == 404
    assert ask(server, "users/alice/a", good, "bEaReR").status == 404
    assert ask(server, "users/alice/a", good, "Firebase").status == 404
    table = [
        ("token-expired", key.sign(claims("ci", exp=now - 61))),
        ("token-not-yet-valid", key.sign(claims("ci", nbf=now + 120))),
        ("token-not-yet-valid", key.sign(claims("ci", iat=now + 120))),
        ("unknown-issuer", key.sign(claims("https://elsewhere.example"))),
        ("unknown-issuer", key.sign(claims(None))),
        ("wrong-audience", key.sign(claims("ci", aud="sluic"))),
        ("bad-signature", stranger.sign(claims("ci"))),
        ("bad-signature", altered(good)),
        ("bad-signature", key.sign(claims("ci"), kid="../../k1")),
        ("token-malformed", key.sign(claims("ci", exp=None))),
        ("token-malformed", key.sign(claims("ci", sub=""))),
        ("token-malformed", good + "="),
        ("token-malformed", f"{encode('{')}.{encode('{}')}.AA"),
        ("token-malformed", key.sign(claims("ci", filler="x" * 17_000))),
        ("token-malformed", ""),
        ("unknown-token", "opaque"),
        ("unknown-token", good + ".x"),
    ]
    none = encode('{"alg":"none"}') + "." + encode(json.dumps(claims("ci"))) + "."
    table.append(("bad-signature", none))
    for code, token in table:
        response = ask(server, "open/a", token)
        assert response.json["code"] == code, (code, token)
        response.is_problem(code)
        assert response["www-authenticate"] == f'Bearer error="invalid_token", error_description="{code}"'
    for scheme in ["Basic", "Negotiate", "Bearer,"]:
        response = ask(server, "open/a", "YTpi", scheme)
        response.is_problem("unsupported-scheme")
        # Not an invalid token but a missing one (RFC 6750, section 3.1).
        assert response["www-authenticate"] == "Bearer"
    Wire(server).get("open/a", bearer(good), bearer(good)).is_problem("token-malformed")
    # Anonymous: the rules decide, and the response asks for credentials.
    assert ask(server, "open/a").status == 404 and ask(server, "nobody/a").status == 404
    response = ask(server, "users/alice/a")
    response.is_problem("unauthenticated")
    assert response["www-authenticate"] == "Bearer"
    ask(server, "nobody/a", good).is_problem("unauthorized")
    metrics = server.metrics()
    assert metrics['sluice_tokens_total{outcome="token-expired"}'] == 1
    assert metrics['sluice_tokens_total{outcome="known"}'] >= 2
    assert metrics['sluice_caller_requests_total{group="ci"}'] == 4


def test_without_issuers_tokens_are_ignored(serve):
    server = serve()
    token = Key().sign(claims("ci", sub="alice"))
    assert ask(server, "open/a", token).status == 404
    assert ask(server, "users/alice/a", token).status == ask(server, "users/alice/a").status == 401


def test_keys_rotate_and_their_server_fails(serve, key_servers):
    old, new = Key("ES256", "old"), Key("ES256", "new")
    source = key_servers()
    source.pages["/keys"] = 200, key_set(old)
    server = serve("issuers:\n" + jwks("ci", "ci", source.url + "/keys"))
    assert ask(server, "users/alice/a", old.sign(claims("ci"))).status == 404
    # An unknown key ID causes an early fetch, so no caller is rejected.
    source.pages["/keys"] = 200, key_set(old, new)
    assert ask(server, "users/alice/a", new.sign(claims("ci"))).status == 404
    # No other request causes a fetch within the next 30 seconds.
    asked = len(source.requests)
    for kid in ["a", "b", "c"]:
        ask(server, "open/a", Key("ES256", kid).sign(claims("ci"))).is_problem("bad-signature")
    assert len(source.requests) == asked
    source.stop()
    for key in (old, new):
        assert ask(server, "users/bob/a", key.sign(claims("ci", sub="bob"))).status == 404


@pytest.mark.parametrize("fault", ["down", "garbage", "status", "slow"])
def test_cached_keys_outlast_a_broken_key_server(serve, key_servers, fault):
    key = Key()
    source = key_servers()
    source.pages["/keys"] = 200, key_set(key)
    server = serve("issuers:\n" + jwks("ci", "ci", source.url + "/keys"))
    {
        "down": source.stop, "slow": source.moving.clear,
        "garbage": lambda: source.pages.update({"/keys": (200, b"<html>")}),
        "status": lambda: source.pages.update({"/keys": (500, key_set(Key("ES256", "other")))}),
    }[fault]()
    # The early fetch for an unknown key is under way, or has failed, while others are served.
    responses = []
    waiter = threading.Thread(target=lambda: responses.append(
        ask(server, "open/a", Key("ES256", "other").sign(claims("ci")))))
    waiter.start()
    for number in range(20):
        assert ask(server, "users/alice/a", key.sign(claims("ci", jti=str(number)))).status == 404
    waiter.join()
    responses[0].is_problem("bad-signature")
    if fault != "slow":
        wait_until(lambda: "[-] issuers failed" in server.readiness()[1], what="the note")
    code, text = server.readiness()
    assert code == 200 and text.endswith("ready\n")
    source.moving.set()


def test_without_keys_requests_fail_until_keys_arrive(serve, key_servers):
    key = Key()
    source = key_servers(running=False)
    source.pages["/keys"] = 200, b"{}"
    server = serve("issuers:\n" + jwks("ci", "ci", source.url + "/keys"), ready=503)
    wait_until(lambda: "refused" in server.readiness()[1].lower(), what="the cause")
    response = ask(server, "open/a", key.sign(claims("ci")))
    response.is_problem("keys-unavailable")
    assert response["retry-after"] == "5"
    assert ask(server, "open/a").status == 404
    # A key set without keys is rejected.
    source.start()
    wait_until(lambda: source.requests, what="the fetch")
    assert server.readiness()[0] == 503
    source.pages["/keys"] = 200, key_set(key)
    wait_until(lambda: server.readiness()[0] == 200, what="readiness")
    assert ask(server, "users/alice/a", key.sign(claims("ci"))).status == 404
    assert server.metrics()["sluice_issuer_key_refresh_failures_total"] >= 1


def test_a_file_of_keys_is_read_again(serve, tmp_path):
    old, new = Key("ES256", "old"), Key("ES256", "new")
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(old))
    server = serve("issuers:\n" + jwks("ci", "ci", file))
    token = old.sign(claims("ci"))
    assert ask(server, "users/alice/a", token).status == 404
    file.write_bytes(key_set(new))
    wait_until(lambda: ask(server, "users/alice/a", new.sign(claims("ci"))).status == 404, what="the new key")
    # A cached token is invalid once its key is gone.
    ask(server, "users/alice/a", token).is_problem("bad-signature")
    file.write_text("junk")
    wait_until(lambda: "[-] issuers failed" in server.readiness()[1], what="the note")
    assert ask(server, "users/alice/a", new.sign(claims("ci"))).status == 404


def test_discovery_over_https(serve, key_servers, tmp_path):
    root = Certificate(tmp_path, "root", "root", is_authority=True)
    key = Key("RS256")
    source = key_servers(root.issue("keys", "keys", names=loopback_names()))
    document = {"issuer": source.url, "jwks_uri": source.url + "/jwks"}
    source.pages["/.well-known/openid-configuration"] = 200, json.dumps({**document, "issuer": "x"}).encode()
    source.pages["/jwks"] = 200, key_set(key)
    issuer = f'issuers:\n  sso: {{ oidc: {{ issuer: "{source.url}", audiences: [sluice] }}, uid: email, authorities: "{root.chain}" }}\n'
    server = serve(issuer, ready=503)
    wait_until(lambda: "another issuer" in server.readiness()[1], what="the cause")
    source.pages["/.well-known/openid-configuration"] = 200, json.dumps(document).encode()
    wait_until(lambda: server.readiness()[0] == 200, what="readiness")
    token = key.sign(claims(source.url, email="a@example.org", email_verified=True, roles=["reader"]))
    assert ask(server, "users/a@example.org/a", token).status == 404
    assert ask(server, "roles/reader/a", token).status == 404
    ask(server, "roles/writer/a", token).is_problem("unauthorized")
    unverified = key.sign(claims(source.url, email="a@example.org", email_verified=False))
    ask(server, "open/a", unverified).is_problem("token-malformed")


def test_kubernetes_in_the_cluster(serve, key_servers, tmp_path):
    root = Certificate(tmp_path, "root", "cluster", is_authority=True)
    key = Key("RS256")
    source = key_servers(root.issue("api", "api", names=loopback_names()))
    issuer = "https://kubernetes.default.svc.cluster.local"
    source.pages["/.well-known/openid-configuration"] = 200, json.dumps({"issuer": issuer}).encode()
    source.pages["/openid/v1/jwks"] = 200, key_set(key)
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("pod-token-1\n")
    (account / "ca.crt").write_bytes(root.pem)
    server = serve("issuers:\n  cluster: { kubernetes: { audience: sluice } }\n", environment={
        "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(source.port),
        "SLUICE_KUBERNETES_ACCOUNT": str(account)})
    assert {request[1] for request in source.requests} == {"Bearer pod-token-1"}
    assert [request[0] for request in source.requests] == ["/.well-known/openid-configuration", "/openid/v1/jwks"]
    uid = "system:serviceaccount:media:thumbnailer"
    pod = {"namespace": "media", "pod": {"name": "thumbnailer-1", "uid": "u1"},
           "serviceaccount": {"name": "thumbnailer", "uid": "u2"}}
    token = key.sign(claims(issuer, sub=uid, aud=["sluice"], **{"kubernetes.io": pod}))
    assert ask(server, f"users/{uid}/a", token).status == 404
    assert ask(server, "namespaces/media/a", token).status == 404
    ask(server, "namespaces/kube-system/a", token).is_problem("unauthorized")
    # The pod's own token for the API server has the wrong audience.
    own = key.sign(claims(issuer, sub=uid, aud=[issuer]))
    ask(server, "open/a", own).is_problem("wrong-audience")
    # Both of the account's files rotate: an early fetch shows the token of now.
    (account / "token").write_text("pod-token-2")
    source.pages["/openid/v1/jwks"] = 200, key_set(Key("RS256", "next"))
    ask(server, "open/a", Key("RS256", "next").sign(claims(issuer)))
    assert source.requests[-1][1] == "Bearer pod-token-2"
    assert "pod-token" not in server.output()


def test_kubernetes_from_outside_and_firebase_claims(serve, tmp_path):
    key = Key("RS256")
    (tmp_path / "keys.json").write_bytes(key_set(key))
    server = serve(f"""issuers:
  cluster: {{ kubernetes: {{ audience: sluice, issuer: "https://api.example", keys: "{tmp_path}/keys.json" }} }}
  users: {{ jwks: {{ issuer: "https://securetoken.google.com/p", audiences: [p], keys: "{tmp_path}/keys.json" }} }}
""")
    token = key.sign(claims("https://api.example", sub="system:serviceaccount:a:b"))
    assert ask(server, "users/system:serviceaccount:a:b/x", token).status == 404
    user = {"user_id": "alice", "aud": "p", "auth_time": int(time.time()) - 10, "email": "a@example.org"}
    for verified, provider, expected in [(True, "password", 404), (False, "password", 403), (True, "anonymous", 403)]:
        token = key.sign(claims("https://securetoken.google.com/p", **user, email_verified=verified,
                                firebase={"identities": {}, "sign_in_provider": provider}))
        assert ask(server, "verified/a", token, "Firebase").status == expected


def test_static_tokens(serve):
    # The printed lines are valid configuration.
    tokens, entries = zip(*(new_token(name) for name in ("backup", "report")))
    assert all(re.fullmatch(r"sluice_[A-Za-z0-9_-]{43}", token) for token in tokens) and tokens[0] != tokens[1]
    assert tokens[0] not in entries[0]
    server = serve("tokens:\n" + "\n".join(entries) + "\n")
    assert ask(server, "users/backup/a", tokens[0]).status == 404
    assert ask(server, "users/report/a", tokens[1], "bearer").status == 404
    ask(server, "users/report/a", tokens[0]).is_problem("unauthorized")
    for wrong in (tokens[0][:-1], tokens[0] + "A", tokens[0].swapcase()):
        ask(server, "open/a", wrong).is_problem("unknown-token")
    assert all(token not in server.output() for token in tokens)


def test_unsigned_tokens_require_loopback(serve, launch, tmp_path):
    def unsigned(*arguments):
        return subprocess.run([str(BINARY), "token", "unsigned", *arguments], capture_output=True, text=True,
                              check=True).stdout.strip()

    server = serve(arguments=["--unsigned-tokens"])
    assert ask(server, "users/alice/a", unsigned("--uid", "alice")).status == 404
    token = unsigned("--uid", "a", "--claim", "email_verified=true", "--claim",
                     'firebase={"sign_in_provider": "password"}', "--claim", "name=Alice")
    assert ask(server, "verified/a", token).status == 404
    assert ask(server, "users/bob/a", Key().sign(claims("anyone", sub="bob"))).status == 404
    assert ask(server, "nobody/a").status == 404
    warning = [line for line in log_lines(server, "sluice") if line["level"] == "critical"]
    # The whole message, because the log redacts text that looks like a token.
    assert [line["message"] for line in warning] == [
        "development mode: callers are whoever they say they are; never for anything but trials"]
    assert warning[0]["metadata"] == {"flag": "--unsigned-tokens"}
    for address in ("0.0.0.0:0", "[::]:0"):
        for key in ("SLUICE_LISTEN_HTTP", "SLUICE_LISTEN_HTTPS_ADDRESS", "SLUICE_LISTEN_OPERATOR"):
            done = subprocess.run(
                [str(BINARY), "serve", "--config", str(server.config), "--unsigned-tokens"],
                env={**os.environ, "SLUICE_RULES": str(tmp_path / "storage.rules"), key: address},
                capture_output=True, text=True, timeout=30)
            assert done.returncode == 2 and f"{address} is not a loopback address" in done.stderr
    # Without the flag the token is ignored, because no issuer is configured.
    plain = serve()
    assert ask(plain, "open/a", unsigned("--uid", "alice")).status == 404
    assert ask(plain, "users/alice/a", unsigned("--uid", "alice")).status == 401
    assert status(plain.url("/b/photos/o/open/a")) == 404
    assert curl(plain.url("/b/photos/o/open/a"))


@pytest.mark.parametrize("transport", ["http1", "h2c", "h2"])
def test_the_development_mode_serves_only_loopback_hosts(serve, transport):
    """A page of another host, whose name resolves to this machine later, can't use it."""
    token = subprocess.run([str(BINARY), "token", "unsigned", "--uid", "alice"], capture_output=True, text=True,
                           check=True).stdout.strip()
    server = serve(arguments=["--unsigned-tokens"])
    wire = Wire(server, transport)
    for host in ("localhost", "LOCALHOST:8080", f"127.0.0.1:{server.http}", "127.8.9.1", "[::1]", "[::1]:80"):
        assert wire.get("users/alice/a", ("Host", host), bearer(token)).status == 404, host
    strange = ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1",
               "0.0.0.0", "[::ffff:7f00:1]", "localhost:99999", "127.evil", "127.0.0.256", "127.1.2.3.4", "127.1",
               "127.0.0.01")
    for host in strange:
        for method, body in (("GET", None), ("PUT", "x"), ("OPTIONS", None)):
            response = wire.call(method, "/b/photos/o/users/alice/a", [("Host", host), bearer(token)], body)
            response.is_problem("misdirected-request")
        wire.get("open/a", ("Host", host)).is_problem("misdirected-request")
    assert wire.get("users/alice/a", bearer(token)).status == 404
    # The operator's endpoints too.
    for host, expected in (("evil.example", 421), ("localhost", 200)):
        for path in ("/metrics", "/livez"):
            assert curl("-o", os.devnull, "-w", "%{http_code}", "-H", f"Host: {host}",
                        f"http://127.0.0.1:{server.operator}{path}") == str(expected).encode()
    # Without the flag any host is served.
    plain = Wire(serve(), transport)
    assert plain.get("open/a", ("Host", "evil.example")).status == 404


def test_uids_of_issuers_can_have_a_prefix(serve, tmp_path):
    key = Key("ES256")
    (tmp_path / "keys.json").write_bytes(key_set(key))
    token, entry = new_token("backup")
    server = serve("issuers:\n" + jwks("one", "one", f"{tmp_path}/keys.json")
                   + jwks("sso", "sso", f"{tmp_path}/keys.json", ', uidPrefix: "sso:"') + "tokens:\n" + entry + "\n")
    assert ask(server, "users/backup/a", token).status == 404
    assert ask(server, "users/backup/a", key.sign(claims("one", sub="backup"))).status == 404
    ask(server, "users/backup/a", key.sign(claims("sso", sub="backup"))).is_problem("unauthorized")
    assert ask(server, "users/sso:backup/a", key.sign(claims("sso", sub="backup"))).status == 404


def test_a_static_token_may_have_two_dots(serve):
    digest = hashlib.sha256(b"my.own.token").hexdigest()
    server = serve(f'tokens: {{ backup: {{ sha256: "{digest}" }} }}\n')
    assert ask(server, "users/backup/a", "my.own.token").status == 404
    ask(server, "users/backup/a", "my.own.tokem").is_problem("token-malformed")


def test_reloadable_and_other_keys(serve, tmp_path):
    server = serve("callers:\n  default: { transfers: 9 }\n")
    text = server.config.read_text()
    server.config.write_text(text.replace("transfers: 9", "requests: 1") + "issuers:\n  late: { firebase: { project: p } }\n")
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "configuration reloaded" in server.output(), what="the reload")
    responses = [ask(server, "open/a").status for _ in range(20)]
    assert 429 in responses
    wait_until(lambda: any("take a restart" in line["message"] and "issuers" in line["metadata"]["keys"]
                           for line in log_lines(server, "sluice")), what="the warning")


def test_a_reload_adds_and_removes_static_tokens(serve):
    tokens, lines_made = zip(*(new_token(name) for name in ("backup", "report")))
    server = serve()
    text = server.config.read_text()

    def configure(*which, more=""):
        entries = "".join(lines_made[each] + "\n" for each in which)
        before = server.output().count("configuration reloaded")
        server.config.write_text(text + ("tokens:\n" + entries if which else "") + more)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.output().count("configuration reloaded") > before, what="the reload")

    # Without a configured issuer, tokens are ignored.
    assert ask(server, "open/a", tokens[0]).status == 404
    configure(0, more="callers:\n  backup: { transfers: 9 }\n")
    for _ in range(2):
        assert ask(server, "users/backup/a", tokens[0]).status == 404
        ask(server, "open/a", tokens[1]).is_problem("unknown-token")
    assert server.metrics()['sluice_caller_requests_total{group="backup"}'] == 2
    configure(0, 1)
    assert ask(server, "users/backup/a", tokens[0]).status == 404
    assert ask(server, "users/report/a", tokens[1]).status == 404
    # The leaked one is gone at once, although it was just verified.
    configure(1)
    ask(server, "open/a", tokens[0]).is_problem("unknown-token")
    assert ask(server, "users/report/a", tokens[1]).status == 404
    assert not any("take a restart" in line["message"] for line in log_lines(server, "sluice"))
