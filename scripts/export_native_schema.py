#!/usr/bin/env python3
"""Write the JSON Schemas of flashinfer-bench's native models into the library; with --check only compare.

The checker validates against these files and therefore needs neither flashinfer-bench nor torch.
"""

import argparse

from inference_kernels.cli import fail, run_main


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--check", action="store_true", help="change nothing; exit 1 if a schema is out of date")
    return result


def main() -> int:
    options = parser().parse_args()
    from inference_kernels.core import native
    from inference_kernels.core.files import write_text

    schemas = native.exported_schemas()
    stale = [path for path, text in schemas.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if options.check:
            fail(
                f"{path.name}: expected the schema of the installed models; found a difference; "
                "run: python scripts/export_native_schema.py"
            )
        else:
            write_text(path, schemas[path])
            print(path.name)
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    run_main(main)
