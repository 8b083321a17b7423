"""Client certificates: verification, the attributes that rules see, and reloads."""

import json
import socket
import ssl

import pytest
from cryptography import x509
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from authorities import SPIFFE, code
from identities import Certificate, Key, access_lines, claims, dns, key_set, uri
from program import wait_until
from wire import Wire

UTF8, WIDE = _ASN1Type.UTF8String, _ASN1Type.BMPString
HIDDEN = x509.UniformResourceIdentifier._init_without_validation("spiffe://example.org/é")


def ask(server, name, certificate=None, *fields, transport="h2"):
    return Wire(server, transport).call(
        "GET", f"/b/photos/o/{name}", fields, more=certificate.options if certificate else ())


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
    # Without TLS there is no certificate, so the caller is anonymous.
    assert Wire(server).get("nobody/a").status == 404
    wait_until(lambda: len(access_lines(server)) == 8, what="the access lines")
    line = access_lines(server)[0]
    assert (line["principal"], line["group"]) == (SPIFFE, "certificates")
    assert server.metrics()['sluice_caller_requests_total{group="certificates"}'] == 8


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_no_session_is_resumed(serve, authorities, version):
    """Sessions are not resumed, so that each connection is verified with the current revocation lists."""
    server = serve()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion[version]
    context.load_cert_chain(authorities.worker.chain, authorities.worker.key)
    session = None
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", server.https)) as raw, context.wrap_socket(raw, session=session) as wrapped:
            wrapped.sendall(b"GET /b/photos/o/media/a HTTP/1.1\r\nHost: a\r\n\r\n")
            assert wrapped.recv(65536).startswith(b"HTTP/1.1 404")
            # A session ticket would have arrived before the response.
            assert not wrapped.session_reused and not wrapped.session.has_ticket
            session = wrapped.session


def test_optional_certificates(serve, authorities):
    server = serve(required=False)
    assert code(server, "nobody/a") == 404 and code(server, "media/a") == 401
    assert code(server, "media/a", authorities.worker) == 404
    # No certificate is accepted; an invalid one is not.
    stranger = Certificate(authorities.directory, "other", "other", is_authority=True)
    assert code(server, "open/a", stranger.issue("fake", "worker", names=[uri(SPIFFE)])) is None
    assert code(server, "open/a", Certificate(authorities.directory, "alone", "alone")) is None


def test_invalid_certificates_are_rejected(serve, authorities):
    server = serve()
    late = authorities.middle.issue("late", "late", names=[uri(SPIFFE)], starts=-7200, ends=-60)
    early = authorities.middle.issue("early", "early", names=[uri(SPIFFE)], starts=600)
    # A client certificate is not an authority.
    below = authorities.worker.issue("below", "below", names=[uri(SPIFFE)])
    impostor = Certificate(authorities.directory, "impostor", "root", is_authority=True)
    forged = impostor.issue("forged", "worker", names=[uri(SPIFFE)])
    served = authorities.middle.issue("served", "served", names=[uri(SPIFFE)], extensions=[
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])])
    alone = authorities.middle.issue("alone", "alone", names=[uri(SPIFFE)])
    alone.chain = alone.write("alone.pem", alone.pem)
    refused = [(late, "certificate has expired"), (early, "certificate is not yet valid"), (below, "invalid CA certificate"),
               (forged, "certificate signature failure"), (served, "certificate purpose"),
               (alone, "unable to get local issuer certificate"), (None, "the client has shown none")]
    for certificate, reason in refused:
        before = len(refusals(server))
        assert code(server, "open/a", certificate) is None, reason
        wait_until(lambda: len(refusals(server)) == before + 1, what=reason)
        assert reason in refusals(server)[-1]
    assert code(server, "media/a", authorities.worker) == 404
    assert server.metrics()["sluice_tls_handshake_failures_total"] == len(refused) == len(refusals(server))


def refusals(server):
    """Why clients' certificates were refused, by the log."""
    lines = [json.loads(line) for line in server.output().splitlines() if "client's certificate refused" in line]
    return [line["metadata"]["cause"] for line in lines]


