"""The requests that the signer's Swift tests read are signed by botocore, and not by anything of ours."""

import pathlib

import pytest

pytest.importorskip("botocore")

import s3_signatures  # noqa: E402

KEPT = pathlib.Path(__file__).parents[2] / "CredentialsTests" / "Fixtures" / "signatures.jsonl"


def test_the_kept_signatures_are_botocores():
    assert KEPT.read_text().splitlines() == s3_signatures.lines()
