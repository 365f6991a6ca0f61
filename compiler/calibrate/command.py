"""The subcommand: `flowc calibrate ROWS.json [--profile P.toml] [--fit P.toml] [--format text|json]`."""

import argparse
import json
import sys

from ..cost import DEFAULT, CostError, read_profile, write_profile
from .report import report_json, report_lines, reported
from .rows import RowError, read_rows


def calibrate_command(args: argparse.Namespace) -> int:
    """Print predicted against measured; with `--fit`, fit the constants first and write them."""
    try:
        rows = read_rows(args.rows)
        constants = read_profile(args.profile) if args.profile else DEFAULT
        if args.fit:
            from .fit import fitted

            constants = fitted(rows, constants) if args.profile else fitted(rows)
            write_profile(constants, args.fit)
        report = reported(rows, constants)
    except (RowError, CostError) as error:
        print(f"flowc: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report_json(report), indent=2) if args.format == "json" else "\n".join(report_lines(report)))
    return 0
