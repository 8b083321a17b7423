"""sluice rules diff and prove: output, exit statuses, and test cases that the suite runner accepts."""

import json

import pytest

from program import sluice

OLD = """rules_version = '2';
service firebase.storage { match /b/{bucket}/o {
  match /users/{uid}/{file=**} {
    allow read: if request.auth != null;
    allow write: if request.auth.uid == uid && request.resource.size < 5 * 1024 * 1024;
  }
} }
"""


@pytest.fixture
def files(tmp_path):
    old, new = tmp_path / "old.rules", tmp_path / "new.rules"
    old.write_text(OLD)
    new.write_text(OLD.replace("request.auth.uid == uid &&", "request.auth != null &&"))
    return old, new


def test_diff_shows_a_request_that_only_the_new_rules_allow(files):
    old, new = files
    status, out, err = sluice("rules", "diff", old, new)
    assert (status, err) == (1, "")
    assert out == (f"{new}:5:5 allows what {old} denies, for example:\n"
                   "  create users/bob/a.jpg   auth.uid = \"alice\", size = 1\n"
                   "  update users/bob/a.jpg   auth.uid = \"alice\", size = 1\n"
                   "1 of 2 statements changed. Newly allowed: create, update; nothing for get, list, delete (proven). "
                   "Newly denied: nothing (proven).\n")


def test_a_change_that_only_denies_is_fine(files):
    old, new = files
    status, out, _ = sluice("rules", "diff", new, old)
    assert status == 0 and "Newly allowed: nothing (proven)." in out and "allowed what" in out
    assert sluice("rules", "diff", old, old)[0] == 0


def test_the_result_is_a_suite(files, tmp_path):
    old, new = files
    suite = tmp_path / "suite.json"

    def write(*arguments):
        status, out, err = sluice("rules", *arguments, "--json")
        suite.write_text(out)
        assert err == "" and out == sluice("rules", *arguments, "--format", "json")[1]
        return status, json.loads(out)

    status, found = write("diff", old, new)
    assert status == 1 and found["analysis"]["opened"]["statements"][0]["cases"] == [0, 1]
    assert [case["name"] for case in found["cases"]] == ["create users/bob/a.jpg is newly allowed",
                                                         "update users/bob/a.jpg is newly allowed"]
    assert sluice("rules", "test", new, "--suite", suite)[0] == 0
    assert "2 failed" in sluice("rules", "test", old, "--suite", suite)[1]

    status, found = write("prove", new, "--never", "create users/{uid}/** by other uid", "--never", "write by anonymous")
    assert status == 1 and [one["state"] for one in found["analysis"]["properties"]] == ["CONTRADICTED", "PROVEN"]
    assert "1 failed" in sluice("rules", "test", new, "--suite", suite)[1]
    assert sluice("rules", "test", old, "--suite", suite)[0] == 0

    status, found = write("diff", old, old)
    assert (status, found["cases"]) == (0, [])
    assert sluice("rules", "test", old, "--suite", suite)[:2] == (0, "0 cases: 0 passed, 0 failed\n")


def test_what_is_not_decided_is_named(files):
    old, new = files
    new.write_text(OLD.replace("request.auth.uid == uid", "hashing.md5(request.auth.uid) == b'x'"))
    status, out, _ = sluice("rules", "diff", old, new, "--explain")
    assert status == 4 and "not decided" in out
    assert f"{new}:5:21: hashing.md5(request.auth.uid)" in out


def test_prove(files, tmp_path):
    old, new = files
    never = ("--never", "write by anonymous", "--never", "create, update users/{uid}/** by other uid")
    assert sluice("rules", "prove", old, *never) == (
        0, "✓ proven: never write by anonymous\n✓ proven: never create, update users/{uid}/** by other uid\n", "")
    status, out, _ = sluice("rules", "prove", new, *never)
    assert status == 1 and f"✗ counterexample: never create, update users/{{uid}}/** by other uid\n  {new}:5:5 allows\n  create " in out
    properties = tmp_path / "safety.txt"
    properties.write_text("# nobody\nread by anonymous\ncreate when request.resource.size > 10 * 1024 * 1024\n")
    status, out, _ = sluice("rules", "prove", old, "--properties", properties)
    assert status == 0 and out.count("✓ proven") == 2
    properties.write_text("# read by anonymous\n")
    status, out, err = sluice("rules", "prove", old, "--properties", properties)
    assert (status, out) == (2, "") and "have no property" in err
    properties.write_text("read by nobody\n")
    status, out, err = sluice("rules", "prove", old, "--properties", properties)
    assert (status, out) == (2, "") and err.startswith(f"{properties}:1: error: 'nobody' is no caller")


def test_check_proves_what_is_useless(files):
    old, _ = files
    old.write_text(OLD.replace("request.auth != null", "request.auth.uid == uid && request.auth == null"))
    assert sluice("rules", "check", old)[1] == f"{old}: no errors, no warnings\n"
    status, out, err = sluice("rules", "check", "--prove", old)
    assert (status, out) == (0, f"{old}: no errors, 1 warning\n")
    assert f"{old}:4:5: warning: This statement never allows a request.\n" in err
    assert sluice("rules", "check", "--prove", "--warnings-as-errors", old)[0] == 1


@pytest.mark.parametrize("arguments", [
    ("prove", "x"), ("prove", "x", "--never", "eat"), ("prove", "x", "--never", "get", "--time-limit", "0"),
    ("diff", "x"), ("diff", "-", "-"), ("diff", "x", "y", "--time-limit", "x"),
])
def test_wrong_usage(arguments):
    assert sluice("rules", *arguments)[0] == 64


def test_unreadable_rules(files, tmp_path):
    old, _ = files
    broken = tmp_path / "broken.rules"
    broken.write_text("service")
    for path in (broken, tmp_path / "missing"):
        assert sluice("rules", "diff", old, path)[0] == 2
        assert sluice("rules", "prove", path, "--never", "get")[0] == 2


def test_without_z3_it_says_what_to_install(files, tmp_path):
    # The loader looks here first, and what it finds is no library.
    (tmp_path / "libz3.so.4").write_text("")
    for name in ("libz3.so.4.8", "libz3.so"):
        (tmp_path / name).write_text("")
    old, new = files
    status, out, err = sluice("rules", "diff", old, new, environment={"LD_LIBRARY_PATH": str(tmp_path)})
    assert (status, out) == (5, "") and "apt-get install libz3-4" in err
