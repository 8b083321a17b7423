"""The fixture of the signer's Swift tests is up to date with botocore."""

import pathlib

import pytest

pytest.importorskip("botocore")

import s3_signatures  # noqa: E402

KEPT = pathlib.Path(__file__).parents[2] / "CredentialsTests" / "Fixtures" / "signatures.jsonl"


def test_the_kept_signatures_are_botocores():
    assert KEPT.read_text().splitlines() == s3_signatures.lines()
