"""Fetch the contest's gated delta files from the Hub at one commit. huggingface_hub is imported only here."""

import re
from pathlib import Path

from .cli import missing_package
from .contest_source import DATASET
from .errors import EnvironmentMissing, SchemaError

PATTERNS = ("definitions/gdn/*.json", "workloads/gdn/*.jsonl", "blob/workloads/gdn/*")


def require_commit(revision: str) -> None:
    """SchemaError unless `revision` is a full commit hash: a branch would not pin anything."""
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise SchemaError(
            expected="a commit of 40 hex digits",
            found=revision,
            where="--revision",
            remedy="take the commit from the dataset's history on the Hub",
        )


def download(revision: str, folder: Path) -> Path:
    """The files of PATTERNS below `folder`; what is there already is not fetched again.

    EnvironmentMissing without huggingface_hub, or with the Hub's own words if it does not deliver.
    """
    require_commit(revision)
    try:
        from httpx import HTTPError  # what huggingface_hub 1.x lets through without a network
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise _without_hub(error.name or "huggingface_hub") from error
    try:
        snapshot_download(
            DATASET, repo_type="dataset", revision=revision, local_dir=folder, allow_patterns=list(PATTERNS)
        )
    except (HTTPError, OSError) as error:
        raise EnvironmentMissing(
            expected=f"{DATASET} at {revision}",
            found=str(error).splitlines()[0],
            where="Hugging Face Hub",
            remedy="check the network and run this command again, it resumes; or pass a copy with --source",
        ) from error
    return folder


def _without_hub(name: str) -> EnvironmentMissing:
    missing = missing_package(name)
    return EnvironmentMissing(
        expected=missing.expected,
        found=missing.found,
        where=missing.where,
        remedy="pip install huggingface_hub, or pass a copy with --source",
    )
