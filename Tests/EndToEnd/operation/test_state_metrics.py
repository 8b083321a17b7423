"""Metrics of readiness, reloads, directories and their free space."""

import os
import signal
import time

import pytest

from program import status, wait_until


def test_readiness_reloads_and_space_are_shown(launch):
    begin = int(time.time())
    server = launch()
    wait_until(lambda: server.metrics()["sluice_ready"] == 1, what="readiness")
    first = server.metrics()
    assert first["sluice_draining"] == 0 and first["sluice_configuration_current"] == 1
    assert begin <= first["sluice_configuration_timestamp_seconds"] <= time.time()
    space = os.statvfs(server.directory)
    free = first['sluice_directory_free_bytes{bucket="photos"}']
    assert free == pytest.approx(space.f_bavail * space.f_frsize, rel=0.2)
    assert first['sluice_directory_size_bytes{bucket="photos"}'] == space.f_blocks * space.f_frsize
    good = server.config.read_text()
    server.config.write_text(good + "nonsense: 1\n")
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: server.metrics()["sluice_configuration_current"] == 0, what="the failed reload")
    failed = server.metrics()["sluice_configuration_timestamp_seconds"]
    assert failed == first["sluice_configuration_timestamp_seconds"]
    wait_until(lambda: time.time() >= failed + 1, what="the next second")
    server.config.write_text(good)
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: server.metrics()["sluice_configuration_current"] == 1, what="the reload")
    assert server.metrics()["sluice_configuration_timestamp_seconds"] > failed


def test_the_objects_of_a_directory_are_counted(launch):
    server = launch()
    objects = 'sluice_directory_objects{bucket="photos"}'
    size = 'sluice_directory_object_bytes{bucket="photos"}'

    def usage():
        shown = server.metrics()
        return shown[objects], shown[size]

    assert usage() == (0, 0)
    for name, length in [("a", 100), ("b", 100_000), ("empty", 0)]:
        assert put(server, name, length) == 201
    assert usage() == (3, 100_100)
    assert put(server, "b", 10) == 200
    assert put(server, "a", 5, "-H", "If-None-Match: *") == 412
    assert usage() == (3, 110)
    server.stop(signal.SIGKILL)
    server.start()
    assert usage() == (3, 110)
    assert status("-X", "DELETE", server.url("/b/photos/o/a")) == 204
    assert usage() == (2, 10)


def put(server, name, length, *options):
    return status("-X", "PUT", "--data-binary", "x" * length, *options, server.url(f"/b/photos/o/{name}"))


def test_a_drain_is_shown(launch):
    server = launch(extra="limits: { drainDelay: 20s }\n")
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: server.metrics()["sluice_draining"] == 1, what="the drain")
    assert server.metrics()["sluice_ready"] == 0


def test_a_store_that_fails_is_shown(launch):
    server = launch(buckets='  photos: { gcs: { bucket: b, endpoint: "http://127.0.0.1:9", credentials: anonymous } }\n',
                    ready=503)
    assert server.metrics()["sluice_ready"] == 0
