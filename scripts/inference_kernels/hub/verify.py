"""A checkout and the Hub's listing, compared by hash."""

from inference_kernels.core.findings import Findings
from inference_kernels.hub.client import RemoteFile
from inference_kernels.hub.files import LocalFile, damaged, is_published


def compare(files: list[LocalFile], remote: dict[str, RemoteFile], findings: Findings) -> None:
    """Every local file is on the Hub with the same content; what only the Hub has is a warning.

    A Git LFS pointer is compared by the object it names. Files outside the published set are the Hub's own.
    """
    for item in files:
        there = remote.get(item.path)
        if there is None:
            findings.add("error", item.path, "the file on the Hub", "none", "publish it")
        elif not item.same_as(there):
            found = there.sha256 or f"git blob {there.git_sha1}"
            findings.add("error", item.path, f"SHA-256 {item.sha256} on the Hub", found, "publish it, or pull it")
    for path in sorted(set(remote) - {item.path for item in files}):
        if is_published(path):
            findings.add(
                "warning",
                path,
                "only files of this checkout on the Hub",
                "one more",
                "pull it, or delete it on the Hub",
            )


def verify(files: list[LocalFile], remote: dict[str, RemoteFile], jobs: int, findings: Findings) -> None:
    """`compare`, after every tensor that is here was hashed."""
    for error in damaged(files, jobs):
        findings.add_error(error)
    compare(files, remote, findings)
