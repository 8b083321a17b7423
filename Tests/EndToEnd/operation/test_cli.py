"""The command line: verbs, exit codes, error messages, signals and reloads."""

import contextlib
import json
import signal
import socket
import ssl
import subprocess
import time

import pytest

import upstreams
from program import curl, free_port, sluice, wait_until

FINE = "rules: none\nbuckets: {{ photos: {{ directory: {{ path: {0} }} }} }}\n"


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "sluice.yaml"
    file.write_text(f"listen: {{ http: 127.0.0.1:{free_port()}, operator: null }}\n"
                    + FINE.format("data"))
    return file


def messages(server):
    """The lines of the log, each of which must be a JSON object."""
    return [json.loads(line) for line in server.output().splitlines(True) if line.endswith("\n")]


def logged(server, message, count=1):
    """Waits until `message` was logged `count` times; returns the last such line."""
    def found():
        lines = [line for line in messages(server) if line.get("message") == message]
        return lines[-1] if len(lines) >= count else None
    return wait_until(found, what=f"{message!r} in the log")


# check, --version, wrong usage

def test_version():
    status, out, err = sluice("--version")
    assert status == 0 and out.count(".") == 2 and not err


def test_check_prints_the_effective_configuration(config):
    status, out, err = sluice("check", config, environment={"SLUICE_THREADS": "3"})
    assert (status, err) == (0, "")
    assert "threads: 3  # from SLUICE_THREADS\n" in out
    assert f"path: {config.parent}/data" in out
    again = config.with_name("again.yaml")
    again.write_text(out)
    status, out, _ = sluice("check", again)
    assert status == 0 and "threads: 3\n" in out


def test_check_prints_findings_with_their_location(config):
    config.write_text("thread: 1\n" + FINE.format("data"))
    assert sluice("check", config) == (
        1, "", f"{config}:1:1: error: unknown key 'thread'; did you mean 'threads'?\n")


def test_check_rejects_an_invalid_certificate(config):
    pem = config.with_name("cert.pem")
    pem.write_text("nothing\n")
    config.write_text(f"listen: {{ https: {{ address: 127.0.0.1:{free_port()}, "
                      "certificate: cert.pem, key: cert.pem } }\n" + FINE.format("data"))
    status, out, err = sluice("check", config)
    assert (status, out) == (1, "") and str(pem) in err


def test_check_connects(config, tmp_path):
    upstream = upstreams.GCSModel(tmp_path)
    config.write_text(f"rules: none\nbuckets: {{ photos: {{ {upstream.store()} }} }}\n")
    subject = f"bucket photos ({upstream.endpoint}): "
    assert sluice("check", "--connect", config) == (0, f"{subject}list, write\n", "")
    upstream.put("photos", "o", b"here")
    assert sluice("check", "--connect", config) == (0, f"{subject}list, read, write\n", "")
    assert upstream.names() == ["o"] and len(upstream.model.commits) == 1
    upstream.model.granted = {"storage.objects.get", "storage.objects.list"}
    # A gateway may be one to read.
    lacking = "storage.objects.create, storage.objects.update, storage.objects.delete"
    assert sluice("check", "--connect", config) == (
        0, f"{subject}list, read\n{subject}note: can't write: the credentials lack {lacking}\n", "")
    config.write_text(f"rules: none\nbuckets: {{ photos: {{ {upstream.store(bucket='missing')} }} }}\n")
    status, out, err = sluice("check", "--connect", config)
    assert (status, out) == (1, "") and "can't list or write: the Cloud Storage bucket 'missing' does not exist" in err
    config.write_text(f"rules: none\nbuckets: {{ photos: {{ {upstream.store(upstream.endpoint.replace('http', 'https'))} }} }}\n")
    status, out, err = sluice("check", "--connect", config)
    assert (status, out) == (1, "") and "the port does not speak TLS" in err
    config.write_text(f"rules: none\nbuckets: {{ photos: {{ {upstream.store()} }} }}\n")
    upstream.stop()
    status, out, err = sluice("check", "--connect", config)
    assert (status, out) == (1, "") and "Connection refused" in err


@pytest.mark.parametrize("key", ["nothing", "-----BEGIN PRIVATE KEY-----\\nAAAA\\n-----END PRIVATE KEY-----\\n", "ec", "passphrase"])
def test_a_service_account_key_that_can_not_be_used(config, tmp_path, key):
    options = {"ec": ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
               "passphrase": ["genpkey", "-algorithm", "RSA", "-aes256", "-pass", "pass:hush"]}
    if key in options:
        key = subprocess.run(["openssl", *options[key]], capture_output=True, text=True, check=True).stdout.replace("\n", "\\n")
    account = tmp_path / "account.json"
    account.write_text(f'{{"type": "service_account", "client_email": "robot@example.com", "private_key": "{key}"}}')
    config.write_text("rules: none\nbuckets: { photos: { gcs: { bucket: photos, "
                      f"endpoint: \"https://127.0.0.1:9\", credentials: {account} }} }} }}\n")
    status, out, err = sluice("check", "--connect", config)
    assert (status, out) == (1, "") and f"{account}: the private key " in err and "an RSA key" in err, err


