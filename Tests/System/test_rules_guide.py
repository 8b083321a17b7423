"""The guide and the shipped rules: what is written there is true."""

import json
import re
import shlex

import pytest

from conftest import ROOT
from test_cli import sluice

GUIDE = (ROOT / "docs" / "writing-rules.md").read_text()
RULES = ROOT / "config" / "storage.rules"
SUITE = ROOT / "config" / "storage.suite.yaml"


def blocks(*languages):
    """The code of the guide in these languages, in order, each with its language."""
    return re.findall(rf"^```({'|'.join(languages)})\n(.*?)^```$", GUIDE, re.M | re.S)


def examples():
    """Each example of rules with the suite right behind it, if there is one."""
    found = blocks("rules", "yaml")
    for (language, text), (following, suite) in zip(found, found[1:] + [("", "")]):
        if language == "rules":
            yield text, suite if following == "yaml" else None


@pytest.mark.parametrize("rules,suite", list(examples()))
def test_an_example_of_the_guide(tmp_path, rules, suite):
    file = tmp_path / "storage.rules"
    file.write_text(rules)
    status, _, err = sluice("rules", "check", file)
    assert status == 0, err
    assert "Invalid" not in err and "Unused" not in err, err
    assert sluice("rules", "fmt", "--check", file) == (0, "", "")
    if suite:
        cases = tmp_path / "suite.yaml"
        cases.write_text(suite)
        status, out, err = sluice("rules", "test", file, "--suite", cases)
        assert status == 0, out + err
        assert "FAIL" not in out and " 0 failed" in out


def test_the_guide_has_examples_with_suites():
    found = list(examples())
    assert len(found) >= 7 and sum(suite is not None for _, suite in found) >= 6


@pytest.mark.parametrize("text", [text for _, text in blocks("console")])
def test_a_command_of_the_guide_prints_what_is_shown(monkeypatch, text):
    monkeypatch.chdir(ROOT)
    command, _, output = text.partition("\n")
    words = shlex.split(command.removeprefix("$ sluice "))
    _, out, err = sluice(*words)
    assert (out, err) == (output, "")


def test_links_of_the_guide_lead_somewhere():
    headings = {re.sub(r"[^a-z -]", "", line.lstrip("# ").lower()).replace(" ", "-")
                for line in GUIDE.splitlines() if line.startswith("#")}
    for target in re.findall(r"\]\(([^)]+)\)", GUIDE):
        if target.startswith("#"):
            assert target[1:] in headings, target
        else:
            assert (ROOT / "docs" / target).is_file(), target


def test_the_shipped_rules_are_fine():
    status, _, err = sluice("rules", "check", RULES)
    # The trial section is open to the world, and says so; there is nothing else to say.
    assert status == 0 and err.count("warning:") == 1 and "Anyone in the world may write" in err
    assert sluice("rules", "fmt", "--check", RULES) == (0, "", "")


def test_the_shipped_suite_covers_every_rule_both_ways():
    status, out, err = sluice("rules", "test", RULES, "--suite", SUITE, "--format", "json",
                              "--coverage")
    assert (status, err) == (0, "")
    results = [json.loads(line) for line in out.splitlines()]
    values = {}
    for result in results:
        for visited in result["visitedExpressions"]:
            place = visited["sourcePosition"]["line"], visited["sourcePosition"]["column"]
            values.setdefault(place, set()).add(visited["value"].get("value"))
    conditions = RULES.read_text().count(": if ")
    assert len(values) == conditions >= 10
    assert [place for place, seen in values.items() if not {True, False} <= seen] == []
    assert {result["decision"] for result in results} == {"ALLOW", "DENY"}


def test_the_shipped_suite_evaluates_every_expression():
    _, out, _ = sluice("rules", "test", RULES, "--suite", SUITE, "--coverage")
    evaluated, every = re.search(r": (\d+) of (\d+) expressions evaluated", out).groups()
    assert evaluated == every and int(every) > 50 and "never evaluated" not in out


def tour():
    """The curl commands of the README's tour, which ends before it shows a denial: method and path."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "README.md").read_text().split("## Rules")[0])
    for line in text.splitlines():
        found = re.search(r"curl (.*?)'?https?://127\.0\.0\.1:\d+(/b/photos/o[^\s']*)", line)
        if not found:
            continue
        flags, path = found.groups()
        method = ("create" if "-T" in flags else "update" if "PATCH" in flags else
                  "delete" if "DELETE" in flags else "list" if path.endswith("/") else "get")
        yield method, path.removesuffix("?metadata").rstrip("/")


def test_the_tour_of_the_readme_is_allowed():
    commands = sorted(set(tour()))
    assert {method for method, _ in commands} == {"get", "list", "create", "update", "delete"}
    types = {".jpg": "image/jpeg", ".txt": "text/plain"}
    for method, path in commands:
        new = []
        if method in ("create", "update"):
            kind = types[path[path.rindex("."):]]
            new = ["--new", json.dumps({"size": 1000000, "contentType": kind})]
        status, out, err = sluice("rules", "explain", RULES, "--method", method, "--path", path,
                                  *new)
        assert status == 0, f"{method} {path}: {out}{err}"
