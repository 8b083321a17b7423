"""Client certificates: whose are believed, what the rules see of them, and files that change under load."""

import concurrent.futures
import os
import subprocess
import threading

import pytest
from cryptography import x509

from conftest import curl, wait_until
from identities import Certificate, Key, access_lines, claims, dns, key_set, loopback_names, uri
from test_rules import rules
from wire import Wire

SPIFFE = "spiffe://example.org/ns/media/sa/thumbnailer"
RULES = rules(
    "match /open/{n} { allow read, write: if true; }",
    "match /nobody/{n} { allow read: if request.auth == null; }",
    f"match /media/{{n}} {{ allow read: if request.auth.uid == '{SPIFFE}'; }}",
    "match /mesh/{n} { allow read: if request.auth.token.certificate.uris[0].matches('spiffe://example.org/ns/media/.*'); }",
    "match /users/{user}/{n} { allow read: if request.auth.uid == user; }",
    "match /both/{n} { allow read: if request.auth.uid == 'alice' && request.auth.token.iss == 'ci' && "
    f"request.auth.token.certificate.uris == ['{SPIFFE}']; }}",
    "match /prints/{print}/{n} { allow read: if request.auth.token.certificate.fingerprint == print; }",
    "match /about/{n} { allow read: if request.auth.token.certificate.subject == 'CN=worker' && "
    "request.auth.token.certificate.issuer == 'CN=intermediate' && request.auth.token.certificate.dns == ['worker.example'] && "
    "request.auth.token.certificate.serial.matches('[0-9a-f]+'); }",
)


class Authorities:
    """A root, an authority below it, and a server's certificate."""

    def __init__(self, directory):
        self.directory = directory
        self.root = Certificate(directory, "root", "root", is_authority=True)
        self.middle = self.root.issue("intermediate", "intermediate", is_authority=True)
        self.server = self.root.issue("server", "localhost", names=loopback_names())
        self.worker = self.middle.issue("worker", "worker", names=[uri(SPIFFE), dns("worker.example")])
        self.trusted = self.write("trusted.pem", self.root.pem)
        self.revoked = str(directory / "revoked.pem")

    def write(self, name, content):
        """Replaces a file whole."""
        path = self.directory / name
        (self.directory / "new").write_bytes(content)
        os.rename(self.directory / "new", path)
        return str(path)

    def revoke(self, *certificates, ends=3600):
        return self.write("revoked.pem", self.root.revocations(ends=ends) + self.middle.revocations(*certificates, ends=ends))


@pytest.fixture
def authorities(tmp_path):
    return Authorities(tmp_path)


@pytest.fixture
def serve(launch, authorities, tmp_path):
    """Starts a gateway that asks for clients' certificates."""
    def start(required=True, more="", certificate=None, **settings):
        (tmp_path / "storage.rules").write_text(RULES)
        shown = certificate or authorities.server
        environment = {
            "SLUICE_RULES": str(tmp_path / "storage.rules"),
            "SLUICE_LISTEN_HTTPS_CERTIFICATE": shown.chain, "SLUICE_LISTEN_HTTPS_KEY": shown.key,
            "SLUICE_LISTEN_HTTPS_CLIENTS_AUTHORITIES": authorities.trusted,
            "SLUICE_LISTEN_HTTPS_CLIENTS_REQUIRED": "true" if required else "false",
            **{f"SLUICE_LISTEN_HTTPS_CLIENTS_{name.upper()}": value for name, value in settings.items()}}
        return launch(extra="log: { format: json }\n" + more, environment=environment)
    return start


def ask(server, name, certificate=None, *fields, transport="h2"):
    return Wire(server, transport).call(
        "GET", f"/b/photos/o/{name}", fields, more=certificate.options if certificate else ())


