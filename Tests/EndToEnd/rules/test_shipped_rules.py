"""The shipped rules and their suite. test_docs.py has the rules of the pages."""

import json
import re

from program import ROOT, sluice

RULES = ROOT / "config" / "storage.rules"
SUITE = ROOT / "config" / "storage.suite.yaml"


def test_the_shipped_rules_are_valid():
    status, _, err = sluice("rules", "check", RULES)
    # The only warning is that the trial section permits public access.
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
            location = visited["sourcePosition"]["line"], visited["sourcePosition"]["column"]
            values.setdefault(location, set()).add(visited["value"].get("value"))
    conditions = RULES.read_text().count(": if ")
    assert len(values) == conditions >= 10
    assert [location for location, seen in values.items() if not {True, False} <= seen] == []
    assert {result["decision"] for result in results} == {"ALLOW", "DENY"}


def test_the_shipped_suite_evaluates_every_expression():
    _, out, _ = sluice("rules", "test", RULES, "--suite", SUITE, "--coverage")
    evaluated, every = re.search(r": (\d+) of (\d+) expressions evaluated", out).groups()
    assert evaluated == every and int(every) > 50 and "never evaluated" not in out
