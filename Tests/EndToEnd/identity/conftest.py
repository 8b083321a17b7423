"""A gateway that asks for clients' certificates. Files with other gateways have their own `serve`."""

import pytest

from authorities import SPIFFE, Authorities
from rulesets import rules

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
