"""No command loses data: colliding names, overlapping folders, empty sources, files that are no files."""

import json
import os
import stat

import pytest

from faults import Alter, Status


def put(client, **objects):
    """Stores objects: `a__b` is `a/b`."""
    for name, content in objects.items():
        client.fine("put", "-", f"sluice://photos/{name.replace('__', '/')}", given=content)


def found(client, folder):
    """The objects of a folder with their content."""
    return {name: client.fine("cat", f"sluice://photos/{folder}/{name}")
            for name in client.fine("ls", "-R", f"sluice://photos/{folder}").splitlines()}


def test_sources_of_one_name_do_not_replace_each_other(client):
    put(client, two__x__a="x", two__y__a="y")
    for verb in ("cp", "mv"):
        status, _, err = client.run(verb, "photos/two/x/a", "photos/two/y/a", f"photos/two/{verb}/")
        assert status == 1 and "another source" in err
        assert found(client, f"two/{verb}") == {"a": "x"}
    assert found(client, "two/y") == {"a": "y"}
    # Two folders of one name; one object that two patterns match.
    put(client, same__a__i__1="a", same__b__i__1="b", same__b__i__2="b")
    status, _, err = client.run("mv", "-R", "photos/same/a/i", "photos/same/b/i", "photos/same/d/")
    assert status == 1 and "another source" in err
    assert found(client, "same/d") == {"i/1": "a", "i/2": "b"} and found(client, "same/b") == {"i/1": "b"}
    client.fine("mv", "photos/same/d/i/*", "photos/same/d/i/1", "photos/same/e/")
    assert found(client, "same/e") == {"1": "a", "2": "b"}


def test_files_of_one_name(client):
    for name in ("x", "y"):
        (client.home / name).mkdir()
        (client.home / name / "a").write_text(name)
    status, _, err = client.run("put", "x/a", "y/a", "photos/files/")
    assert status == 1 and "another source" in err and found(client, "files") == {"a": "x"}
    put(client, files__z__a="z")
    status, _, err = client.run("get", "photos/files/a", "photos/files/z/a", "out/")
    assert status == 1 and "another source" in err and (client.home / "out/a").read_text() == "x"


def test_a_target_that_is_a_source(client):
    put(client, nested__a="1", nested__y__a="2")
    status, _, err = client.run("mv", "-R", "photos/nested", "photos/nested/y")
    assert status == 1 and "itself a source" in err
    assert found(client, "nested") == {"a": "1", "y/y/a": "2"}
    status, _, err = client.run("mv", "photos/nested/a", "photos/nested/a")
    assert status == 1 and err and found(client, "nested/y") == {"y/a": "2"}


def test_a_move_without_conditional_deletions(through, proxy, gateway):
    target = f"{gateway.url('')}/b/other/o/moved/"
    put(through, half__a="1", half__b="2")
    proxy.fault(Status(501), method="DELETE", times=None)
    status, out, err = through.run("mv", "--json", "photos/half/*", target)
    assert status == 1 and "nothing was moved" in err and json.loads(out)["source"] == "sluice://photos/half/a"
    assert through.run("ls", "sluice://other/moved")[0] == 3
    # If that can't be known before, it stops after the first copy.
    proxy.clear()
    proxy.fault(Status(501), method="DELETE", target="half/[ab]$", times=None)
    status, _, err = through.run("mv", "-j", "1", "photos/half/*", target)
    assert status == 1 and "copied, but not deleted" in err and "was not tried" in err
    assert found(through, "half") == {"a": "1", "b": "2"} and through.fine("ls", "-R", "sluice://other/moved") == "a\n"


def test_between_buckets_the_gateway_copies_and_moves(through, proxy):
    put(through, between__a="1", between__b="2")
    proxy.requests.clear()
    through.fine("cp", "photos/between/a", "sluice://other/between/copy")
    through.fine("mv", "-R", "photos/between", "sluice://other/between/moved")
    assert {request.method for request in proxy.requests} == {"GET", "POST"}
    assert through.fine("ls", "-R", "sluice://other/between").split() == ["copy", "moved/a", "moved/b"]
    assert through.run("ls", "photos/between")[0] == 3
    assert through.fine("cat", "sluice://other/between/moved/b") == "2"


