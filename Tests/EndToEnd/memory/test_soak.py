"""Memory does not grow with requests, on any path."""

import os

import pytest

import soak
from program import Server, wait_until

pytestmark = pytest.mark.skipif("SANITIZER" in os.environ, reason="sanitizers keep what was freed")
ROUND = 1000
# The heap reaches its size only after up to ten rounds, if many requests happen to be at the same time.
ROUNDS = 24


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    running = soak.Setting(tmp_path_factory.mktemp("soak"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def server(setting, tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("server") / "s", buckets=setting.buckets, extra=setting.extra,
                     rules=setting.directory / "soak.rules")
    client = soak.Client(running.http)
    setting.prepare(client)
    client.close()
    yield running
    assert running.stop() == 0, running.output()


def idle(server):
    """Whether no request is running; abandoned requests take time to end."""
    return not any(
        value > 0 for name, value in server.metrics().items()
        if "in_flight" in name or "sluice_live_objects" in name and 'listener="operator"' not in name)


def leaves_nothing(server, case, client, bucket):
    """Runs rounds until one leaves less than the allowed bytes for each request; a leak grows in every round."""
    growth = []
    case(client, bucket, ROUND)
    client.close()
    wait_until(lambda: idle(server))
    for _ in range(ROUNDS):
        before = soak.anonymous_memory(server.process.pid)
        done = case(client, bucket, ROUND) or ROUND
        client.close()
        wait_until(lambda: idle(server))
        growth.append((soak.anonymous_memory(server.process.pid) - before) / done)
        if growth[-1] < soak.ALLOWED:
            break
    assert growth[-1] < soak.ALLOWED, f"bytes for each request, by round: {growth}"


@pytest.mark.parametrize("bucket", ["directory", "gcs", "gcs-tls", "s3", "s3-tls"])
@pytest.mark.parametrize("case", soak.CASES)
def test_a_request_leaves_nothing(server, case, bucket):
    leaves_nothing(server, soak.CASES[case], soak.Client(server.http), bucket)


@pytest.mark.parametrize("case", soak.CASES)
def test_a_request_over_tls_leaves_nothing(server, case):
    leaves_nothing(server, soak.CASES[case], soak.Client(server.https, secure=True), "directory")


# fake-gcs-server may crash with concurrent requests.
@pytest.mark.parametrize("bucket", ["directory", "s3-tls"])
@pytest.mark.parametrize("secure", [False, True], ids=["h2c", "tls"])
@pytest.mark.parametrize("case", ["h2-get", "h2-put", "h2-head"])
def test_a_request_over_http2_leaves_nothing(server, setting, case, secure, bucket):
    load = {
        "h2-get": soak.h2load(),
        # rclone fails with concurrent writes of one object.
        "h2-put": soak.h2load("-d", str(setting.body), "-H:method: PUT", names=[f"put-{index}" for index in range(200)]),
        "h2-head": soak.h2load("-H:method: HEAD"),
    }
    client = soak.Client(server.https if secure else server.http, secure)
    leaves_nothing(server, load[case], client, bucket)
