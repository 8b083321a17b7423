"""Identities for the tests: token issuers with a real key server, and certificate authorities."""

import base64
import datetime
import hashlib
import http.server
import ipaddress
import json
import pathlib
import ssl
import threading
import time

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from secret_words import secret
from upstreams import free_port

ALGORITHMS = {
    "RS256": (lambda: rsa.generate_private_key(65537, 2048), jwt.algorithms.RSAAlgorithm),
    "ES256": (lambda: ec.generate_private_key(ec.SECP256R1()), jwt.algorithms.ECAlgorithm),
    "EdDSA": (ed25519.Ed25519PrivateKey.generate, jwt.algorithms.OKPAlgorithm),
}


class Key:
    """A key pair that signs tokens."""

    def __init__(self, algorithm="ES256", kid="k1"):
        make, self.kind = ALGORITHMS[algorithm]
        self.algorithm, self.kid, self.private = algorithm, kid, make()

    @property
    def jwk(self):
        public = self.kind.to_jwk(self.private.public_key(), as_dict=True)
        return {**public, "kid": self.kid, "use": "sig", "alg": self.algorithm}

    def sign(self, claims, **header):
        return secret(jwt.encode(claims, self.private, self.algorithm, headers={"kid": self.kid, **header}))


def key_set(*keys):
    return json.dumps({"keys": [key.jwk for key in keys]}).encode()


def claims(issuer, **more):
    """Valid claims for the audience `sluice`. A claim with the value None is left out."""
    now = int(time.time())
    all_claims = {"iss": issuer, "aud": "sluice", "sub": "alice", "iat": now, "exp": now + 600, **more}
    return {name: value for name, value in all_claims.items() if value is not None}


def encode(text):
    return base64.urlsafe_b64encode(text if isinstance(text, bytes) else text.encode()).rstrip(b"=").decode()


class KeyServer:
    """Serves `pages`, a map from path to (status, body). It can stall, and keeps its port when it is restarted."""

    def __init__(self, tls=None):
        self.port, self.tls = free_port(), tls
        self.pages, self.requests = {}, []
        self.moving = threading.Event()
        self.moving.set()
        self.server = None

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def start(self):
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                owner.requests.append((self.path, self.headers.get("Authorization")))
                owner.moving.wait(30)
                status, body = owner.pages.get(self.path, (404, b"{}"))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads, allow_reuse_address = True, True

            def handle_error(self, request, client_address):
                pass

        self.server = Server(("127.0.0.1", self.port), Handler)
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.tls.chain, self.tls.key)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def stop(self):
        self.moving.set()
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


class Certificate:
    """A certificate and its key, as files. `chain` also has the intermediate authorities."""

    def __init__(self, directory, name, subject, issuer=None, is_authority=False, names=(), starts=-3600, ends=3600,
                 extensions=()):
        self.directory, self.name = pathlib.Path(directory), name
        self.private = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.timezone.utc)
        if not isinstance(subject, x509.Name):
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)] if subject else [])
        builder = (x509.CertificateBuilder()
                   .subject_name(subject)
                   .issuer_name(issuer.certificate.subject if issuer else subject)
                   .public_key(self.private.public_key())
                   .serial_number(x509.random_serial_number())
                   .not_valid_before(now + datetime.timedelta(seconds=starts))
                   .not_valid_after(now + datetime.timedelta(seconds=ends))
                   .add_extension(x509.BasicConstraints(is_authority, None), critical=True))
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=not list(subject))
        if is_authority:
            builder = builder.add_extension(
                x509.KeyUsage(True, False, False, False, False, True, True, False, False), critical=True)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        self.certificate = builder.sign(issuer.private if issuer else self.private, hashes.SHA256())
        above = issuer.above if issuer else b""
        #: The chain that is sent to a peer: this certificate and the intermediate authorities, without the root.
        self.above = self.pem + above if issuer else b""
        self.chain = self.write("chain.pem", self.above or self.pem)
        key = self.private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        for line in key.decode().splitlines()[1:-1]:
            secret(line)
        self.key = self.write("key.pem", key)

    def write(self, kind, content):
        path = self.directory / f"{self.name}.{kind}"
        path.write_bytes(content)
        return str(path)

    @property
    def pem(self):
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def fingerprint(self):
        return hashlib.sha256(self.certificate.public_bytes(serialization.Encoding.DER)).hexdigest()

    def issue(self, name, subject="", **options):
        return Certificate(self.directory, name, subject, issuer=self, **options)

    def revocations(self, *revoked, ends=3600):
        """This authority's revocation list as PEM."""
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = (x509.CertificateRevocationListBuilder().issuer_name(self.certificate.subject)
                   .last_update(now - datetime.timedelta(hours=2)).next_update(now + datetime.timedelta(seconds=ends)))
        for certificate in revoked:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder().serial_number(certificate.certificate.serial_number)
                .revocation_date(now - datetime.timedelta(hours=1)).build())
        return builder.sign(self.private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    @property
    def options(self):
        """The options of curl for this certificate."""
        return ["--cert", self.chain, "--key", self.key]


def uri(text):
    return x509.UniformResourceIdentifier(text)


def dns(text):
    return x509.DNSName(text)


def loopback_names():
    return [dns("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]


def access_lines(server):
    """The access log lines of identified callers."""
    found = [json.loads(line) for line in server.output().splitlines() if '"duration_ms"' in line]
    return [line for line in found if "principal" in line]
