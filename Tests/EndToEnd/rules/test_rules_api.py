"""sluice rules test with requests to the hosted service's projects.test."""

import json

import pytest

from program import sluice
from rulesets import BROKEN, FINE


def api(expectation="ALLOW", request=None, **members):
    """One case of the hosted service's API."""
    request = {"method": "get", "path": "/b/photos/o/x", "auth": {"uid": "alice", "token": {}},
               "params": {"x": "1"}, "time": "2026-05-01T12:00:00Z", **(request or {})}
    return {"testSuite": {"testCases": [
        {"expectation": expectation, "request": request, **members}]}}


@pytest.mark.parametrize("expectation,request_members,members", [
    ("ALLOW", {}, {}),
    ("DENY", {"auth": None}, {}),
    ("DENY", {"auth": {"token": {}}}, {}),
    ("ALLOW", {"path": "/b/photos/o/%C3%A9%20x"}, {"pathEncoding": "URL_ENCODED"}),
    ("ALLOW", {"path": "/b/photos/o/100%"}, {"pathEncoding": "PLAIN"}),
    # A %2F is a slash, and the rules are for one segment.
    ("DENY", {"path": "/b/photos/o/a%2Fb"}, {}),
    ("ALLOW", {"path": "/b/photos/o/a%2Fb"}, {"pathEncoding": "PLAIN"}),
    ("ALLOW", {"method": "create", "resource": {"size": 9.0}}, {}),
    ("DENY", {"method": "create", "resource": {"size": "9"}}, {}),
    ("DENY", {"method": "create", "resource": {}}, {}),
    ("DENY", {"method": "create", "resource": {"size": 9}}, {"resource": {}}),
    ("ALLOW", {"method": "create", "resource": {"size": 9}}, {"resource": None}),
    ("ALLOW", {"method": "delete"}, {}),
    ("DENY", {"method": "delete", "time": "2025-05-01T12:00:00.5+02:00"}, {}),
    ("ALLOW", {"method": "delete", "time": {"seconds": "1800000000", "nanos": 5}}, {}),
    ("DENY", {"method": "delete", "time": {"seconds": 1700000000}}, {}),
    ("DENY", {"method": "update"}, {}),
])
def test_a_case_of_the_api(rules, suite, expectation, request_members, members):
    file = suite(api(expectation, request_members, **members), "suite.json")
    status, out, err = sluice("rules", "test", rules, "--suite", file)
    assert (status, err) == (0, ""), out


GET, EXISTS = "firestore.get", "firestore.exists"
EXACT = {"exactValue": "/databases/(default)/documents/users/a"}
OTHER = {"exactValue": "/databases/(default)/documents/users/b"}
ANY = {"anyValue": {}}
OK, NOT_OK = {"value": {"data": {"ok": True}}}, {"value": {"data": {"ok": False}}}
UNDEFINED = {"undefined": {}}


@pytest.mark.parametrize("expectation,mocks", [
    ("ALLOW", [(GET, EXACT, OK)]), ("DENY", [(GET, EXACT, NOT_OK)]), ("DENY", [(GET, OTHER, OK)]),
    ("ALLOW", [(GET, ANY, OK)]), ("ALLOW", [(GET, ANY, NOT_OK), (GET, EXACT, OK)]),
    ("DENY", [(GET, EXACT, UNDEFINED)]), ("DENY", [(GET, EXACT, {"value": None})]),
    # A mock applies to one function only.
    ("DENY", [(EXISTS, EXACT, {"value": True})]),
    ("ALLOW", [(GET, EXACT, OK), (EXISTS, EXACT, UNDEFINED)]),
])
def test_mocks_of_the_api(rules, suite, expectation, mocks):
    functions = [{"function": name, "args": [arg], "result": result} for name, arg, result in mocks]
    file = suite(api(expectation, {"method": "update"}, functionMocks=functions), "suite.json")
    status, out, err = sluice("rules", "test", rules, "--suite", file, "--format", "json")
    assert (status, err) == (0, ""), out
    assert json.loads(out)["functionCalls"] == [
        {"function": "firestore.get", "args": ["/databases/(default)/documents/users/a"]}]


