"""What all Python tests have in common: they can be run in shares."""

import os
from typing import List

import pytest


@pytest.hookimpl(trylast=True)  # after -k has chosen
def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """ONEPASS_TEST_SHARE=2/8: the second of eight shares, for eight processes side by side."""
    share, shares = map(int, os.environ.get("ONEPASS_TEST_SHARE", "1/1").split("/"))
    items[:] = items[share - 1::shares]
