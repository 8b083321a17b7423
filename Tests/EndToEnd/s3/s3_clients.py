"""Access keys and boto3 clients for the gateway's S3 API."""

import contextlib
import subprocess
import warnings

import boto3
import botocore.exceptions
from botocore.config import Config

from program import BINARY
from secret_words import secret

warnings.filterwarnings("ignore", message=".*Unverified HTTPS request.*")


class Key:
    """A new access key of a caller."""

    def __init__(self, uid, group=None):
        more = [] if group is None else ["--group", group]
        done = subprocess.run([str(BINARY), "s3", "new-key", uid, *more], capture_output=True, text=True, check=True)
        self.line = done.stdout
        self.id, self.secret, self.uid, *_ = done.stdout.split()
        secret(self.secret)


def write_keys(path, *keys):
    """Writes a key file; returns its path."""
    path.write_text("".join(key.line for key in keys))
    path.chmod(0o600)
    return path


def client(server, key=None, tls=False, token=None, **config):
    """A boto3 client; an anonymous one without a key."""
    config = {"signature_version": botocore.UNSIGNED} if key is None else {"signature_version": "s3v4", **config}
    return boto3.client(
        "s3", endpoint_url=f"https://127.0.0.1:{server.s3_tls}" if tls else f"http://127.0.0.1:{server.s3}",
        aws_access_key_id=key and key.id, aws_secret_access_key=key and key.secret, aws_session_token=token,
        region_name="us-east-1", verify=False,
        config=Config(retries={"max_attempts": 0}, s3={"addressing_style": "path"}, read_timeout=60, **config))


@contextlib.contextmanager
def fails(status, code):
    """Expects a request to fail with this status and code."""
    try:
        yield
    except botocore.exceptions.ClientError as error:
        found = error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
        assert found == (status, code), error.response
    else:
        raise AssertionError(f"it succeeded instead of {status} {code}")
