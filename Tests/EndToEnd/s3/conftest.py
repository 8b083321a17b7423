"""A gateway with an S3 listener that the tests of a module share."""

import pytest

import s3_clients
from program import Server


@pytest.fixture(scope="session")
def s3_key():
    return s3_clients.Key("alice")


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory, store, s3_key):
    directory = tmp_path_factory.mktemp("s3")
    keys = s3_clients.write_keys(directory / "s3-keys", s3_key)
    running = Server(directory, buckets=f"  photos: {{ {store(directory, 'photos')} }}\n", s3=True,
                     extra=f"s3: {{ keys: {keys} }}\n")
    yield running
    assert running.stop() == 0, running.output()


@pytest.fixture(scope="module")
def s3_clear(s3_server, s3_key):
    made = s3_clients.client(s3_server, s3_key)
    yield made
    made.close()


@pytest.fixture(scope="module")
def s3_secure(s3_server, s3_key):
    made = s3_clients.client(s3_server, s3_key, tls=True)
    yield made
    made.close()


@pytest.fixture(params=["clear", "tls"])
def s3(request, s3_clear, s3_secure):
    """A client of alice. Over TLS it sends checksums in trailers."""
    return s3_clear if request.param == "clear" else s3_secure
