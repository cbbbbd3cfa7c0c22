"""What tests of the hosts share."""

import pytest


@pytest.fixture
def tok(tmp_path):
    """The tokenizer of the asynchronous trainers' model."""
    from async_rig import tokenizer

    return tokenizer(tmp_path)
