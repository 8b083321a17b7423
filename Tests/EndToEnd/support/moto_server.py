"""Starts moto, with each request for an object under one lock.

moto tests the condition of a write and stores the object in two steps, so of two writers that must each be the first
both may succeed. S3 does both in one step. It also lists all multipart uploads with the same time, and fails
with 500 for a part of an unknown upload.
"""

import functools
import inspect
import sys
import textwrap
import threading
import time

from moto.s3 import exceptions, models, responses
from moto.s3.responses import S3Response
from moto.server import main


def one_at_a_time(function):
    lock = threading.Lock()

    @functools.wraps(function)
    def locked(*arguments):
        with lock:
            return function(*arguments)
    return locked


def with_times():
    """Lists each multipart upload with the time of its creation."""
    create = models.FakeMultipart.__init__

    @functools.wraps(create)
    def created(self, *arguments, **named):
        create(self, *arguments, **named)
        self.initiated = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    models.FakeMultipart.__init__ = created
    source = textwrap.dedent(inspect.getsource(S3Response.list_multipart_uploads))
    constant = '"2010-11-10T20:48:33.000Z"'
    assert constant in source
    names = dict(vars(responses))
    exec(source.replace(constant, "upload.initiated"), names)
    S3Response.list_multipart_uploads = names["list_multipart_uploads"]


def with_known_uploads():
    """Rejects parts of uploads that do not exist as S3 does."""
    upload_part = models.S3Backend.upload_part

    @functools.wraps(upload_part)
    def checked(self, bucket_name, multipart_id, *arguments, **named):
        if multipart_id not in self.get_bucket(bucket_name).multiparts:
            raise exceptions.NoSuchUpload(upload_id=multipart_id)
        return upload_part(self, bucket_name, multipart_id, *arguments, **named)
    models.S3Backend.upload_part = checked


with_times()
with_known_uploads()
# The body of a request has been read when this is called.
S3Response._key_response = one_at_a_time(S3Response._key_response)

sys.exit(main())
