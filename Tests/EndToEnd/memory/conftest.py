"""Prints figures of the tests of memory, with `-s` or without."""

import pytest


@pytest.fixture
def report(request, capsys):
    def say(text):
        with capsys.disabled():
            print(f"\n  {request.node.name}: {text}", end="")
    return say
