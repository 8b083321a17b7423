"""Digests as the fields and the metadata of objects have them."""

import base64
import hashlib

try:
    from awscrt.checksums import crc32c as crc32c_number
except ImportError:
    # upstreams.py also runs without the packages of the tests.
    def crc32c_number(data):
        value = 0xFFFFFFFF
        for byte in data:
            value ^= byte
            for _ in range(8):
                value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        return value ^ 0xFFFFFFFF


def crc32c(data):
    return base64.b64encode(crc32c_number(data).to_bytes(4, "big")).decode()


def md5(data):
    return base64.b64encode(hashlib.md5(data).digest()).decode()
