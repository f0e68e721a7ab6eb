#!/usr/bin/env python3
"""Write licenses/packages.json: the licences that the packages of the project's environments state.

Run it when requirements/ has changed and the environments are built again, then run build_docs.py. Rows of
pinned packages that the environments lack are kept.
"""

import argparse
from importlib.metadata import distributions
from pathlib import Path

from inference_kernels.cli import print_json, run_main
from inference_kernels.core.layout import REPOSITORY


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument(
        "environments",
        nargs="*",
        type=Path,
        metavar="ENVIRONMENT",
        default=[REPOSITORY / ".venv", REPOSITORY / ".venv-engine"],
        help="virtual environments to read (default: .venv .venv-engine)",
    )
    result.add_argument("--root", type=Path, default=REPOSITORY, help="root whose file is written")
    return result


def main() -> int:
    options = parser().parse_args()
    from inference_kernels.core import files
    from inference_kernels.core.errors import EnvironmentMissing
    from inference_kernels.pages import licences

    folders = []
    for environment in options.environments:
        found = sorted(environment.glob("lib/python3*/site-packages"))
        if not found:
            raise EnvironmentMissing(
                expected="a virtual environment",
                found="none",
                where=str(environment),
                remedy="run `make install` and `make engine`",
            )
        folders += found
    found = licences.package_rows(distributions(path=[str(folder) for folder in folders]))
    rows = licences.merged_rows(found, options.root)
    files.write_json(options.root / licences.PACKAGES, rows)
    stated = sum(row["stated_in"] != "-" for row in rows)
    print_json({"packages": len(rows), "stated": stated})
    return 0


if __name__ == "__main__":
    run_main(main)
