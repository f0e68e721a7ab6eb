#!/usr/bin/env python3
"""Pack capture runs into parts of a tar file, without the tensors that a recipe rewrites.

Unpack with `cat OUT/runs.tar.gz.* | tar xz -C FOLDER`, then rewrite the tensors that were left out with
`materialize_seeded.py --run FOLDER/RUN --all`, then import the run.
"""

import argparse
import tarfile
from pathlib import Path
from typing import BinaryIO

from inference_kernels.capture.run import files_below, read_manifest
from inference_kernels.cli import print_json, run_main
from inference_kernels.seeded.materialize import run_generated_files


class Parts:
    """A write-only stream that goes on in a new file whenever one is full."""

    def __init__(self, stem: Path, limit: int):
        self.stem, self.limit, self.files, self.room = stem, limit, [], 0
        self.stream: BinaryIO | None = None

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            if not self.room:
                self.close()
                self.files.append(self.stem.with_name(f"{self.stem.name}.{len(self.files):02d}"))
                self.stream, self.room = self.files[-1].open("wb"), self.limit
            taken = self.stream.write(view[: self.room])
            self.room -= taken
            view = view[taken:]
        return len(data)

    def close(self) -> None:
        if self.stream:
            self.stream.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN", help="name in the archive and folder")
    parser.add_argument("--output", required=True, type=Path, metavar="OUT", help="folder of the parts")
    parser.add_argument("--part-bytes", type=int, default=15 * 2**20, metavar="N", help="default 15 MiB")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    parts, left_out, packed = Parts(options.output / "runs.tar.gz", options.part_bytes), 0, 0
    with tarfile.open(fileobj=parts, mode="w|gz") as archive:
        for item in options.runs:
            name, _, folder = item.partition("=")
            run = Path(folder)
            read_manifest(run)
            generated = {str(file.blob) for file in run_generated_files(run)}
            for relative in ["manifest.json", *files_below(run)]:
                if relative in generated:
                    left_out += 1
                    continue
                archive.add(run / relative, f"{name}/{relative}")
                packed += (run / relative).stat().st_size
    parts.close()
    print_json({"parts": [path.name for path in parts.files], "bytes": packed, "left_out": left_out})
    return 0


if __name__ == "__main__":
    run_main(main)
