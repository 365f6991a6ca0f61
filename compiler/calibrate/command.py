"""The subcommand: `flowc calibrate [ROWS.json] [--profile P.toml] [--fit P.toml] [--format text|json]`."""

import argparse
import json
import sys
from collections.abc import Iterator

from ..cost import DEFAULT, CostError, read_profile, write_profile
from ..targets import BadSetting
from .report import report_json, report_lines, reported
from .rows import RowError, read_rows

PUBLISHED = "the default: fitted to the published measurements that docs/cost_model.md tells of"


def calibrate_command(args: argparse.Namespace) -> int:
    """Print predicted against measured; with `--fit`, fit the constants first and write them.

    Without rows, print the constants. Raises BadSetting for a fit to none.
    """
    if args.fit and not args.rows:
        raise BadSetting("`--fit` needs measured rows: `flowc calibrate rows.json --fit FILE`")
    try:
        rows = read_rows(args.rows) if args.rows else []
        constants = read_profile(args.profile) if args.profile else DEFAULT
        if args.fit:
            from .fit import fitted

            constants = fitted(rows, constants) if args.profile else fitted(rows)
            write_profile(constants, args.fit)
        report = reported(rows, constants)
    except (RowError, CostError) as error:
        print(f"flowc: {error}", file=sys.stderr)
        return 2
    lines = [*report_lines(report), *_origin(args)]
    print(json.dumps(report_json(report), indent=2) if args.format == "json" else "\n".join(lines))
    return 0


def _origin(args: argparse.Namespace) -> Iterator[str]:
    """Where the constants come from, said where there is nothing else to say."""
    if not args.rows:
        yield f"of {args.profile}; those it leaves out are the default" if args.profile else PUBLISHED
