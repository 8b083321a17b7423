"""Keys of issuers and documents of Firestore over TLS with certificates that must not be accepted: nothing is allowed, no
request is sent, and the log has the cause."""

import pytest

from identities import Certificate, Key, KeyServer, claims, dns, key_set, loopback_names
from program import wait_until
from rulesets import rules
from wire import Wire

#: What is wrong with the certificate, and words of the cause.
WRONG = {
    "self-signed": "self-signed certificate",
    "another name": "no alternative certificate subject name matches",
    "expired": "certificate has expired",
    "not yet valid": "certificate is not yet valid",
    "unknown authority": "unable to get local issuer certificate",
}


class Certificates:
    def __init__(self, directory):
        self.directory, self.root = directory, Certificate(directory, "root", "root", is_authority=True)
        self.right = self.root.issue("right", "right", names=loopback_names())
        other = Certificate(directory, "other", "other", is_authority=True)
        names = loopback_names()
        self.wrong = {
            "self-signed": Certificate(directory, "self", "self", names=names),
            "another name": self.root.issue("name", "127.0.0.1", names=[dns("keys.example")]),
            "expired": self.root.issue("old", "old", names=names, starts=-7200, ends=-3600),
            "not yet valid": self.root.issue("new", "new", names=names, starts=3600, ends=7200),
            "unknown authority": other.issue("foreign", "foreign", names=names),
        }


@pytest.fixture
def certificates(tmp_path):
    return Certificates(tmp_path)


@pytest.fixture
def service(certificates):
    """A server whose certificate can be replaced: `service.use(certificate)`."""
    running = KeyServer(certificates.right)

    def use(certificate):
        running.stop()
        running.tls = certificate
        running.start()

    running.use = use
    yield running
    running.stop()


@pytest.mark.parametrize("kind", ["jwks", "oidc"])
@pytest.mark.parametrize("wrong", WRONG)
def test_keys_of_issuers(launch, certificates, service, tmp_path, wrong, kind):
    key = Key()
    service.pages["/keys"] = 200, key_set(key)
    service.pages["/.well-known/openid-configuration"] = (
        200, f'{{"issuer": "{service.url}", "jwks_uri": "{service.url}/keys"}}'.encode())
    service.use(certificates.wrong[wrong])
    (tmp_path / "storage.rules").write_text(rules(
        "match /users/{user}/{n} { allow read: if request.auth.uid == user; }",
        "match /nobody/{n} { allow read: if request.auth == null; }"))
    keys = f', keys: "{service.url}/keys"' if kind == "jwks" else ""
    server = launch(
        extra=f'log: {{ format: json }}\nissuers:\n  ci: {{ {kind}: {{ issuer: "{service.url}", audiences: [sluice]{keys} }}, '
              f'authorities: "{certificates.root.chain}" }}\n',
        environment={"SLUICE_RULES": str(tmp_path / "storage.rules")}, ready=503, tls=False)
    token = ("Authorization", f"Bearer {key.sign(claims(service.url))}")
    wait_until(lambda: WRONG[wrong] in server.readiness()[1], what=lambda: f"the cause in {server.readiness()}")
    # A token that can't be verified is no anonymous request either.
    for name in ("users/alice/a", "nobody/a"):
        response = Wire(server).get(name, token)
        response.is_problem("keys-unavailable")
        assert WRONG[wrong] not in response.body.decode()
    assert Wire(server).get("nobody/a").status == 404
    assert not service.requests
    wait_until(lambda: WRONG[wrong] in server.output(), what=lambda: f"the cause in {server.output()[-2000:]}")
    service.use(certificates.right)
    wait_until(lambda: server.readiness()[0] == 200, what="readiness")
    assert Wire(server).get("users/alice/a", token).status == 404
    # Keys that are cached stay; new ones are not taken over a connection that is not verified.
    service.use(certificates.wrong[wrong])
    service.pages["/keys"] = 200, key_set(Key("ES256", "mallory"))
    asked = len(service.requests)
    forged = Key("ES256", "mallory").sign(claims(service.url))
    Wire(server).get("users/alice/a", ("Authorization", f"Bearer {forged}")).is_problem("bad-signature")
    assert Wire(server).get("users/alice/a", token).status == 404
    assert len(service.requests) == asked


@pytest.mark.parametrize("condition", ["exists", "!exists"])
@pytest.mark.parametrize("wrong", ["self-signed", "unknown authority"])
def test_documents_of_firestore(launch, certificates, service, tmp_path, wrong, condition):
    """Without a response, neither `exists` nor its negation allows. Only the system's authorities are accepted."""
    service.pages["/v1/projects/p/databases/%28default%29/documents/users/alice"] = (
        (200, b'{"fields": {}}') if condition == "exists" else (404, b'{"error": {"status": "NOT_FOUND"}}'))
    service.use(certificates.wrong[wrong])
    (tmp_path / "storage.rules").write_text(rules(
        f"match /d/{{n}} {{ allow get: if {condition.replace('exists', 'firestore.exists')}"
        "(/databases/(default)/documents/users/alice); }"))
    server = launch(
        extra=f'log: {{ format: json }}\nfirestore: {{ project: p, endpoint: "{service.url}", credentials: anonymous }}\n',
        environment={"SLUICE_RULES": str(tmp_path / "storage.rules")}, tls=False)
    response = Wire(server).get("d/a")
    response.is_problem("unauthorized")
    assert WRONG[wrong] not in response.body.decode() and not service.requests
    wait_until(lambda: WRONG[wrong] in server.output(), what=lambda: f"the cause in {server.output()[-2000:]}")
