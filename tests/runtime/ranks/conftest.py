"""The pool of ranks that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from .pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    made = Pool()
    made.start()
    yield made
    made.close()