def test_a_service_account_key_is_used(config, tmp_path):
    """Up to the request for a token, which gets no response."""
    key = subprocess.run(["openssl", "genpkey", "-algorithm", "RSA"], capture_output=True, text=True, check=True).stdout
    account = tmp_path / "account.json"
    account.write_text(json.dumps({"type": "service_account", "client_email": "robot@example.com", "private_key": key,
                                   "token_uri": f"http://127.0.0.1:{free_port()}/token"}))
    config.write_text("rules: none\nbuckets: { photos: { gcs: { bucket: photos, "
                      f"endpoint: \"https://127.0.0.1:9\", credentials: {account} }} }} }}\n")
    status, out, err = sluice("check", "--connect", config)
    assert (status, out) == (1, "") and "/token" not in err and "Connection refused" in err, err


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_temporary_directory_that_can_not_be_used(config, tmp_path, kind):
    (tmp_path / "file").write_text("")
    config.write_text(f"rules: none\ntemporaryDirectory: {tmp_path / kind}\nbuckets: {{ photos: {{ gcs: {{ "
                      "endpoint: \"http://127.0.0.1:9\", bucket: photos, credentials: anonymous } } }\n")
    for expected, *command in (1, "check", "--connect"), (2, "serve", "--config"):
        status, _, err = sluice(*command, config)
        assert status == expected and f"bucket photos: uploads can't wait in the directory '{tmp_path / kind}'" in err


def test_secrets_are_not_printed(config):
    config.write_text("rules: none\nbuckets: { photos: { s3: { bucket: b, accessKeyId: k, secretAccessKey: hush } } }\n")
    status, out, err = sluice("check", config)
    assert status == 0 and "secretAccessKey: <redacted>" in out and "hush" not in out + err


@pytest.mark.parametrize("arguments", [("bogus",), ("check",), ("serve",), ("check", "--set", "x"),
                                       ("serve", "--no-such-flag")])
def test_wrong_usage_is_64(arguments):
    status, out, err = sluice(*arguments)
    assert (status, out) == (64, "") and err.startswith("Error: ")


def test_the_file_may_come_from_the_environment(config):
    assert sluice("check", environment={"SLUICE_CONFIG": str(config)})[0] == 0
    assert sluice("check", "--config", config,
                  environment={"SLUICE_CONFIG": "/nowhere"})[0] == 0


# serve that can't start

def test_serve_without_its_file():
    status, out, err = sluice("serve", "--config", "/nowhere/sluice.yaml")
    assert (status, out) == (1, "")
    assert err == "/nowhere/sluice.yaml: error: can't be opened: No such file or directory\n"


def test_serve_with_a_key_that_can_not_be_read(config):
    config.write_text(f"listen: {{ https: {{ address: 127.0.0.1:{free_port()}, "
                      "certificate: no.pem, key: no.key } }\n" + FINE.format("data"))
    status, _, err = sluice("serve", "--config", config)
    assert status == 1
    assert f"{config.parent}/no.pem" in err and f"{config.parent}/no.key" in err


def test_port_in_use(config):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        status, _, err = sluice("serve", "--config", config, "--listen", address)
    assert status == 2
    assert f"{config}: error: bind {address}" in err and "in use" in err