def code(server, name, certificate=None, *options):
    """The status; None where there was no handshake."""
    done = subprocess.run(
        ["curl", "-sS", "--insecure", "--max-time", "30", "-o", os.devnull, "-w", "%{http_code}",
         *(certificate.options if certificate else []), *options, server.url(f"/b/photos/o/{name}", "https")],
        capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else None


@pytest.mark.parametrize("protocol", ["--http1.1", "--http2"])
@pytest.mark.parametrize("tls", ["1.2", "1.3"])
def test_the_rules_see_the_certificate(serve, authorities, protocol, tls):
    server = serve()
    options = [protocol, "--tls-max", tls]
    for name, expected in [
        ("media/a", 404), ("mesh/a", 404), ("about/a", 404), (f"prints/{authorities.worker.fingerprint}/a", 404),
        ("nobody/a", 403), ("users/alice/a", 403), ("both/a", 403), ("open/a", 404),
    ]:
        assert code(server, name, authorities.worker, *options) == expected, name
    assert code(server, "open/a", None, *options) is None
    # Clear text has no certificate: nobody.
    assert Wire(server).get("nobody/a").status == 404
    wait_until(lambda: len(access_lines(server)) == 8, what="the access lines")
    line = access_lines(server)[0]
    assert (line["principal"], line["group"]) == (SPIFFE, "certificates")
    assert server.metrics()['sluice_caller_requests_total{group="certificates"}'] == 8


def test_optional_certificates(serve, authorities):
    server = serve(required=False)
    assert code(server, "nobody/a") == 404 and code(server, "media/a") == 401
    assert code(server, "media/a", authorities.worker) == 404
    # None is fine, a wrong one is not.
    stranger = Certificate(authorities.directory, "other", "other", is_authority=True)
    assert code(server, "open/a", stranger.issue("fake", "worker", names=[uri(SPIFFE)])) is None
    assert code(server, "open/a", Certificate(authorities.directory, "alone", "alone")) is None


def test_wrong_certificates_are_refused(serve, authorities):
    server = serve()
    late = authorities.middle.issue("late", "late", names=[uri(SPIFFE)], starts=-7200, ends=-60)
    early = authorities.middle.issue("early", "early", names=[uri(SPIFFE)], starts=600)
    # Who has a certificate is no authority.
    below = authorities.worker.issue("below", "below", names=[uri(SPIFFE)])
    impostor = Certificate(authorities.directory, "impostor", "root", is_authority=True)
    forged = impostor.issue("forged", "worker", names=[uri(SPIFFE)])
    for certificate in (late, early, below, forged):
        assert code(server, "open/a", certificate) is None, certificate.name
    assert code(server, "media/a", authorities.worker) == 404
    assert server.metrics()["sluice_tls_handshake_failures_total"] >= 4


@pytest.mark.parametrize("kind, names, subject, uid", [
    ("spiffe", [uri(SPIFFE)], "", SPIFFE),
    ("spiffe", [uri(SPIFFE), uri("spiffe://example.org/other")], "worker", None),
    ("spiffe", [uri("https://example.org/")], "worker", None),
    ("spiffe", [dns("worker.example")], "worker", None),
    ("spiffe", [uri(SPIFFE + "\0.example")], "worker", None),
    ("spiffe", [uri(SPIFFE + " x")], "worker", None),
    ("spiffe", [uri("spiffe://example.org/" + "a" * 1100)], "worker", None),
    ("spiffe", [], "worker", None),
    ("dns", [uri(SPIFFE), dns("worker.example"), dns("second.example")], "worker", "worker.example"),
    ("dns", [dns("worker.example\0.evil.example")], "worker", None),
    ("dns", [], "worker", None),
    ("subject", [dns("worker.example")], "worker", "CN=worker"),
    ("subject", [uri(SPIFFE)], "", None),
    ("subject", [], "a,O=b", "CN=a\\,O=b"),
])
def test_the_name_that_is_the_uid(serve, authorities, kind, names, subject, uid):
    server = serve(uid=kind)
    answer = ask(server, "open/a", authorities.middle.issue("named", subject, names=names))
    if uid is None:
        answer.is_problem("unauthenticated")
        assert answer["www-authenticate"] == "Bearer"
        return
    assert answer.status == 404
    wait_until(lambda: access_lines(server), what="the access line")
    assert access_lines(server)[0]["principal"] == uid


def test_two_uris_of_which_one_is_hidden(serve, authorities):
    """A name with a byte that is no visible ASCII is left out; the rules see what is left."""
    hidden = x509.UniformResourceIdentifier._init_without_validation("spiffe://example.org/é")
    server = serve(uid="dns")
    certificate = authorities.middle.issue("odd", "odd", names=[hidden, uri(SPIFFE), dns("odd.example")])
    assert ask(server, "mesh/a", certificate).status == 404


def test_a_token_beside_a_certificate(serve, authorities, tmp_path):
    key = Key()
    (tmp_path / "keys.json").write_bytes(key_set(key))
    server = serve(more=f'issuers:\n  ci: {{ jwks: {{ issuer: ci, audiences: [sluice], keys: "{tmp_path}/keys.json" }} }}\n')
    both = ("Authorization", "Bearer " + key.sign(claims("ci", certificate={"uris": [SPIFFE]})))
    for _ in range(2):
        assert ask(server, "both/a", authorities.worker, both).status == 404
    ask(server, "media/a", authorities.worker, both).is_problem("unauthorized")
    assert ask(server, "media/a", authorities.worker).status == 404
    # What a token says of certificates is left out: only the connection tells.
    other = authorities.middle.issue("other", "other", names=[uri("spiffe://example.org/other")])
    ask(server, "both/a", other, both).is_problem("unauthorized")
    ask(server, "mesh/a", other, both).is_problem("unauthorized")
    clear = Wire(server).get("both/a", both)
    clear.is_problem("unauthorized")
    # A wrong token is refused whatever the certificate says.
    ask(server, "open/a", authorities.worker, ("Authorization", "Bearer x")).is_problem("unknown-token")
    # A certificate without a name that counts is no reason to refuse a token.
    nameless = authorities.middle.issue("nameless", "nameless")
    assert ask(server, "users/alice/a", nameless, both).status == 404


def test_revocation(serve, authorities):
    other = authorities.middle.issue("other", "other", names=[uri(SPIFFE)])
    authorities.revoke(other)
    server = serve(revoked=authorities.revoked)
    assert code(server, "media/a", other) is None
    assert code(server, "media/a", authorities.worker) == 404
    authorities.revoke(authorities.worker)
    wait_until(lambda: code(server, "media/a", authorities.worker) is None, what="the new list")
    assert code(server, "media/a", other) == 404
    # A file that is broken changes nothing.
    authorities.write("revoked.pem", b"junk")
    wait_until(lambda: "certificate not loaded" in server.output(), what="the error")
    assert code(server, "media/a", authorities.worker) is None and code(server, "media/a", other) == 404
    # Without a list of each authority, or with one that is out of date, nobody can tell: refused.
    authorities.write("revoked.pem", authorities.middle.revocations())
    wait_until(lambda: code(server, "media/a", other) is None, what="the missing list")
    authorities.revoke()
    wait_until(lambda: code(server, "media/a", other) == 404, what="both lists")
    authorities.revoke(ends=-60)
    wait_until(lambda: code(server, "media/a", other) is None, what="the old lists")


class Load:
    """Threads that ask again and again, each time over a new connection, until told to stop."""

    def __init__(self, ask):
        self.ask, self.answers, self.stopping = ask, [], threading.Event()
        self.pool = concurrent.futures.ThreadPoolExecutor(4)
        self.threads = [self.pool.submit(self.run) for _ in range(4)]

    def run(self):
        while not self.stopping.is_set():
            self.answers.append(self.ask())

    def more(self, count=20):
        """Waits until so many more requests have been answered."""
        target = len(self.answers) + count
        wait_until(lambda: len(self.answers) >= target, what="the load")

    def end(self):
        self.stopping.set()
        for thread in self.threads:
            thread.result()
        self.pool.shutdown()


@pytest.mark.parametrize("protocol", ["--http1.1", "--http2"])
def test_certificates_rotate_under_load(serve, authorities, protocol):
    authorities.revoke()
    files = Certificate(authorities.directory, "served", "localhost", issuer=authorities.root, names=loopback_names())
    server = serve(revoked=authorities.revoked, certificate=files)
    assert code(server, "open/a", authorities.worker, "-T", __file__) in (200, 201)
    load = Load(lambda: code(server, "open/a", authorities.worker, protocol))

    def shown():
        done = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{server.https}", "-cert", authorities.worker.chain,
             "-key", authorities.worker.key, "-alpn", "http/1.1"], input="", capture_output=True, text=True)
        text = done.stdout.partition("-----BEGIN CERTIFICATE-----")[2].partition("-----END")[0]
        return "".join(text.split())

    try:
        for _ in range(2):
            load.more()
            # The server's own certificate; for a moment it is not its key's.
            fresh = authorities.root.issue("next", "localhost", names=loopback_names())
            os.replace(fresh.chain, files.chain)
            os.replace(fresh.key, files.key)
            expected = "".join(fresh.pem.decode().splitlines()[1:-1])
            wait_until(lambda: shown() == expected, what="the new certificate")
            load.more()
        # The authorities: another is added, and the lists with it.
        second = Certificate(authorities.directory, "second", "second", is_authority=True)
        newcomer = second.issue("newcomer", "newcomer", names=[uri(SPIFFE)])
        assert code(server, "open/a", newcomer, protocol) is None
        authorities.write("revoked.pem", authorities.root.revocations() + authorities.middle.revocations()
                          + second.revocations())
        authorities.write("trusted.pem", authorities.root.pem + second.pem)
        wait_until(lambda: code(server, "open/a", newcomer, protocol) == 200, what="the new authority")
        load.more()
    finally:
        load.end()
    assert set(load.answers) == {200}, (len(load.answers), set(load.answers))


def test_a_connection_outlives_no_certificate(serve, authorities, tmp_path):
    """The end of a certificate ends what its connection may do, without a new handshake."""
    short = authorities.middle.issue("short", "short", names=[uri(SPIFFE)], ends=3)
    server = serve()
    url = server.url("/b/photos/o/open/a", "https")
    # One connection, on which curl asks until it is told no.
    done = curl("--insecure", "--http2", *short.options, "-o", os.devnull, "-w", "%{http_code} %{num_connects}\n",
                "--rate", "4/s", f"{url}?n=[1-24]").decode().split("\n")
    answers = [tuple(line.split()) for line in done if line]
    assert answers[0] == ("404", "1") and answers[-1] == ("401", "0"), answers
    assert sum(int(connects) for _, connects in answers) == 1
    assert '"certificate-expired"' in server.output()
