"""Fixtures of the tests of stores."""

import pytest

from identities import Certificate, loopback_names


@pytest.fixture(scope="module", params=["cleartext", "tls"])
def certificate(request, tmp_path_factory):
    """The certificate of the upstream's proxy; None in clear text. A test with it runs with both."""
    if request.param == "cleartext":
        return None
    return Certificate(tmp_path_factory.mktemp("proxy"), "proxy", "proxy", names=loopback_names())
