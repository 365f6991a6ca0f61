"""`python -m shardflow.compiler` is `flowc`."""

import sys

from .cli import main

sys.exit(main())
