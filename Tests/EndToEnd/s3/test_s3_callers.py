"""Callers of the S3 API: access keys, temporary credentials, Bearer tokens, and the same rules as for all others."""

import http.client
import re
import urllib.parse

import boto3
import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

import s3_clients
from program import log_lines, new_token, wait_until
from rulesets import rules
from s3_clients import fails
from secret_words import secret
from wire import Wire

RULES = rules(
    "match /images/{rest=**} { allow read, write: if request.auth.uid == 'alice'; }",
    "match /of/{uid}/{rest=**} { allow read, write: if request.auth.uid == uid; }",
    "match /public/{name} { allow get; }",
    "match /small/{name} { allow create: if request.resource.size < 10 && request.resource.contentType == 'text/plain'; }")


class Gateway:
    """A gateway with rules, access keys of alice and bob, and a static token of carol."""

    def __init__(self, launch, tmp_path):
        self.alice, self.bob = s3_clients.Key("alice"), s3_clients.Key("bob", "batch")
        self.keys = s3_clients.write_keys(tmp_path / "s3-keys", self.alice, self.bob)
        self.token, entry = new_token("carol")
        self.rules = tmp_path / "rules"
        self.rules.write_text(RULES)
        self.server = launch(
            s3=True, rules=self.rules,
            extra=f"s3: {{ keys: {self.keys}, domains: [s3.example.com] }}\ntokens:\n{entry}\n")

    def client(self, key):
        return s3_clients.client(self.server, key)

    def sts(self, **form):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.s3, timeout=60)
        body = urllib.parse.urlencode({"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15",
                                       "RoleArn": "arn:aws:iam::000000000000:role/any", "RoleSessionName": "test", **form})
        connection.request("POST", "/", body, {"Content-Type": "application/x-www-form-urlencoded"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text


@pytest.fixture
def gateway(launch, tmp_path):
    return Gateway(launch, tmp_path)


def element(name, text):
    return re.search(f"<{name}>([^<]*)</{name}>", text).group(1)


def test_the_rules_decide(gateway):
    alice, bob, nobody = gateway.client(gateway.alice), gateway.client(gateway.bob), gateway.client(None)
    alice.put_object(Bucket="photos", Key="images/a", Body=b"bytes")
    assert alice.get_object(Bucket="photos", Key="images/a")["Body"].read() == b"bytes"
    for other in (bob, nobody):
        for call in (lambda: other.get_object(Bucket="photos", Key="images/a"),
                     lambda: other.get_object(Bucket="photos", Key="images/none"),
                     lambda: other.put_object(Bucket="photos", Key="images/b", Body=b"x"),
                     lambda: other.delete_object(Bucket="photos", Key="images/a"),
                     lambda: other.list_objects_v2(Bucket="photos", Prefix="images/"),
                     lambda: other.copy_object(Bucket="photos", Key="of/bob/a", CopySource="photos/images/a")):
            with fails(403, "AccessDenied"):
                call()
    errors = bob.delete_objects(Bucket="photos", Delete={"Objects": [{"Key": "images/a"}, {"Key": "of/bob/x"}]})["Errors"]
    assert [(item["Key"], item["Code"]) for item in errors] == [("images/a", "AccessDenied")]
    assert alice.get_object(Bucket="photos", Key="images/a")["Body"].read() == b"bytes"
    with fails(404, "NoSuchKey"):
        nobody.get_object(Bucket="photos", Key="public/none")


def test_the_rules_read_the_true_facts(gateway):
    bob = gateway.client(gateway.bob)
    bob.put_object(Bucket="photos", Key="small/a", Body=b"bytes", ContentType="text/plain")
    for more in ({"Body": bytes(10), "ContentType": "text/plain"}, {"Body": b"x", "ContentType": "image/png"}):
        with fails(403, "AccessDenied"):
            bob.put_object(Bucket="photos", Key="small/b", **more)


def test_the_same_request_by_the_native_api(gateway):
    """Decision, caller and log line are the same; the access line has the operation."""
    wire = Wire(gateway.server)
    native = wire.call("PUT", "/b/photos/o/images/x", [f"Authorization: Bearer {gateway.token}"], "bytes")
    assert native.status == 403
    status, text = bearer(gateway, "PUT", "/photos/images/x", b"bytes")
    assert status == 403 and "AccessDenied" in text
    wait_until(lambda: len(log_lines(gateway.server, "sluice.decisions")) >= 2, what="two decisions")
    first, second = log_lines(gateway.server, "sluice.decisions")[:2]
    for line in (first, second):
        del line["time"]
        for key in ("request", "duration_us", "path", "peer"):
            del line["metadata"][key]
    assert first == second
    lines = [line for line in log_lines(gateway.server, None) if line.get("path", "").endswith("/images/x")]
    assert [line.get("s3_operation") for line in lines] == [None, "PutObject"]
    assert len({(line["principal"], line["group"], line["operation"], line["status"], line["cause"]) for line in lines}) == 1


def bearer(gateway, method, target, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", gateway.server.s3, timeout=60)
    connection.request(method, target, body, {"Authorization": f"Bearer {gateway.token}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_a_bearer_token(gateway):
    assert bearer(gateway, "PUT", "/photos/of/carol/a", b"x")[0] == 200
    assert bearer(gateway, "GET", "/photos/of/carol/a") == (200, "x")
    assert bearer(gateway, "GET", "/photos/of/alice/a")[0] == 403


def test_an_anonymous_upload_in_chunks(launch, tmp_path):
    """An SDK without credentials sends its checksum in a trailer, too."""
    server = launch(s3=True, extra=f"s3: {{ keys: {s3_clients.write_keys(tmp_path / 'keys', s3_clients.Key('alice'))} }}\n")
    nobody = s3_clients.client(server, tls=True)
    nobody.put_object(Bucket="photos", Key="a", Body=b"bytes", ChecksumAlgorithm="CRC32")
    assert nobody.get_object(Bucket="photos", Key="a")["Body"].read() == b"bytes"
    with fails(403, "AccessDenied"):
        nobody.list_buckets()


def test_rotation_and_revocation(gateway):
    again = s3_clients.Key("alice")
    gateway.client(gateway.alice).put_object(Bucket="photos", Key="images/a", Body=b"x")
    s3_clients.write_keys(gateway.keys, gateway.bob, again)
    wait_until(lambda: "S3 keys loaded" in gateway.server.output(), what="the new keys")
    gateway.client(again).get_object(Bucket="photos", Key="images/a")
    with fails(403, "InvalidAccessKeyId"):
        gateway.client(gateway.alice).get_object(Bucket="photos", Key="images/a")
    gateway.keys.write_text("nonsense\n")
    wait_until(lambda: "S3 keys not loaded" in gateway.server.output(), what="the refusal of the file")
    gateway.client(again).get_object(Bucket="photos", Key="images/a")


def test_a_presigned_url_that_is_used_again_and_again(gateway):
    """Its signature is verified once or twice; its time, the rules and the keys count each time."""
    alice = gateway.client(gateway.alice)
    alice.put_object(Bucket="photos", Key="images/a", Body=b"0123456789")
    target = urllib.parse.urlsplit(alice.generate_presigned_url("get_object", Params={
        "Bucket": "photos", "Key": "images/a", "ResponseContentType": "text/x-own"}, ExpiresIn=900))

    def get(fields=(), method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", gateway.server.s3, timeout=60)
        connection.request(method, f"{target.path}?{target.query}", headers={"Host": target.netloc, **dict(fields)})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, answer.getheader("Content-Type"), body

    for start in range(6):
        assert get({"Range": f"bytes={start}-"}) == (206, "text/x-own", b"0123456789"[start:])
    alice.put_object(Bucket="photos", Key="images/a", Body=b"new bytes")
    assert get() == (200, "text/x-own", b"new bytes")
    assert get({"x-amz-meta-unsigned": "1"})[0] == 403 and get({"Host": "other.example.com"})[0] == 403
    assert get(method="HEAD")[0] == 403 and get()[0] == 200
    wait_until(lambda: [line.get("principal") for line in log_lines(gateway.server, None)
                        if line.get("status") in (200, 206) and line.get("method") == "GET"] == ["alice"] * 8,
               what="the access lines")
    gateway.rules.write_text(RULES.replace("'alice'", "'bob'"))
    wait_until(lambda: get()[0] == 403, what="the new rules")
    gateway.rules.write_text(RULES)
    wait_until(lambda: get()[0] == 200, what="the old rules")
    s3_clients.write_keys(gateway.keys, gateway.bob)
    wait_until(lambda: "S3 keys loaded" in gateway.server.output(), what="the new keys")
    assert b"InvalidAccessKeyId" in get()[2]


@pytest.mark.parametrize("prefix", ["images//", "images/a//b", "images///"])
def test_no_name_has_an_empty_segment(gateway, prefix):
    """A list of them is empty for who may list the folder before it, and denied for others."""
    for arguments in ({}, {"Delimiter": "/"}):
        page = gateway.client(gateway.alice).list_objects_v2(Bucket="photos", Prefix=prefix, **arguments)
        assert page["KeyCount"] == 0 and not page["IsTruncated"] and page["Prefix"] == prefix
        with fails(403, "AccessDenied"):
            gateway.client(gateway.bob).list_objects_v2(Bucket="photos", Prefix=prefix, **arguments)
    with fails(403, "AccessDenied"):
        gateway.client(gateway.alice).list_objects_v2(Bucket="photos", Prefix="//")


def test_the_group_of_a_key(gateway):
    gateway.client(gateway.bob).put_object(Bucket="photos", Key="of/bob/a", Body=b"x")
    wait_until(lambda: any(line.get("principal") == "bob" for line in log_lines(gateway.server, None)), what="the access line")
    line = next(line for line in log_lines(gateway.server, None) if line.get("principal") == "bob")
    assert line["group"] == "batch"


def test_an_sdk_without_any_access_key(gateway, tmp_path, monkeypatch):
    (tmp_path / "token").write_text(gateway.token)
    for name, value in (("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token")),
                        ("AWS_ROLE_ARN", "arn:aws:iam::000000000000:role/any"),
                        ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{gateway.server.s3}"), ("AWS_REGION", "us-east-1"),
                        ("AWS_DEFAULT_REGION", "us-east-1"), ("AWS_EC2_METADATA_DISABLED", "true")):
        monkeypatch.setenv(name, value)
    s3 = boto3.session.Session().client("s3", config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"))
    s3.put_object(Bucket="photos", Key="of/carol/a", Body=b"x")
    with fails(403, "AccessDenied"):
        s3.put_object(Bucket="photos", Key="of/alice/a", Body=b"x")
    assert boto3.session.Session().client("sts").get_caller_identity()["UserId"] == "carol"


def test_temporary_credentials(gateway):
    status, text = gateway.sts(WebIdentityToken=gateway.token)
    assert status == 200, text
    made = {name: element(name, text) for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")}
    secret(made["SecretAccessKey"]), secret(made["SessionToken"])
    assert made["AccessKeyId"].startswith("ASIA") and element("SubjectFromWebIdentityToken", text) == "carol"

    def client(**change):
        found = {**made, **change}
        key = type("", (), {"id": found["AccessKeyId"], "secret": found["SecretAccessKey"]})
        return s3_clients.client(gateway.server, key, token=found["SessionToken"])

    client().put_object(Bucket="photos", Key="of/carol/a", Body=b"x")
    with fails(403, "SignatureDoesNotMatch"):
        client(SecretAccessKey="x" * 40).get_object(Bucket="photos", Key="of/carol/a")
    with fails(400, "InvalidToken"):
        client(SessionToken=made["SessionToken"][:-4] + "AAAA").get_object(Bucket="photos", Key="of/carol/a")
    with fails(400, "InvalidToken"):
        client(AccessKeyId=made["AccessKeyId"][:-1] + "A").get_object(Bucket="photos", Key="of/carol/a")


@pytest.mark.parametrize(("form", "status", "code"), [
    ({"WebIdentityToken": "nonsense"}, 400, "InvalidIdentityToken"), ({"WebIdentityToken": ""}, 400, "ValidationError"),
    ({"RoleArn": "x"}, 400, "ValidationError"), ({"DurationSeconds": "899"}, 400, "ValidationError"),
    ({"Policy": "{}"}, 400, "ValidationError"), ({"PolicyArns.member.2.arn": "x"}, 400, "ValidationError"),
    ({"RoleSessionName": "x" * 40_000}, 400, "ValidationError"), ({"RoleSessionName": b"\xff"}, 400, "ValidationError"),
    ({"Action": "GetSessionToken"}, 400, "InvalidAction"),
    ({"Action": "GetCallerIdentity"}, 403, "MissingAuthenticationToken")])
def test_wrong_requests_for_credentials(gateway, form, status, code):
    found, text = gateway.sts(**{"WebIdentityToken": gateway.token, **form})
    assert found == status and element("Code", text) == code and "<ErrorResponse" in text, text


def test_virtual_hosts(gateway):
    gateway.client(gateway.alice).put_object(Bucket="photos", Key="images/a", Body=b"x")
    assert Wire(gateway.server).call("GET", "/public/none", ["Host: photos.s3.example.com"]).status == 404
    for host, target in (("photos.s3.example.com", "/images/a"), ("s3.example.com", "/photos/images/a")):
        answer = Wire(gateway.server).call("GET", target, [f"Host: {host}"])
        assert answer.status == 403 and b"<Code>AccessDenied</Code>" in answer.body, answer
    assert Wire(gateway.server).call("GET", "/b/photos/o/public/none", ["Host: elsewhere.example"]).status == 404


@pytest.mark.parametrize(("host", "forwarded", "status"), [
    ("photos.s3.example.com", None, 200), ("inside", "photos.s3.example.com", 403),
    ("other.s3.example.com", "photos.s3.example.com", 403), ("photos.s3.example.com", "other.s3.example.com", 200)])
def test_hosts_of_buckets_behind_a_proxy(launch, tmp_path, host, forwarded, status):
    """A signature for one bucket's host does not count for another bucket."""
    key = s3_clients.Key("alice")
    server = launch(s3=True, arguments=("--set", "listen.trustedProxies=127.0.0.1"), buckets="".join(
        f"  {name}: {{ directory: {{ path: {tmp_path}/{name} }} }}\n" for name in ("photos", "other", "a")),
        extra=f"s3: {{ keys: {s3_clients.write_keys(tmp_path / 'keys', key)}, domains: [s3.example.com] }}\n")
    s3 = s3_clients.client(server, key)
    for bucket, name in (("photos", "a/b"), ("other", "a/b"), ("a", "b")):
        s3.put_object(Bucket=bucket, Key=name, Body=bucket.encode())
    request = AWSRequest("GET", "http://photos.s3.example.com/a/b")
    S3SigV4QueryAuth(Credentials(key.id, key.secret), "s3", "us-east-1", 60).add_auth(request)
    target = request.url.removeprefix("http://photos.s3.example.com")
    connection = http.client.HTTPConnection("127.0.0.1", server.s3, timeout=60)
    connection.request("GET", target, headers={
        "Host": host, **({"X-Forwarded-Host": forwarded} if forwarded else {})})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == status and (status != 200 or body == b"photos"), body


def test_only_what_the_rules_show_is_listed(launch, tmp_path):
    key = s3_clients.Key("alice")
    (tmp_path / "rules").write_text(rules(
        "match /a/{name} { allow list, create; allow get: if name == 'shown'; }", "match /a { allow list; }"))
    for listing, names in (("readable", ["a/shown"]), ("listed", ["a/hidden", "a/shown"])):
        server = launch(s3=True, rules=tmp_path / "rules",
                        extra=f"s3: {{ keys: {s3_clients.write_keys(tmp_path / 'keys', key)}, listing: {listing} }}\n")
        s3 = s3_clients.client(server, key)
        for name in ("hidden", "shown"):
            s3.put_object(Bucket="photos", Key=f"a/{name}", Body=b"x")
        assert [item["Key"] for item in s3.list_objects_v2(Bucket="photos", Prefix="a/")["Contents"]] == names


def test_the_region(launch, tmp_path):
    key = s3_clients.Key("alice")
    server = launch(s3=True, extra=f"s3: {{ keys: {s3_clients.write_keys(tmp_path / 'keys', key)}, region: eu-north-1 }}\n")
    here = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server.s3}", aws_access_key_id=key.id,
                        aws_secret_access_key=key.secret, region_name="eu-north-1")
    assert here.get_bucket_location(Bucket="photos")["LocationConstraint"] == "eu-north-1"
    with fails(400, "AuthorizationHeaderMalformed"):
        s3_clients.client(server, key).list_buckets()
