"""A workbench for the compiler's tests: a folder with data, models and operators, and flows compiled in it."""

import shutil
from pathlib import Path

import pytest

from .workbench import PAGES, Workbench


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    shutil.copytree(PAGES, tmp_path, dirs_exist_ok=True)
    return Workbench(tmp_path)