def test_large_and_odd_certificates(serve, authorities):
    server = serve()
    issue = authorities.middle.issue
    many = issue("many", "many", names=[uri(SPIFFE), *(dns(f"h{n}.example") for n in range(2000))])
    assert code(server, "media/a", many) == 404
    # A certificate with an unreadable subject is valid, and its caller is not anonymous.
    units = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "é" * 60) for _ in range(40)]
    endless = issue("endless", x509.Name(units), names=[uri(SPIFFE)])
    assert code(server, "media/a", endless) == 404 and code(server, "nobody/a", endless) == 403
    # An authority's own certificate is not a SPIFFE identity.
    assert code(server, "open/a", issue("authority", "authority", names=[uri(SPIFFE)], is_authority=True)) == 401
    usage = issue("usage", "usage", names=[uri(SPIFFE)], extensions=[x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])])
    assert code(server, "media/a", usage) == 404


@pytest.mark.parametrize("parts, uid", [
    ([[(NameOID.COMMON_NAME, "wörker", UTF8)]], "CN=w\\C3\\B6rker"),
    ([[(NameOID.COMMON_NAME, "worker", WIDE)]], "CN=worker"),
    ([[(NameOID.COMMON_NAME, "worker\0x", UTF8)]], "CN=worker\\00x"),
    ([[(NameOID.COMMON_NAME, "a\nb", UTF8)]], "CN=a\\0Ab"),
    ([[(NameOID.COMMON_NAME, "a", UTF8), (NameOID.ORGANIZATION_NAME, "b", UTF8)]], "O=b+CN=a"),
    ([[(NameOID.COMMON_NAME, "a+O=b", UTF8)]], "CN=a\\+O=b"),
    ([[(NameOID.ORGANIZATION_NAME, "b", UTF8)], [(NameOID.COMMON_NAME, "a", UTF8)]], "CN=a,O=b"),
    ([[(NameOID.ORGANIZATIONAL_UNIT_NAME, "u" * 64, UTF8)]] * 40, None),
])
def test_subjects_with_special_characters(serve, authorities, parts, uid):
    subject = x509.Name([x509.RelativeDistinguishedName([x509.NameAttribute(*part) for part in parts]) for parts in parts])
    server = serve(uid="subject")
    response = ask(server, "open/a", authorities.middle.issue("named", subject))
    if uid is None:
        response.is_problem("unauthenticated")
        return
    assert response.status == 404
    wait_until(lambda: access_lines(server), what="the access line")
    assert access_lines(server)[0]["principal"] == uid


@pytest.mark.parametrize("kind, names, subject, uid", [
    ("spiffe", [uri(SPIFFE)], "", SPIFFE),
    ("spiffe", [uri(SPIFFE), uri("spiffe://example.org/other")], "worker", None),
    ("spiffe", [uri("https://example.org/")], "worker", None),
    ("spiffe", [dns("worker.example")], "worker", None),
    ("spiffe", [uri(SPIFFE + "\0.example")], "worker", None),
    ("spiffe", [uri(SPIFFE + " x")], "worker", None),
    ("spiffe", [uri("spiffe://example.org/" + "a" * 2027)], "worker", "spiffe://example.org/" + "a" * 2027),
    ("spiffe", [uri("spiffe://example.org/" + "a" * 2028)], "worker", None),
    ("spiffe", [uri("spiffe://example.org/A-1_b.c/..d")], "worker", "spiffe://example.org/A-1_b.c/..d"),
    ("spiffe", [uri("spiffe://example.org")], "worker", "spiffe://example.org"),
    *(("spiffe", [uri(text)], "worker", None) for text in [
        "SPIFFE://example.org/a", "spiffe://EXAMPLE.org/a", "spiffe://", "spiffe:///a", "spiffe://example.org/",
        "spiffe://example.org/a/", "spiffe://example.org//a", "spiffe://example.org/a/../b", "spiffe://example.org/.",
        "spiffe://example.org/a?b", "spiffe://example.org/a#b", "spiffe://a@example.org/a", "spiffe://example.org:1/a",
        "spiffe://example.org/%61", "spiffe://" + "a" * 256 + "/a"]),
    ("spiffe", [HIDDEN, uri(SPIFFE)], "worker", None),
    ("spiffe", [], "worker", None),
    ("dns", [uri(SPIFFE), dns("worker.example"), dns("second.example")], "worker", "worker.example"),
    ("dns", [dns("worker.example\0.evil.example")], "worker", None),
    ("dns", [], "worker", None),
    ("dns", [dns("a" * 2049)], "worker", None),
    ("subject", [dns("worker.example")], "worker", "CN=worker"),
    ("subject", [uri(SPIFFE)], "", None),
    ("subject", [], "a,O=b", "CN=a\\,O=b"),
])
def test_the_name_that_is_the_uid(serve, authorities, kind, names, subject, uid):
    server = serve(uid=kind)
    response = ask(server, "open/a", authorities.middle.issue("named", subject, names=names))
    if uid is None:
        response.is_problem("unauthenticated")
        assert response["www-authenticate"] == "Bearer"
        return
    assert response.status == 404
    wait_until(lambda: access_lines(server), what="the access line")
    assert access_lines(server)[0]["principal"] == uid