#: Makes the loops slow at their start, and the exit slow after OpenSSL has freed what it has.
SLOW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
void *BIO_new(const void *method) {
  void *(*next)(const void *) = dlsym(RTLD_NEXT, "BIO_new");
  usleep(300000);
  return next(method);
}
__attribute__((destructor)) static void end(void) { usleep(900000); }
"""


def test_port_in_use_while_loops_start(config, tmp_path):
    (tmp_path / "slow.c").write_text(SLOW)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "slow.so", tmp_path / "slow.c", "-ldl"], check=True)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        status, _, err = sluice("serve", "--config", config, "--set", f"listen.operator={address}",
                                environment={"LD_PRELOAD": str(tmp_path / "slow.so")})
    assert status == 2 and f"bind {address}" in err, (status, err)


def test_port_in_use_by_another_sluice(launch, config):
    """The listeners of one server share their address; those of two must not."""
    running = launch(threads=2)
    address = f"127.0.0.1:{running.http}"
    status, _, err = sluice("serve", "--config", config, "--listen", address)
    assert status == 2 and f"bind {address}" in err


def test_directory_in_use_by_another_sluice(launch, config):
    running = launch()
    config.write_text(f"listen: {{ http: 127.0.0.1:{free_port()}, operator: null }}\n"
                      + FINE.format(running.directory / "photos"))
    status, _, err = sluice("serve", "--config", config)
    assert status == 2 and f"{running.directory}/photos is in use" in err


# startup messages

def test_open_buckets_and_temporary_certificates_cause_warnings(launch):
    running = launch()
    for message in ("the TLS certificate is a throw-away, self-signed one: for trials only",
                    "rules: none: everybody who reaches the listeners may read, write and delete"):
        assert logged(running, message)["level"] == "warning"


def test_start_up_time(launch):
    """Printed, not judged: the machine may be busy."""
    running = launch()
    running.stop()
    begun = time.monotonic()
    running.start()
    print(f"ready {1000 * (time.monotonic() - begun):.0f} ms after the start")


# signals

def put(server, name, body=b"x"):
    path = server.directory / "body"
    path.write_bytes(body)
    return int(curl("-o", "/dev/null", "-w", "%{http_code}", "-T", str(path),
                    server.url(f"/b/photos/o/{name}")))


def rewrite(server, old, new):
    text = server.config.read_text()
    assert old in text
    server.config.write_text(text.replace(old, new))


def test_reload_takes_new_path_rules(launch):
    running = launch()
    assert put(running, "tmp/a") == 201
    rewrite(running, "/photos }", "/photos }, paths: { denied: [tmp/**] }")
    running.process.send_signal(signal.SIGHUP)
    logged(running, "configuration reloaded")
    assert put(running, "tmp/b") == 400
    assert put(running, "other") == 201


def test_reload_of_a_broken_file_keeps_the_old_one(launch):
    running = launch()
    rewrite(running, "rules: none", "rulse: none")
    running.process.send_signal(signal.SIGHUP)
    line = logged(running, "configuration not reloaded")
    assert line["level"] == "error"
    assert "unknown key 'rulse'; did you mean 'rules'?" in line["metadata"]["cause"]
    assert put(running, "a") == 201
    rewrite(running, "rulse: none", "rules: none")
    running.process.send_signal(signal.SIGHUP)
    logged(running, "configuration reloaded")


def test_reload_names_keys_that_require_a_restart(launch):
    running = launch()
    rewrite(running, "threads: 1\n", "threads: 1\nlimits: { idleTimeout: 5s }\n")
    for count in (1, 2):
        running.process.send_signal(signal.SIGHUP)
        line = logged(running, "some changes take a restart", count)
        assert line["metadata"] == {"keys": "limits.idleTimeout"}
    rewrite(running, "/photos }", "/pictures }")
    running.process.send_signal(signal.SIGHUP)
    logged(running, "configuration not reloaded")
    assert put(running, "a") == 201
    assert not (running.directory / "pictures").exists()


@contextlib.contextmanager
def draining(launch):
    """A server that drains, and a connection that has sent three of four bytes of an upload."""
    running = launch()
    with socket.create_connection(("127.0.0.1", running.http)) as peer:
        peer.sendall(b"PUT /b/photos/o/slow HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nhal")
        wait_until(lambda: running.metrics()["sluice_streams_live"] > 0, what="the upload")
        running.process.send_signal(signal.SIGTERM)
        logged(running, "draining")
        yield running, peer


def test_sigterm_finishes_open_requests_and_ends_with_0(launch):
    with draining(launch) as (running, peer):
        assert running.process.poll() is None
        peer.sendall(b"f")
        response = peer.recv(4096)
    assert response.startswith(b"HTTP/1.1 201")
    assert running.process.wait(20) == 0
    assert messages(running)[-1]["message"] == "drained"


def test_a_second_signal_ends_at_once(launch):
    with draining(launch) as (running, peer):
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 128 + signal.SIGTERM


# certificates

def certificate(folder, name):
    """Makes a key and a certificate for `name` in the files that the configuration names."""
    new = [folder / "new.key", folder / "new.pem"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                    "-keyout", new[0], "-out", new[1]], check=True, capture_output=True)
    new[0].replace(folder / "tls.key")
    new[1].replace(folder / "tls.pem")


def connect(server):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context.wrap_socket(socket.create_connection(("127.0.0.1", server.https)))


def subject(server):
    with connect(server) as peer:
        der = peer.getpeercert(binary_form=True)
    done = subprocess.run(["openssl", "x509", "-inform", "DER", "-noout", "-subject"], input=der,
                          capture_output=True, check=True)
    return done.stdout.decode().split("CN = ")[1].strip()


def request(peer):
    peer.sendall(b"GET /b/photos/o/none HTTP/1.1\r\nHost: a\r\n\r\n")
    return peer.recv(64 * 1024).split(b" ")[1]


def test_a_changed_certificate_is_loaded_and_connections_stay(tmp_path, launch):
    certificate(tmp_path, "first")
    running = launch(tls=False)
    running.https = free_port()
    rewrite(running, "listen:\n", f"listen:\n  https: {{ address: 127.0.0.1:{running.https}, "
            f"certificate: {tmp_path}/tls.pem, key: {tmp_path}/tls.key }}\n")
    running.stop()
    running.start()
    assert subject(running) == "first"
    with connect(running) as old:
        assert request(old) == b"404"
        certificate(tmp_path, "second")
        wait_until(lambda: subject(running) == "second", what="the new certificate")
        assert request(old) == b"404"
        # A damaged file is rejected, and the last valid one stays in use.
        (tmp_path / "tls.pem").write_text("nothing\n")
        line = logged(running, "certificate not loaded; the last good one stays")
        assert "tls.pem" in line["metadata"]["cause"]
        assert subject(running) == "second"
        assert request(old) == b"404"
