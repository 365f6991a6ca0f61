from setuptools import find_packages, setup

# The four top-level folders are the subpackages of `shardflow`; there is no `shardflow/` folder.
DIRS = ("dsl", "compiler", "runtime", "stdlib")
setup(
    packages=[f"shardflow.{p}" for d in DIRS for p in find_packages(include=[d, f"{d}.*"])],
    package_dir={f"shardflow.{d}": d for d in DIRS},
)