def test_two_uris_of_which_one_is_hidden(serve, authorities):
    """A name with bytes other than visible ASCII is omitted; rules see the others."""
    server = serve(uid="dns")
    certificate = authorities.middle.issue("odd", "odd", names=[HIDDEN, uri(SPIFFE), dns("odd.example")])
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
    # A token's claims about certificates are dropped; only the connection counts.
    other = authorities.middle.issue("other", "other", names=[uri("spiffe://example.org/other")])
    ask(server, "both/a", other, both).is_problem("unauthorized")
    ask(server, "mesh/a", other, both).is_problem("unauthorized")
    clear = Wire(server).get("both/a", both)
    clear.is_problem("unauthorized")
    # An invalid token is rejected even with a valid certificate.
    ask(server, "open/a", authorities.worker, ("Authorization", "Bearer x")).is_problem("unknown-token")
    # A certificate without a name that counts is no reason to refuse a token.
    nameless = authorities.middle.issue("nameless", "nameless")
    assert ask(server, "users/alice/a", nameless, both).status == 404


def refused_for(server, certificate, reason):
    wait_until(lambda: code(server, "media/a", certificate) is None and refusals(server)[-1] == reason, what=reason)


def test_revocation(serve, authorities):
    other = authorities.middle.issue("other", "other", names=[uri(SPIFFE)])
    authorities.revoke(other)
    server = serve(revoked=authorities.revoked)
    assert code(server, "media/a", other) is None
    assert code(server, "media/a", authorities.worker) == 404
    authorities.revoke(authorities.worker)
    wait_until(lambda: code(server, "media/a", authorities.worker) is None, what="the new list")
    assert code(server, "media/a", other) == 404
    # A malformed file changes nothing.
    authorities.write("revoked.pem", b"junk")
    wait_until(lambda: "certificate not loaded" in server.output(), what="the error")
    assert f"revocation lists {authorities.revoked}" in server.readiness()[1]
    assert code(server, "media/a", authorities.worker) is None and code(server, "media/a", other) == 404
    # Without a current revocation list of each authority, certificates are rejected.
    authorities.write("revoked.pem", authorities.middle.revocations())
    refused_for(server, other, "unable to get certificate CRL")
    assert "revocation lists" not in server.readiness()[1]
    # The authority's own certificate is revoked.
    authorities.write("revoked.pem", authorities.root.revocations(authorities.middle) + authorities.middle.revocations())
    refused_for(server, other, "certificate revoked")
    # A list of the right name that another has signed.
    impostor = Certificate(authorities.directory, "impostor", "intermediate", is_authority=True)
    authorities.write("revoked.pem", authorities.root.revocations() + impostor.revocations())
    refused_for(server, other, "CRL signature failure")
    authorities.revoke()
    wait_until(lambda: code(server, "media/a", other) == 404, what="both lists")
    authorities.revoke(ends=-60)
    wait_until(lambda: code(server, "media/a", other) is None, what="the old lists")
