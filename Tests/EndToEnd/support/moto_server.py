"""Starts moto, with each request for an object under one lock.

moto tests the condition of a write and stores the object in two steps, so of two writers that must each be the first
both may succeed. S3 does both in one step.
"""

import functools
import sys
import threading

from moto.s3.responses import S3Response
from moto.server import main


def one_at_a_time(function):
    lock = threading.Lock()

    @functools.wraps(function)
    def locked(*arguments):
        with lock:
            return function(*arguments)
    return locked


# The body of a request has been read when this is called.
S3Response._key_response = one_at_a_time(S3Response._key_response)

sys.exit(main())
