"""A gateway with a console."""

import pytest

from console_gateway import Console


@pytest.fixture
def console(launch, tmp_path):
    return Console(launch, tmp_path)
