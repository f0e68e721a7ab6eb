"""Writing to a dataset repository: objects, commits and copies."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from inference_kernels.hub.client import HubError, Outgoing, api, translated


@dataclass(frozen=True)
class HubWriter:
    """Write to a dataset repository. endpoint: None for HF_ENDPOINT or huggingface.co."""

    repository: str
    endpoint: str | None = None
    revision: str = "main"

    def upload(self, files: list[Outgoing]) -> list[str]:
        """Send the large objects among `files`; return the hashes of those that the Hub now has."""
        additions = [_addition(item) for item in files]
        with translated(f"upload of {len(files)} files"):
            api(self.endpoint).preupload_lfs_files(
                self.repository, additions, repo_type="dataset", revision=self.revision, free_memory=False
            )
        return [
            item.sha256
            for item, addition in zip(files, additions, strict=True)
            if getattr(addition, "_is_uploaded", False)
        ]

    def commit(
        self,
        files: list[Outgoing],
        copies: list[tuple[str, str]],
        known: list[str],
        message: str,
        deletions: Iterable[str] = (),
    ) -> str:
        """Make one commit and return its id: `files` added, `copies` (source, target) made by the Hub.

        known: hashes that `upload` sent before, now or in an earlier run.
        """
        from huggingface_hub import CommitOperationCopy, CommitOperationDelete

        operations: list[Any] = [_addition(item, item.sha256 in known) for item in files]
        operations += [CommitOperationCopy(source, target) for source, target in copies]
        operations += [CommitOperationDelete(path, is_folder=False) for path in deletions]
        with translated(f"commit of {len(operations)} files"):
            done = api(self.endpoint).create_commit(
                self.repository, operations, commit_message=message, repo_type="dataset", revision=self.revision
            )
        return done.oid


def _addition(item: Outgoing, sent: bool = False) -> Any:
    """Describe the file as huggingface_hub does. HubError for a file that changed: its record would be wrong.

    sent: the object is on the Hub already. There is no public way to say so; these two attributes are what
    the library itself sets after an upload, and tests/hub/test_hub_contract.py holds them to that.
    """
    from huggingface_hub import CommitOperationAdd

    addition = CommitOperationAdd(item.path, item.source)
    if addition.upload_info.size != item.size:
        raise HubError(
            expected=f"{item.size:,} bytes",
            found=f"{addition.upload_info.size:,}",
            where=item.path,
            remedy="leave the tree alone while it is published, and run the command again",
        )
    if sent:
        addition._upload_mode, addition._is_uploaded = "lfs", True
    return addition
