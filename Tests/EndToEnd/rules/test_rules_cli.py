"""sluice rules check, test, explain and fmt: output in both formats, exit statuses, and error messages."""

import json
import os
import pty
import stat
import subprocess

import pytest

from program import BINARY, sluice
from rulesets import BROKEN, FINE


def case(**members):
    """One case that is allowed unless a member says otherwise, as a suite in JSON, which is YAML."""
    members = {"method": "get", "path": "/b/photos/o/x", "auth": "alice", "params": {"x": 1},
               "expect": "allow", **members}
    return {"cases": [{key: value for key, value in members.items() if value is not ...}]}


# check

def test_check_of_valid_rules(rules):
    assert sluice("rules", "check", rules) == (0, f"{rules}: no errors, no warnings\n", "")


def test_check_shows_every_error_with_a_caret_and_a_hint(rules):
    rules.write_text(BROKEN)
    status, out, err = sluice("rules", "check", rules)
    assert (status, out) == (1, f"{rules}: 2 errors, no warnings\n")
    assert (f"{rules}:4:17: error: Missing 'if' before conditional expression.\n"
            " 4 |     allow read: true;\n   |                 ^~~~\n   hint: ") in err
    assert f"{rules}:5:" in err


def test_check_as_json(rules):
    rules.write_text(BROKEN)
    status, out, err = sluice("rules", "check", rules, "--format", "json")
    assert (status, err) == (1, "")
    response = json.loads(out)
    assert response["fileName"] == str(rules) and len(response["issues"]) == 2
    issue = response["issues"][0]
    assert issue["severity"] == "ERROR" and issue["sourcePosition"]["line"] == 4
    assert issue["description"] == "Missing 'if' before conditional expression."


def test_warnings_fail_a_check_only_if_requested(rules):
    rules.write_text(FINE.replace("request.auth.uid", "requst.auth.uid"))
    status, out, err = sluice("rules", "check", rules)
    assert (status, out) == (0, f"{rules}: no errors, 1 warning\n")
    assert "warning: Invalid variable name: requst.\n" in err and "did you mean 'request'?" in err
    assert sluice("rules", "check", "--warnings-as-errors", rules)[0] == 1


def test_check_warns_of_lists_at_a_fixed_depth(tmp_path):
    path = tmp_path / "fixed.rules"
    path.write_text("rules_version = '2';\nservice firebase.storage { match /b/{bucket}/o {\n"
                    "  match /{uid}/{fileName} { allow read: if request.auth != null; }\n} }\n")
    status, out, err = sluice("rules", "check", str(path))
    assert (status, out) == (0, f"{path}: no errors, 1 warning\n")
    assert f"{path}:3:29: warning: This allows no list of the folder" in err and "{fileName=**}" in err


@pytest.mark.parametrize("condition,message,hint", [
    ("request.path[0] == 'images'", "always 'b', never 'images'", "request.path[3]"),
    ("request.method == 'write'", "request.method is never 'write'.", "['create', 'update', 'delete']"),
    ("request.auth.token.email == 'a@b.c'", "before it is verified", "request.auth.token.email_verified"),
    ("request.auth.token.email_verified && request.auth.token.email.matches('.*@b.c')",
     "The dot in 'b.c' matches any character.", "b[.]c"),
    ("request.auth.uid == 5", "request.auth.uid is a string", "compare it with a string"),
    ("resource.metadata.owner != 'a'", "If resource.metadata['owner'] is not set", "'owner' in resource.metadata"),
])
def test_check_warns_of_conditions_that_mean_something_else(rules, condition, message, hint):
    rules.write_text("rules_version = '2';\nservice firebase.storage { match /b/{bucket}/o/{file=**} {\n"
                     f"  allow get: if {condition};\n}} }}\n")
    status, out, err = sluice("rules", "check", rules)
    assert (status, out) == (0, f"{rules}: no errors, 1 warning\n")
    assert f"{rules}:3:" in err and message in err and hint in err.partition("hint: ")[2]
    issue, = json.loads(sluice("rules", "check", rules, "--format", "json")[1])["issues"]
    assert issue["severity"] == "WARNING" and message in issue["description"]
    assert issue["sourcePosition"]["line"] == 3