def test_within_a_bucket_the_gateway_copies_moves_and_deletes(through, proxy):
    put(through, within__a="1", within__b="2", within__c="3")
    proxy.requests.clear()
    through.fine("cp", "photos/within/a", "photos/within/copy")
    assert [request.method for request in proxy.requests] == ["POST"]
    through.fine("mv", "-R", "photos/within", "photos/elsewhere")
    assert found(through, "elsewhere") == {"a": "1", "b": "2", "c": "3", "copy": "1"}
    assert not proxy.sent("PUT") and not proxy.sent("DELETE")
    proxy.requests.clear()
    through.fine("rm", "-R", "photos/elsewhere/")
    assert [request.method for request in proxy.requests] == ["GET", "POST"]
    assert through.run("ls", "photos/elsewhere")[0] == 3


def test_a_gateway_without_copies_and_deletions_of_many(through, proxy):
    put(through, older__a="1", older__b="2")
    proxy.fault(Status(405), method="POST", times=None)
    through.fine("cp", "photos/older/a", "photos/older/c")
    through.fine("mv", "photos/older/b", "photos/older/d")
    assert found(through, "older") == {"a": "1", "c": "1", "d": "2"}
    through.fine("cp", "photos/older/d", "sluice://other/older")
    assert through.fine("cat", "sluice://other/older") == "2"
    through.fine("rm", "-R", "photos/older/")
    assert through.run("ls", "photos/older")[0] == 3


def test_an_empty_argument_is_not_the_bucket(client):
    put(client, kept__a="1")
    for argument in ("", "photos", "photos/", "photos//", "sluice://photos//"):
        status, _, err = client.run("rm", "-R", argument, environment={"SLUICE_BUCKET": "photos"})
        assert status == 1 and "bucket" in err
    assert found(client, "kept") == {"a": "1"}


@pytest.mark.parametrize("source, target", [
    ("overlap/new", "overlap"), ("overlap", "overlap/new"), ("overlap", "overlap"), ("", "overlap")])
def test_folders_that_overlap_are_not_synchronised(client, source, target):
    put(client, overlap__a="1", overlap__new__b="2")
    status, _, err = client.run("sync", "--delete", f"sluice://photos/{source}", f"sluice://photos/{target}")
    assert status == 1 and "contains the other" in err
    other = client.url.replace("127.0.0.1", "LOCALHOST")
    assert client.run("sync", "--delete", f"{other}/b/photos/o/{source}", f"sluice://photos/{target}")[0] == 1
    assert found(client, "overlap") == {"a": "1", "new/b": "2"}
    client.fine("sync", "sluice://photos/overlap/new", "sluice://photos/overlap2")


def test_nothing_is_removed_for_an_empty_source(client):
    put(client, target__a="1")
    (client.home / "local").mkdir()
    (client.home / "local/a").write_text("1")
    (client.home / "mount").mkdir()
    for source, target in (("photos/tagret", "sluice://photos/target"), ("photos/tagret", "./local"),
                           ("./mount", "photos/target")):
        for option in ((), ("--dry-run",)):
            status, out, err = client.run("sync", "--delete", *option, source, target)
            assert status == 3 and "nothing was removed" in err and "delete" not in out
    assert found(client, "target") == {"a": "1"} and (client.home / "local/a").exists()


def test_what_is_left_out_is_not_removed(client):
    put(client, linked__a="1", linked__volume__b="2", linked__gone="3", linked__volumes="4")
    site = client.home / "site"
    site.mkdir()
    (site / "a").write_text("1")
    (site / "gone").symlink_to("/nowhere/gone")
    (site / "volume").symlink_to("/")
    status, _, err = client.run("sync", "--delete", "./site", "photos/linked")
    assert status == 0 and "symbolic link" in err
    assert found(client, "linked") == {"a": "1", "volume/b": "2", "gone": "3"}


def test_left_out_beside_unreadable(client):
    site = client.home / "site"
    site.mkdir()
    (site / "bad\nname").write_text("1")
    (site / "gone").symlink_to("/nowhere/gone")
    status, out, err = client.run("put", "-R", "--json", "site", "photos/unreadable")
    assert status == 2 and len(out.splitlines()) == 1 and "line break" in out and "symbolic link" in err


def test_downloads_replace_files_only(client):
    put(client, big="x" * 1000)
    home = client.home
    os.mkfifo(home / "fifo")
    status, _, err = client.run("get", "photos/big", "fifo")
    assert status == 2 and "not a regular file" in err and stat.S_ISFIFO((home / "fifo").stat().st_mode)
    (home / "nowhere").symlink_to("absent/file")
    status, _, err = client.run("get", "photos/big", "nowhere")
    assert status == 2 and "link" in err and (home / "nowhere").is_symlink()
    (home / "real").mkdir()
    (home / "real/file").write_text("old")
    (home / "real/file").chmod(0o600)
    (home / "link").symlink_to("real/file")
    client.fine("get", "photos/big", "link")
    assert (home / "link").is_symlink() and (home / "real/file").read_text() == "x" * 1000
    assert stat.S_IMODE((home / "real/file").stat().st_mode) == 0o600
    assert not list(home.rglob(".sluice-*"))


