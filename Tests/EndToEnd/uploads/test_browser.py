"""A browser's page of another origin uploads, pauses and resumes by each protocol: preflights, exposed fields, interim responses
and aborted requests as a browser really makes them."""

import urllib.parse

import pytest

from browser import PAGES, Browser
from program import new_token
from rulesets import rules

SIZE = 64 << 20


@pytest.fixture
def browser(tmp_path):
    running = Browser(PAGES, tmp_path / "profile")
    yield running
    running.close()


def start(launch, tmp_path, cors):
    (tmp_path / "storage.rules").write_text(rules("match /browser/{n} { allow read, write: if request.auth.uid == 'alice'; }"))
    token, line = new_token("alice")
    server = launch(extra=f"firebase: true\n{cors}tokens:\n{line}\n", rules=tmp_path / "storage.rules")
    return server, lambda protocol: "upload.html?" + urllib.parse.urlencode(
        {"gateway": server.url(""), "protocol": protocol, "size": SIZE, "token": token})


@pytest.mark.parametrize("protocol", ["ietf", "tus", "firebase"])
def test_a_page_uploads_pauses_and_resumes(browser, launch, tmp_path, protocol):
    cors = "" if protocol == "firebase" else f"cors: {{ origins: ['{browser.origin}'] }}\n"
    server, page = start(launch, tmp_path, cors)
    result = browser.run(page(protocol))
    assert result == {"pauses": 2, "size": SIZE}, (result, server.output()[-3000:])


def test_a_page_of_an_unknown_origin_uploads_nothing(browser, launch, tmp_path):
    _, page = start(launch, tmp_path, "cors: { origins: ['https://app.example'] }\n")
    for protocol in ("ietf", "firebase"):
        assert "failed" in browser.run(page(protocol))["error"]