def test_check_continues_after_an_unreadable_file(rules):
    missing = rules.with_name("missing.rules")
    status, out, err = sluice("rules", "check", missing, rules)
    assert status == 2 and out.startswith(f"{rules}: no errors")
    assert err == f"{missing}: error: can't be opened: No such file or directory\n"
    assert sluice("rules", "check", rules.parent)[0] == 2
    rules.write_bytes(b"\xff")
    assert sluice("rules", "check", rules) == (2, "", f"{rules}: error: is not UTF-8\n")


def test_terminals_are_sent_no_control_characters(tmp_path):
    hidden = "\x1b[31m\u202e\x9b\n"
    file = tmp_path / f"a{hidden}.rules"
    file.write_text(BROKEN.replace("'x'", f"'{hidden[:-1]}'"))
    missing = tmp_path / f"b{hidden}.rules"
    for arguments in (("check", file, missing), ("fmt", file), ("fmt", "--check", file),
                      ("test", "--suite", file), ("test", file, "--suite", file),
                      ("explain", file, "--method", "get", "--path", f"/b/x/o/y{hidden}"),
                      ("explain", file, "--method", hidden, "--path", "/b/x/o/y")):
        status, out, err = sluice("rules", *arguments)
        assert status and not set(hidden[:-1]) & (set(out + err) - set("[31m")), arguments
    file.write_text(FINE.replace("  match", "match"))
    status, out, err = sluice("rules", "fmt", "--check", file)
    assert (status, out, err) == (1, f"{tmp_path}/a\\u001b[31m\\u202e\\u009b\\n.rules\n", "")


def test_long_lines_are_cut(rules):
    rules.write_text(FINE.replace("resource == null", "resource == null" + " && nobody" * 80))
    status, out, err = sluice("rules", "check", rules)
    assert status == 0 and err.count("warning: Invalid variable name: nobody.") == 80
    assert max(map(len, err.splitlines())) < 400
    assert all(line.endswith("^~~~~~") for line in err.splitlines() if "^" in line)