def test_one_bad_name_is_one_failure(through, proxy):
    put(through, names__a="1", names__c="3")

    def change(status, fields, body):
        page = json.loads(body)
        page["items"].insert(1, {**page["items"][0], "fullPath": "names/b//b"})
        return status, fields, json.dumps(page).encode()

    proxy.fault(Alter(change), method="GET", target="view=full", times=None)
    for arguments in (["get", "-R", "photos/names", "out"], ["sync", "photos/names", "./again"],
                      ["cp", "-R", "photos/names", "sluice://other/names"]):
        status, _, err = through.run(*arguments)
        assert status == 1 and "b//b" in err, arguments
    for folder in ("out", "again"):
        assert sorted(os.listdir(through.home / folder)) == ["a", "c"]
    proxy.clear()
    assert through.fine("ls", "-R", "sluice://other/names") == "a\nc\n"


def test_copies_that_make_no_sense(client):
    (client.home / "a").write_text("1")
    for arguments in (["cp", "-", "./x"], ["cp", "./a", "-"], ["cp", "./a", "-", "sluice://photos/x"]):
        status, _, err = client.run(*arguments, given="1")
        assert status == 1 and err, arguments
    assert not (client.home / "x").exists()


@pytest.mark.parametrize("verb", ["get", "sync", "cp"])
def test_links_below_the_target_are_not_followed(client, verb):
    put(client, links__a="new", links__d__b="new", links__d__e__c="new", links__file="new", links__fine__x="new")
    home = client.home
    for name in ("out", "elsewhere/e"):
        (home / name).mkdir(parents=True)
    for name in ("elsewhere/b", "elsewhere/e/c", "elsewhere/file"):
        (home / name).write_text("old")
    (home / "out/d").symlink_to("../elsewhere")
    (home / "out/file").symlink_to("../elsewhere/file")
    (home / "target").symlink_to("out")
    arguments = {"get": ["get", "-R", "photos/links", "target"], "sync": ["sync", "photos/links", "./target"],
                 "cp": ["cp", "-R", "photos/links", "./target"]}[verb]
    status, _, err = client.run(*arguments)
    assert status == 2 and err.count("symbolic link") >= 3 and "target/d: a symbolic link" in err
    # The directory that was named may be a link itself.
    assert (home / "out/a").read_text() == "new" and (home / "out/fine/x").read_text() == "new"
    assert [(home / f"elsewhere/{name}").read_text() for name in ("b", "e/c", "file")] == ["old"] * 3
    assert not list(home.rglob(".sluice-*"))
    status, _, err = client.run("get", "photos/links/file", "target/")
    assert status == 2 and "symbolic link" in err and (home / "elsewhere/file").read_text() == "old"


def test_several_folders_below_a_target(client):
    put(client, several__one__a="1", several__two__a="2")
    (client.home / "out").mkdir()
    (client.home / "elsewhere").mkdir()
    (client.home / "out/two").symlink_to("../elsewhere")
    status, _, err = client.run("get", "-R", "photos/several/one", "photos/several/two", "out")
    assert status == 2 and "out/two: a symbolic link" in err
    assert (client.home / "out/one/a").read_text() == "1" and not list((client.home / "elsewhere").iterdir())


def test_names_of_unfinished_downloads(client):
    """An object that is named like them does not become one, and does not replace one."""
    put(client, parts__a="1")
    client.fine("put", "-", "photos/parts/.sluice-0-0.part", given="2")
    for arguments in (["get", "-R", "photos/parts", "out"], ["sync", "photos/parts", "./out"],
                      ["get", "photos/parts/.sluice-0-0.part", "out/"]):
        status, _, err = client.run(*arguments)
        assert status == 2 and "unfinished downloads" in err
        assert os.listdir(client.home / "out") == ["a"]
    client.fine("get", "photos/parts/.sluice-0-0.part", "other")
    # A directory of such a name is none of them.
    (client.home / "site/.sluice-d.part").mkdir(parents=True)
    (client.home / "site/.sluice-d.part/b").write_text("1")
    (client.home / "site/.sluice-e.part").write_text("1")
    client.fine("put", "-R", "site", "photos/site")
    assert client.fine("ls", "-R", "photos/site") == ".sluice-d.part/b\n"
