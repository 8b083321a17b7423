"""Digests as the fields and the metadata of objects have them."""

import base64
import hashlib


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return base64.b64encode((value ^ 0xFFFFFFFF).to_bytes(4, "big")).decode()


def md5(data):
    return base64.b64encode(hashlib.md5(data).digest()).decode()
