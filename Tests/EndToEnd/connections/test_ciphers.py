"""Which cipher a connection over TLS gets."""

import subprocess

import pytest

AES_128 = "TLS_AES_128_GCM_SHA256"
AES_256 = "TLS_AES_256_GCM_SHA384"
CHACHA = "TLS_CHACHA20_POLY1305_SHA256"


def cipher(server, *options):
    """The cipher of a handshake, as OpenSSL's client names it."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{server.https}", "-alpn", "http/1.1", *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    lines = [line for line in done.stdout.splitlines() if line.startswith("New, ")]
    assert lines, done.stderr
    return lines[0].rpartition(" ")[2]


@pytest.mark.parametrize("options, wanted", [
    # OpenSSL's client prefers AES-256.
    ((), AES_128),
    (("-ciphersuites", f"{CHACHA}:{AES_256}:{AES_128}"), AES_128),
    (("-ciphersuites", AES_256), AES_256),
    (("-ciphersuites", CHACHA), CHACHA),
    (("-tls1_2",), "ECDHE-ECDSA-AES128-GCM-SHA256"),
    (("-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"), "ECDHE-ECDSA-AES256-GCM-SHA384"),
    (("-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA"), "(NONE)"),
])
def test_aes_128_is_preferred(server, options, wanted):
    assert cipher(server, *options) == wanted


def test_the_configuration_of_openssl_counts(launch, tmp_path):
    """What the system forbids stays forbidden."""
    configuration = tmp_path / "openssl.cnf"
    configuration.write_text(
        "openssl_conf = start\n[start]\nssl_conf = ssl\n[ssl]\nsystem_default = tls\n"
        f"[tls]\nCiphersuites = {CHACHA}:{AES_256}\n")
    server = launch(environment={"OPENSSL_CONF": str(configuration)})
    assert cipher(server, "-ciphersuites", f"{AES_256}:{CHACHA}:{AES_128}") == CHACHA
    assert cipher(server, "-ciphersuites", AES_256) == AES_256
    assert cipher(server, "-ciphersuites", AES_128) == "(NONE)"
