"""Valid and invalid credentials of every kind never appear in output or logs."""

import os
import subprocess
import urllib.parse

import pytest

import secret_words
from identities import Certificate, Key, claims, key_set, loopback_names, uri
from program import BINARY, curl, new_token
from rulesets import rules
from signed_links import new_key, sign
from wire import Wire

RULES = rules(
    "match /open/{n} { allow read, write: if true; }",
    "match /{name=**} { allow read, write: if request.auth.uid == 'alice'; }",
    # Rules that read the claims: their reasons are in the log.
    "match /shown/{n} { allow read: if request.auth.token.nothing == 'x'; }",
)


def parts(token):
    """The secret parts of a token: the whole, its claims and its signature."""
    return [token, *[part for part in token.split(".")[1:] if len(part) > 8]]


@pytest.mark.parametrize("transport, log_format", [("http1", "json"), ("h2", "text")])
def test_no_secret_is_ever_printed(launch, tmp_path, transport, log_format):
    key, stranger = Key("RS256"), Key("RS256")
    (tmp_path / "keys.json").write_bytes(key_set(key))
    (tmp_path / "storage.rules").write_text(RULES)
    links = tmp_path / "links"
    links.write_text(new_key("k1") + new_key("k2"))
    static_token, entry = new_token("backup")
    root = Certificate(tmp_path, "root", "root", is_authority=True)
    worker = root.issue("worker", "worker", names=[uri("spiffe://example.org/worker")])
    served = root.issue("server", "localhost", names=loopback_names())
    environment = {
        "SLUICE_RULES": str(tmp_path / "storage.rules"), "SLUICE_LISTEN_HTTPS_CERTIFICATE": served.chain,
        "SLUICE_LISTEN_HTTPS_KEY": served.key, "SLUICE_LISTEN_HTTPS_CLIENTS_AUTHORITIES": root.chain}
    server = launch(environment=environment, extra=f"""log: {{ format: {log_format}, level: trace, allowedSample: 1 }}
links: {{ keys: "{links}" }}
issuers:
  ci: {{ jwks: {{ issuer: ci, audiences: [sluice], keys: "{tmp_path}/keys.json" }} }}
  away: {{ oidc: {{ issuer: "http://127.0.0.1:1", audiences: [sluice] }} }}
tokens:
{entry}
callers:
  anonymous: {{ requests: 5 }}
""", ready=503)
    wire = Wire(server, transport)
    tokens = [
        key.sign(claims("ci")), key.sign(claims("ci", sub="bob")), stranger.sign(claims("ci")), key.sign(claims("ci", exp=1)),
        key.sign(claims("http://127.0.0.1:1")), key.sign(claims("nobody")), key.sign(claims("ci", aud="x")),
        key.sign(claims("ci", exp=None)), key.sign(claims("ci"))[:-4] + "!!!!", static_token, static_token[:-1] + "~",
        "opaque-secret-of-somebody", "c2VjcmV0OnNlY3JldA==",
    ]
    link = sign(links, "/b/photos/o/open/a", "--method", "PUT", "--size", "3", "--type", "text/secretly")
    down = sign(links, "/b/photos/o/open/a")
    old = sign(links, "/b/photos/o/a", "--expires", "1s")
    made = wire.call("POST", "/b/photos/o/a?sign", [("Authorization", f"Bearer {tokens[0]}")]).json["path"]
    signatures = [urllib.parse.parse_qs(text)["link-signature"][0] for text in (link, down, old, made)]
    cookie = "session-cookie-0123456789"
    secrets = [part for token in tokens for part in parts(token)] + signatures + [cookie]
    for line in links.read_text().splitlines():
        secrets.append(line.split()[1])
    for certificate in (worker, served):
        with open(certificate.key) as file:
            secrets += file.read().splitlines()[1:-1]

    printed = []

    def call(method, path, fields=(), body=None, options=()):
        response = wire.call(method, path, [*fields, f"Cookie: sid={cookie}"], body, more=options)
        # Only the response that carries a link may contain its signature.
        printed.append(repr(response.fields).encode() + response.body)
        return response.status

    # First, before invalid tokens have used up the limit of their address.
    seen = {call("GET", "/b/photos/o/open/a", [("Authorization", f"Bearer {tokens[4]}")])}
    for token in tokens:
        for scheme in ("Bearer", "Firebase", "Basic", "bearer ", "X-" + token[:5]):
            for name in ("open/a", "shown/a", "a"):
                seen.add(call("GET", f"/b/photos/o/{name}", [("Authorization", f"{scheme} {token}")]))
        seen.add(call("GET", "/b/photos/o/open/a", [("Authorization", token)]))
        seen.add(call("GET", "/b/photos/o/open/a", [("AUTHORIZATION", f"Bearer {token}"), ("Proxy-Authorization", f"Bearer {token}")]))
        seen.add(call("GET", "/b/photos/o/open/a", [("Authorization", f"Bearer {token}")] * 2))
        quoted = urllib.parse.quote(token)
        for query in (f"access_token={quoted}", f"token={quoted}", f"auth={quoted}", f"prefix=x&pageToken={quoted}"):
            seen.add(call("GET", f"/b/photos/o/shown/a?{query}"))
            seen.add(call("GET", f"/b/photos/o?{query}"))
        # A secret in the position of a name: without a recognizable form it is indistinguishable from a name.
        seen.add(call("GET", f"/b/photos/o/open/Bearer%20{quoted}"))
        seen.add(call("GET", f"/b/photos/o/token={quoted}"))
        if token.startswith(("ey", "sluice_")):
            seen.add(call("GET", f"/b/{quoted}/o/a"))
    seen.add(call("PUT", link, [("Content-Type", "text/secretly")], "abc"))
    seen.add(call("GET", down))
    for text in (link, old, made):
        for altered in (text, text + "A", text.replace("link-expires=1", "link-expires=2"), text + "&x=1"):
            seen |= {call("GET", altered), call("PUT", altered, [], "abcd")}
    # By now invalid links have used up the limit of their address, which does not affect valid credentials.
    if transport == "h2":
        seen.add(call("GET", "/b/photos/o/open/a", options=worker.options))
    else:
        seen.add(call("GET", "/b/photos/o/open/a", [("Authorization", f"Bearer {tokens[0]}")]))
    assert seen >= {200, 201, 401, 403, 404, 429, 503}, seen
    # Malformed HTTP is logged too.
    for token in tokens:
        printed.append(curl("--http1.1", "-X", "GET", "-H", f"Authorization: Bearer {token}", "-H", "Content-Length: x",
                            server.url("/b/photos/o/a?token=" + urllib.parse.quote(token)), check=False))
    links.write_text(links.read_text().replace("k2 ", "k2 x"))
    for path in ("/metrics", "/readyz?verbose", "/version", "/livez"):
        printed.append(curl(f"http://127.0.0.1:{server.operator}{path}"))
    for command in (["check", str(server.config)], ["check", "--connect", str(server.config)],
                    ["sign", "--config", str(server.config), "--path", "x"]):
        done = subprocess.run([str(BINARY), *command], capture_output=True, env={**os.environ, **environment})
        printed += [done.stdout, done.stderr]
    assert server.stop() == 0
    printed.append(server.output().encode())
    everything = b"\n".join(printed).decode(errors="replace")
    for form in (everything, urllib.parse.unquote(everything)):
        leaks = {secret for secret in secrets if secret in form}
        where = [next(line for line in form.splitlines() if secret in line)[:600] for secret in leaks]
        assert not leaks, (leaks, where)
    # The log exists and has the harmless parts.
    assert everything.count("<redacted>") > 20 and "alice" in everything and "link:k1" in everything


def test_a_secret_in_a_log_is_found(monkeypatch):
    """The search in the logs of the whole run finds secrets in every encoding."""
    monkeypatch.setattr(secret_words, "WORDS", set())
    token = secret_words.secret(Key().sign(claims("ci")))
    secret_words.link("/b/photos/o/a?link-key=k&link-signature=abcdefgh-ijklmnop_q")
    secret_words.sent("Cookie", "sid=0123456789abcdef")
    for line in (f'{{"path":"/x/{token}"}}', f"x={urllib.parse.quote('+' + token)}", f"<{token.split('.')[2]}>",
                 "sid=0123456789abcdef", "/b?abcdefgh-ijklmnop_q"):
        assert secret_words.leaks("fine\n" + line + "\nfine") == [(line, secret_words.leaks(line)[0][1])], line
    assert not secret_words.leaks(token.split(".")[0] + " sid=0123456789abcde <redacted>")
