"""Files for the tests of `sluice rules`."""

import json

import pytest

from rulesets import FINE


@pytest.fixture
def rules(tmp_path):
    file = tmp_path / "storage.rules"
    file.write_text(FINE)
    return file


@pytest.fixture
def suite(tmp_path):
    def write(text, name="suite.yaml"):
        file = tmp_path / name
        file.write_text(text if isinstance(text, str) else json.dumps(text))
        return file
    return write