def test_check_reads_standard_input():
    done = subprocess.run([str(BINARY), "rules", "check", "-"], input=BROKEN, text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 1 and "<stdin>:4:17: error: " in done.stderr


@pytest.mark.parametrize("arguments", [
    ("check",), ("check", "x", "--format", "xml"), ("test", "x"), ("explain", "x"),
    ("test", "--suite", "x", "--coverage-html", "y"), ("fmt",), ("fmt", "x", "--check", "--write"),
    ("fmt", "-", "--write"), ("explain", "x", "--method", "get", "--path", "photos"),
    ("explain", "x", "--method", "get", "--path", "/b/x/o/y", "--new", "{}"),
    ("explain", "x", "--method", "create", "--path", "/b/x/o/y", "--new", '{"siz": 1}'),
    ("explain", "x", "--method", "get", "--path", "/b/x/o/y", "--time", "noon"),
    ("explain", "x", "--method", "get", "--path", "/b/x/o/y", "--param", "a"),
    ("explain", "x", "--method", "get", "--path", "/b/x/o/y", "--document", "a=b"),
])
def test_wrong_usage_is_64(arguments):
    status, out, err = sluice("rules", *arguments)
    assert (status, out) == (64, "") and err.startswith("Error: ")


# test

def test_a_suite_that_passes(rules, suite):
    file = suite("""
bucket: photos
time: 2026-05-01T12:00:00Z
documents: { users/a: { ok: true } }
cases:
  - { name: reads, auth: alice, method: get, object: x, params: { x: 1 }, expect: allow, because: 5 }
  - { name: writes, method: create, object: x, request.resource: { size: 9 }, expect: allow }
  - { name: replaces, method: create, object: x, resource: { size: 1 },
      request.resource: { size: 9 }, expect: deny, because: resource == null → false }
  - { name: documents, method: update, object: x, resource: {}, expect: allow }
  - { name: no document, method: update, object: x, documents: { users/a: absent }, expect: deny }
  - { name: now, method: delete, path: /b/photos/o/x, expect: allow }
  - { name: then, method: delete, path: /b/photos/o/x, time: { seconds: 5, nanos: 1 }, expect: deny }
""")
    status, out, err = sluice("rules", "test", rules, "--suite", file)
    assert (status, err) == (0, "")
    assert out == ("ok   reads\nok   writes\nok   replaces\nok   documents\nok   no document\n"
                   "ok   now\nok   then\n7 cases: 7 passed, 0 failed\n")


def test_a_failure_reports_location_and_reason(rules, suite):
    file = suite("cases:\n  - name: bob\n    auth: bob\n    method: get\n    path: /b/p/o/x\n"
                 "    expect: allow\n")
    status, out, err = sluice("rules", "test", rules, "--suite", file)
    assert (status, err) == (1, "")
    assert f"FAIL bob\n     {file}:2:5: expected allow, and it is denied\n" in out
    assert f"allow get → false  {rules}:5:5\n" in out and "request.auth.uid → 'bob'\n" in out
    assert out.endswith("1 case: 0 passed, 1 failed\n")


@pytest.mark.parametrize("members,failure", [
    ({"because": "nonsense"}, "the explanation does not have 'nonsense'"),
    ({"because": 6}, "no rule on line 6 allows it"),
    ({"because": 6, "auth": "bob", "expect": "deny"}, "no rule on line 6 denies it"),
])
def test_the_reason_counts(rules, suite, members, failure):
    status, out, _ = sluice("rules", "test", rules, "--suite", suite(case(**members)))
    assert status == 1 and f": {failure}\n" in out


def test_results_as_json_are_one_line_each_in_order(rules, suite):
    first = suite(case(name="fine"))
    second = suite(case(name="wrong", auth=None), "second.yaml")
    status, out, err = sluice("rules", "test", rules, "--suite", first, "--suite", second,
                              "--format", "json")
    assert (status, err) == (1, "")
    fine, wrong = map(json.loads, out.splitlines())
    assert fine["state"] == "SUCCESS" and fine["decision"] == fine["expectation"] == "ALLOW"
    assert "expressionReports" not in fine and "explanation" not in fine
    assert fine["visitedExpressions"][0]["value"] == {"value": True}
    assert wrong["state"] == "FAILURE" and wrong["decision"] == "DENY" and wrong["name"] == "wrong"
    error = f"Error: {rules} line [5], column [19]. Null value error."
    assert wrong["debugMessages"] == [error] and error in wrong["explanation"]
    assert wrong["errorPosition"] == {"fileName": str(rules), "line": 5, "column": 19,
                                      "currentOffset": FINE.index("request.auth.uid")}


def test_json_with_coverage_nests_expressions(rules, suite):
    _, out, _ = sluice("rules", "test", rules, "--suite", suite(case()), "--format", "json",
                       "--coverage")
    reports = json.loads(out)["expressionReports"]
    assert len(reports) == 4  # one for each condition
    assert reports[0]["values"] == [{"value": True, "count": 1}]
    assert [child["values"] for child in reports[0]["children"]] == [
        [{"value": True, "count": 1}]] * 2
    assert reports[1]["values"] == []


@pytest.mark.parametrize("text,finding", [
    ("cases: [", ":2:1: error: not YAML: "),
    ("cases: " + "[" * 100_000, ":1:135: error: values are nested too deeply"),
    ("", ": error: there is nothing in it"),
    ("[]", ":1:1: error: a suite must be a mapping"),
    ("cases: []", ":1:8: error: a suite needs 'cases', a list of them"),
    ("case: []\ncases: [1]", ":1:1: error: a suite has no 'case'; did you mean 'cases'?"),
    ("cases:\n- method: get\n  methid: x", ":3:3: error: a case has no 'methid'; did you mean 'method'?"),
    ("cases:\n- { method: gte, path: /b/x/o/y, expect: deny }",
     ":2:13: error: method must be one of get, list, create, update, delete; did you mean 'get'?"),
    ("cases:\n- { method: get, path: photos/x, expect: deny }",
     ":2:24: error: path must be like /b/BUCKET/o/NAME"),
    ("cases:\n- { method: get, path: /b/x/o/y, object: y, expect: deny }",
     ":2:42: error: 'path' says the object already"),
    ("cases:\n- { method: get, object: y, expect: deny }",
     ":2:3: error: a case needs 'path', or 'bucket' and 'object'"),
    ("cases:\n- { method: get, path: /b/x/o/y }", ":2:3: error: a case needs 'expect': allow or deny"),
    ("cases:\n- { method: get, path: /b/x/o/y, expect: maybe }",
     ":2:42: error: expect must be one of allow, deny"),
    ("cases:\n- { method: get, path: /b/x/o/y, expect: deny, resource: { sise: 1 } }",
     ":2:60: error: resource has no 'sise'; did you mean 'size'?"),
    ("cases:\n- { method: get, path: /b/x/o/y, expect: deny, resource: { size: big } }",
     ":2:66: error: size must be a whole number"),
    ("cases:\n- { method: get, path: /b/x/o/y, expect: deny, request.resource: {} }",
     ":2:66: error: only create and update have a request.resource"),
    ("cases:\n- { method: create, path: /b/x/o/y, expect: deny, request.resource: { updated: x } }",
     ":2:71: error: request.resource has no 'updated'"),
    ("cases:\n- { method: list, path: /b/x/o/y, expect: deny, resource: {} }",
     ":2:59: error: for list, resource is always null"),
    ("cases:\n- { method: get, path: /b/x/o/y, expect: deny, time: noon }",
     ":2:54: error: time must be a time such as "),
    ("cases:\n- { method: get, path: /b/x/o/y, expect: deny, auth: { token: {} } }",
     ":2:54: error: auth has no 'uid'"),
    ("cases:\n- { method: get, path: /b/x/o/y, expect: deny, documents: { a/b: gone } }",
     ":2:66: error: a document is a mapping of its fields, 'absent' or 'failed'"),
])
def test_errors_in_a_suite(rules, suite, text, finding):
    file = suite(text)
    status, out, err = sluice("rules", "test", rules, "--suite", file)
    assert (status, out) == (2, "")
    assert f"{file}{finding}" in err


def test_test_without_usable_files(rules, suite):
    missing = rules.with_name("missing")
    fine = suite(case())
    status, out, err = sluice("rules", "test", rules, "--suite", missing)
    assert (status, out) == (2, "") and err.startswith(f"{missing}: error: can't be opened")
    status, out, err = sluice("rules", "test", missing, "--suite", fine)
    assert (status, out) == (2, "") and err.startswith(f"{missing}: error: can't be opened")
    status, out, err = sluice("rules", "test", "--suite", fine)
    assert (status, out) == (2, "") and "there are no rules" in err
    rules.write_text(BROKEN)
    status, out, err = sluice("rules", "test", rules, "--suite", fine)
    assert (status, out) == (2, "") and f"{rules}:4:17: error: " in err


def test_a_third_document_is_an_error(rules, suite):
    paths = [f"firestore.exists(/databases/(default)/documents/c/{name})" for name in "aab"]
    rules.write_text(FINE.replace("resource == null", " && ".join(paths)))
    cases = case(method="create", documents={"c/a": {}, "c/b": {}, "c/c": {}},
                 **{"request.resource": {"size": 1}})
    assert sluice("rules", "test", rules, "--suite", suite(cases))[0] == 0
    rules.write_text(rules.read_text().replace("c/b)", "c/b) && firestore.exists(/databases/(default)/documents/c/c)"))
    status, out, _ = sluice("rules", "test", rules, "--suite", suite(cases))
    assert status == 1 and "At most 2 different documents" in out


def test_an_undefined_document(rules, suite):
    status, out, _ = sluice("rules", "test", rules, "--suite", suite(case(method="update")))
    assert status == 1
    assert ("The case says nothing of the document /databases/(default)/documents/users/a: "
            "looking for it fails.\n") in out


@pytest.mark.parametrize("method,path,expect", [
    ("get", "/b/photos/o/x", "allow"), ("get", "b/photos/o/x", "allow"),
    ("get", "/b/photos/o/x/", "deny"), ("get", "/b/photos/o//x", "deny"),
    ("list", "/b/photos/o/x", "allow"), ("list", "/b/photos/o/x/", "allow"),
    ("list", "/b/photos/o/x//", "deny"), ("list", "/b/photos/o", "deny"),
    ("list", "/b/photos/o/", "deny"),
])
def test_slashes(rules, suite, method, path, expect):
    rules.write_text(FINE.replace("allow get: if", "allow get, list; allow get: if"))
    file = suite(case(method=method, path=path, expect=expect))
    assert sluice("rules", "test", rules, "--suite", file)[0] == 0
    status, _, _ = sluice("rules", "explain", rules, "--method", method, "--path", path)
    assert status == {"allow": 0, "deny": 3}[expect]


def test_the_bucket_may_be_a_default(rules, suite):
    body = {"bucket": "photos", **case(path=..., object="x")}
    assert sluice("rules", "test", rules, "--suite", suite(body))[0] == 0
    body = {"bucket": "/", **case(path=..., object="x")}
    status, out, err = sluice("rules", "test", rules, "--suite", suite(body))
    assert (status, out) == (2, "") and "error: '/' is no bucket" in err


def test_the_line_that_allows_is_the_last_one(rules, suite):
    rules.write_text(FINE.replace("allow delete: if request.time", "allow get: if request.time"))
    assert sluice("rules", "test", rules, "--suite", suite(case(auth="bob", because=8)))[0] == 0
    status, out, _ = sluice("rules", "test", rules, "--suite", suite(case(auth="bob", because=5)))
    assert status == 1 and "no rule on line 5 allows it" in out


# coverage

def test_coverage_as_text_and_page(rules, suite, tmp_path):
    cases = case()["cases"] + case(auth="<b>", expect="deny")["cases"]
    page = tmp_path / "coverage.html"
    status, out, _ = sluice("rules", "test", rules, "--suite", suite({"cases": cases}),
                            "--coverage", "--coverage-html", page)
    assert status == 0
    assert f"{rules}: 9 of " in out
    assert "4 allow statements: 1 with several outcomes, 0 with one only, 3 never asked.\n" in out
    assert "5:5  allow get  → false ×1, true ×1\n" in out
    assert "5:19  request.auth.uid == 'alice'  → false ×1, true ×1\n" in out
    assert "8:22  request.time > timestamp.date(2026, 1, 1)  → never evaluated\n" in out
    html = page.read_text()
    assert html.startswith("<!doctype html>") and html.rstrip().endswith("</html>")
    assert "<code>request.auth.uid == 'alice'</code></td><td>2</td><td><ul><li>false ×1</li>" in html
    assert "<li>'&lt;b&gt;' ×1" in html and "'<b" not in html
    assert "never evaluated" in html and '<a href="#L5">5</a>' in html
    for outside in ("http:", "https:", "<script", "src=", "url("):
        assert outside not in html
    assert sluice("rules", "test", rules, "--suite", suite({"cases": cases}),
                  "--coverage-html", tmp_path / "no" / "x.html")[0] == 2


# explain

def explain(rules, method, *arguments):
    return sluice("rules", "explain", rules, "--method", method, "--path", "/b/photos/o/x",
                  *arguments)


@pytest.mark.parametrize("method,arguments,status", [
    ("get", ["--auth", "alice", "--param", "x=1"], 0),
    ("get", ["--auth", '{"uid": "alice", "token": {"a": [1]}}', "--param", "x=1"], 0),
    ("get", ["--auth", "alice"], 3),
    ("get", ["--auth", "null", "--param", "x=1"], 3),
    ("list", [], 3),
    ("create", [], 4),
    ("create", ["--new", '{"size": 9}'], 4),
    ("create", ["--new", '{"size": 10}'], 3),
    ("create", ["--new", '{"size": 9}', "--resource", "null"], 0),
    ("create", ["--new", '{"size": 9}', "--resource", '{"size": 1}'], 3),
    ("update", [], 4),
    ("update", ["--document", "users/a={ok: true}"], 0),
    ("update", ["--document", "/databases/(default)/documents/users/a=absent"], 3),
    ("delete", ["--time", "2026-05-01T12:00:00Z"], 0),
    ("delete", ["--time", "2025-05-01T12:00:00Z"], 3),
])
def test_explain_has_a_status_for_each_decision(rules, method, arguments, status):
    response = explain(rules, method, *arguments)
    assert response[0] == status and not response[2]
    assert response[1].startswith({0: "allowed\n", 3: "denied: ", 4: "undecided: it depends on "}[status])
    as_json = json.loads(explain(rules, method, *arguments, "--format", "json")[1])
    assert as_json["decision"] == {0: "ALLOW", 3: "DENY", 4: "UNKNOWN"}[status]


def test_explain_lists_missing_inputs(rules):
    assert "it depends on resource, request.resource.size\n" in explain(rules, "create")[1]
    needs = json.loads(explain(rules, "create", "--format", "json")[1])["needs"]
    assert needs == ["resource", "request.resource.size"]
    assert "it depends on /databases/(default)/documents/users/a\n" in explain(rules, "update")[1]


UPDATE = """rules_version = '2';
service firebase.storage {
  match /b/{bucket}/o/{name} {
    allow update: if request.resource.contentType == resource.contentType
      && request.resource.size == 5 && !('timeCreated' in request.resource);
  }
}
"""


@pytest.mark.parametrize("arguments,status", [
    ([], 4),
    (["--new", '{"size": 4}'], 3),
    (["--resource", '{"size": 5, "contentType": "a/b", "timeCreated": "2026-01-01T00:00:00Z"}'], 0),
    (["--resource", '{"size": 5, "contentType": "a/b"}', "--new", '{"contentType": "b/c"}'], 3),
    (["--resource", '{"size": 5, "contentType": "a/b"}', "--new", '{"metadata": {"a": "b"}}'], 0),
    (["--resource", "null"], 3),
])
def test_explain_of_an_update_merges_the_change(rules, arguments, status):
    rules.write_text(UPDATE)
    response = explain(rules, "update", *arguments)
    assert response[0] == status, response


def test_a_case_of_an_update_merges_the_change(rules, suite):
    rules.write_text(UPDATE)
    old = {"size": 5, "contentType": "a/b", "timeCreated": "2026-01-01T00:00:00Z"}
    file = suite({"cases": case(method="update", resource=old)["cases"] + case(
        method="update", resource=old, expect="deny",
        **{"request.resource": {"contentType": "b/c"}})["cases"]})
    assert sluice("rules", "test", rules, "--suite", file)[0] == 0


def test_explain_as_json_has_the_tree(rules):
    tree = json.loads(explain(rules, "get", "--auth", "bob", "--format", "json")[1])
    assert tree["reason"] == "notAllowed"
    block = tree["blocks"][0]
    assert block["captures"] == {"bucket": "'photos'", "name": "'x'"}
    rule = block["rules"][0]
    assert rule["methods"] == "get" and rule["sourcePosition"]["line"] == 5
    assert rule["condition"]["parts"][0]["text"] == "request.auth.uid == 'alice'"
    assert rule["condition"]["parts"][0]["outcome"] == {"value": False}


def test_explain_of_rules_that_can_not_be_used(rules):
    rules.write_text(BROKEN)
    status, out, err = explain(rules, "get")
    assert (status, out) == (2, "") and f"{rules}:4:17: error: " in err
    assert explain(rules.with_name("missing"), "get")[0] == 2


def on_terminal(*arguments, **environment):
    """Runs the program with a terminal as its output; returns the output."""
    primary, secondary = pty.openpty()
    clean = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    process = subprocess.Popen([str(BINARY), *map(str, arguments)], stdout=secondary,
                               env={**clean, "TERM": "xterm", **environment})
    os.close(secondary)
    output = b""
    try:
        while chunk := os.read(primary, 65536):
            output += chunk
    except OSError:  # the other side is closed
        pass
    os.close(primary)
    process.wait(timeout=60)
    return output.decode()


def test_colours_are_only_for_terminals(rules):
    words = ["rules", "explain", rules, "--method", "get", "--path", "/b/photos/o/x"]
    assert "\x1b[31mdenied\x1b[0m" in on_terminal(*words)
    assert "\x1b" not in on_terminal(*words, NO_COLOR="1")
    assert "\x1b" not in on_terminal(*words, TERM="dumb")
    assert "\x1b" not in sluice(*words)[1]


# fmt

UGLY = FINE.replace("    allow", "allow").replace(" && ", "&&")


def test_fmt_prints(rules):
    rules.write_text(UGLY)
    assert sluice("rules", "fmt", rules) == (0, FINE, "")
    assert rules.read_text() == UGLY


def test_fmt_checks(rules):
    assert sluice("rules", "fmt", "--check", rules) == (0, "", "")
    rules.write_text(UGLY)
    assert sluice("rules", "fmt", "--check", rules) == (1, f"{rules}\n", "")
    assert rules.read_text() == UGLY


def test_fmt_writes_and_keeps_what_is_not_text(rules):
    rules.write_text(UGLY)
    rules.chmod(0o666)
    link = rules.with_name("link.rules")
    link.symlink_to(rules)
    assert sluice("rules", "fmt", "--write", link) == (0, "", "")
    assert rules.read_text() == FINE and link.is_symlink()
    assert stat.S_IMODE(rules.stat().st_mode) == 0o666
    assert sorted(file.name for file in rules.parent.iterdir()) == ["link.rules", "storage.rules"]


def test_fmt_of_invalid_rules_changes_nothing(rules):
    rules.write_text(BROKEN)
    other = rules.with_name("other.rules")
    other.write_text(UGLY)
    status, out, err = sluice("rules", "fmt", "--write", rules, other)
    assert (status, out) == (2, "") and f"{rules}:4:17: error: " in err
    assert rules.read_text() == BROKEN and other.read_text() == FINE
    assert sluice("rules", "fmt", rules.with_name("missing"))[0] == 2


def test_fmt_reads_standard_input():
    done = subprocess.run([str(BINARY), "rules", "fmt", "-"], input=UGLY, text=True,
                          capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, FINE)


# Rules and their buckets

DOUBTFUL = """rules_version = '2';
service firebase.storage {
  match /b/photos/o/{name} {
    allow create: if request.resource.contentType == 'a/b';
    allow create: if request.resource.size < 10;
    allow delete: if resource.size < 10;
    allow update: if request.resource.contentType == 'a/b';
    allow update: if resource.contentType == 'a/b';
  }
}
"""
S3 = "s3: { bucket: b, endpoint: http://127.0.0.1:1, accessKeyId: a, secretAccessKey: b, conditionalWrites: no }"


def configured(tmp_path, rules, store, more=""):
    rules.write_text(DOUBTFUL)
    file = tmp_path / "sluice.yaml"
    file.touch(0o600)
    file.write_text(f"rules: {rules}\nlisten: {{ http: 127.0.0.1:0, operator: null }}\n"
                    f"buckets: {{ photos: {{ {store}{more} }} }}\n")
    return file


def test_check_warns_of_rules_that_do_not_fit_their_bucket(tmp_path, rules):
    directory = f"directory: {{ path: {tmp_path}/photos }}"
    status, _, error = sluice("check", configured(tmp_path, rules, directory))
    assert status == 0 and [line.split(": ")[0] for line in error.splitlines()] == [f"{rules}:4:5"]
    assert "anonymous callers upload" in error
    assert sluice("check", configured(tmp_path, rules, directory, ", maximumObjectSize: 1GiB"))[2] == ""
    for verb in (["check"], ["rules", "check", "--config"]):
        status, _, error = sluice(*verb, configured(tmp_path, rules, S3, ", maximumObjectSize: 1GiB"))
        assert status == 0
        assert [line.split(": ")[0] for line in error.splitlines()] == [f"{rules}:{line}:5" for line in (6, 7, 8)]
        assert all("can never allow" in line for line in error.splitlines())
    status, _, _ = sluice("rules", "check", "--warnings-as-errors", "--config",
                          configured(tmp_path, rules, S3))
    assert status == 1
    assert sluice("rules", "check")[0] == 64