@pytest.mark.parametrize("result,decision", [({"value": True}, "ALLOW"), ({"value": False}, "DENY"),
                                             (UNDEFINED, "DENY")])
def test_mocks_of_exists(rules, suite, result, decision):
    rules.write_text(FINE.replace("firestore.get(", "firestore . exists (").replace(").data.ok", ")"))
    mocks = [{"function": EXISTS, "args": [EXACT], "result": result}]
    file = suite(api(decision, {"method": "update"}, functionMocks=mocks), "suite.json")
    assert sluice("rules", "test", rules, "--suite", file)[0] == 0


@pytest.mark.parametrize("result,decision", [({"value": True}, "ALLOW"), (UNDEFINED, "DENY"),
                                             (None, "DENY")])
def test_mocks_of_both_functions(rules, suite, result, decision):
    exists = "firestore.exists(/databases/(default)/documents/users/a) && firestore.get("
    rules.write_text(FINE.replace("firestore.get(", exists))
    mocks = [{"function": GET, "args": [ANY], "result": OK}]
    if result:
        mocks.append({"function": EXISTS, "args": [EXACT], "result": result})
    file = suite(api(decision, {"method": "update"}, functionMocks=mocks), "suite.json")
    assert sluice("rules", "test", rules, "--suite", file)[0] == 0


def test_rules_that_come_with_the_suite(rules, suite):
    body = {**api(), "source": {"files": [{"name": "other.rules", "content": FINE}]}}
    file = suite(body, "suite.json")
    status, out, _ = sluice("rules", "test", "--suite", file, "--coverage")
    assert status == 0 and "\nother.rules: " in out
    rules.write_text("rules_version = '2'; service firebase.storage { }")
    assert sluice("rules", "test", rules, "--suite", file)[0] == 1  # FILE comes first
    file = suite({**body, "source": {"files": [{"content": BROKEN}]}}, "suite.json")
    status, out, err = sluice("rules", "test", "--suite", file)
    assert (status, out) == (2, "") and "storage.rules:4:17: error: " in err


@pytest.mark.parametrize("body,finding", [
    ('{"testSuite": {"testCases": [}}', ":1:30: error: not JSON: a value is expected"),
    ('{"testSuite": {"testcases": []}}', "testSuite has no 'testcases'; did you mean 'testCases'?"),
    (api("PERHAPS"), "expectation must be one of ALLOW, DENY"),
    (api(request={"method": "write"}), "method must be one of get, list, create, update, delete"),
    (api(functionMocks=[{"function": GET, "args": [], "result": OK}]),
     "a mock needs 'args': one, of 'exactValue' or 'anyValue'"),
    (api(functionMocks=[{"function": GET, "args": [ANY], "result": {}}]),
     "a mock needs 'result': 'value' or 'undefined'"),
    (api(pathEncoding="RAW"), "pathEncoding must be one of "),
])
def test_errors_in_a_case_of_the_api(rules, suite, body, finding):
    status, out, err = sluice("rules", "test", rules, "--suite", suite(body, "suite.json"))
    assert (status, out) == (2, "") and finding in err


def test_features_of_the_api_that_storage_lacks_are_reported(rules, suite):
    mock = {"function": "get", "args": [ANY], "result": OK}
    file = suite(api(request={"headers": {}}, functionMocks=[mock]), "suite.json")
    status, out, _ = sluice("rules", "test", rules, "--suite", file, "--format", "json")
    assert status == 0 and json.loads(out)["debugMessages"] == [
        "Requests to storage have no 'headers': it is ignored.",
        "Rules for storage have no function 'get' to be mocked"]


def test_reports_if_a_case_of_the_api_requests_them(rules, suite):
    counts = {}
    for level in ("NONE", "VISITED", "FULL"):
        file = suite(api(expressionReportLevel=level), "suite.json")
        _, out, _ = sluice("rules", "test", rules, "--suite", file, "--format", "json")
        counts[level] = len(json.loads(out).get("expressionReports", []))
    assert counts == {"NONE": 0, "VISITED": 1, "FULL": 4}
