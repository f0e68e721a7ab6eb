"""A dataset repository on 127.0.0.1 that answers like the Hub's HTTP interface, with faults on request.

It implements what huggingface_hub needs: revisions, paged listings, downloads with ranges, upload modes, the LFS batch
interface, commits with additions, copies and deletions. Content is checked against its hash, as the Hub does.
"""

import base64
import hashlib
import json
import re
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from inference_kernels.hub.client import git_sha1

REPOSITORY = "owner/data"
PAGE = 4


@dataclass
class Fault:
    """A fault of the next `times` requests whose `METHOD path` matches.

    status: answered with these headers. truncate, corrupt: the body ends after half, or has a bit flipped.
    hang: no answer until the server stops. late: carried out, but not answered so.
    """

    pattern: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    truncate: bool = False
    corrupt: bool = False
    hang: bool = False
    late: bool = False
    times: int = 1


class QuietServer(ThreadingHTTPServer):
    """Say nothing about clients that close their connection."""

    daemon_threads = True

    def handle_error(self, request, address):
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, address)


class FakeHub:
    """Contents by path, one dictionary per commit; `log` lists every request."""

    def __init__(self):
        self.objects: dict[str, bytes] = {}
        self.commits: list[dict[str, tuple[str, bytes]]] = [{".gitattributes": ("git", b"*.safetensors lfs\n")}]
        self.faults: list[Fault] = []
        self.log: list[str] = []
        self.uploads: list[str] = []
        self.orders: list[list[str]] = []
        self.deleted: list[str] = []
        self.stopped = threading.Event()
        self.lock = threading.Lock()
        self.server = QuietServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": self}))
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        self.stopped.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def tree(self) -> dict[str, tuple[str, bytes]]:
        return self.commits[-1]

    def put(self, files: dict[str, bytes]) -> None:
        """Commit files without a client."""
        self.commits.append(self.tree | {path: (mode(path), content) for path, content in files.items()})
        self.objects |= {sha256(content): content for content in files.values()}

    def commit_id(self, number: int) -> str:
        return hashlib.sha1(f"commit {number}".encode()).hexdigest()

    def at(self, revision: str) -> tuple[str, dict[str, tuple[str, bytes]]] | None:
        ids = [self.commit_id(number) for number in range(len(self.commits))]
        number = len(ids) - 1 if revision == "main" else ids.index(revision) if revision in ids else None
        return None if number is None else (ids[number], self.commits[number])

    def fault(self, request: str) -> Fault | None:
        with self.lock:
            self.log.append(request)
            for fault in self.faults:
                if fault.times and re.search(fault.pattern, request):
                    fault.times -= 1
                    return fault
        return None

    def apply(self, lines: list[dict]) -> str | None:
        """Carry out a commit; return an error message if an object is missing."""
        tree, order = dict(self.tree), []
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "deletedFile":
                if tree.pop(value["path"], None) is None:
                    return f"{value['path']} does not exist"
                self.deleted.append(value["path"])
                continue
            large = line["key"] == "lfsFile"
            if large and value["oid"] not in self.objects:
                return f"object {value['oid']} is missing"
            content = self.objects[value["oid"]] if large else base64.b64decode(value["content"])
            tree[value["path"]] = ("lfs" if large else "git", content)
            order.append(value["path"])
        self.commits.append(tree)
        self.orders.append(order)
        return None


def mode(path: str) -> str:
    return "lfs" if path.endswith(".safetensors") else "git"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def listed(path: str, entry: tuple[str, bytes]) -> dict:
    kind, content = entry
    row = {"type": "file", "path": path, "size": len(content), "oid": git_sha1(content)}
    if kind == "lfs":
        row["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 130}
    return row


class Handler(BaseHTTPRequestHandler):
    """One request; `hub` is set in a subclass for each fake."""

    hub: FakeHub
    plan: Fault | None = None
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Quiet."""

    def serve(self):
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else self.chunks()
        self.plan = fault = self.hub.fault(" ".join([self.command, self.path, self.headers.get("Range", "")]))
        if fault and fault.hang:
            self.hub.stopped.wait(30)
            self.close_connection = True
            return
        if fault and fault.status and not fault.late:
            self.answer(fault.status, b"{}", fault.headers)
            return
        path, query = unquote(urlsplit(self.path).path), parse_qs(urlsplit(self.path).query)
        for pattern, action in ROUTES:
            if match := re.fullmatch(pattern, path):
                action(self, match, query, body)
                return
        self.answer(404, b"{}")

    do_GET = do_HEAD = do_POST = do_PUT = serve

    def chunks(self) -> bytes:
        content = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while count := int(self.rfile.readline(), 16):
                content += self.rfile.read(count)
                self.rfile.readline()
            self.rfile.readline()
        return content

    def answer(self, status: int, content: bytes, headers: dict[str, str] | None = None):
        if self.plan and self.plan.late:
            status, content = self.plan.status, b"{}"
        if self.plan and self.plan.corrupt:
            content = bytes([content[0] ^ 1]) + content[1:]
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.plan and self.plan.truncate:
            content, self.close_connection = content[: len(content) // 2], True
        if self.command != "HEAD":
            self.wfile.write(content)

    def json(self, value, headers: dict[str, str] | None = None):
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def revision(self, match, query, body):
        found = self.hub.at(match["revision"])
        if found is None:
            return self.answer(404, b"{}")
        return self.json({"id": REPOSITORY, "sha": found[0], "siblings": []})

    def listing(self, match, query, body):
        commit, tree = self.hub.at(match["revision"])
        rows = [listed(path, tree[path]) for path in sorted(tree)]
        start = int(query.get("cursor", ["0"])[0])
        url = f"{self.hub.endpoint}{API}/tree/{commit}?recursive=true&cursor={start + PAGE}"
        link = {"Link": f'<{url}>; rel="next"'} if start + PAGE < len(rows) else {}
        self.json(rows[start : start + PAGE], link)

    def paths_info(self, match, query, body):
        _, tree = self.hub.at(match["revision"])
        paths = parse_qs(body.decode())["paths"]
        self.json([listed(path, tree[path]) for path in paths if path in tree])

    def resolve(self, match, query, body):
        commit, tree = self.hub.at(match["revision"])
        if match["path"] not in tree:
            return self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        _, content = tree[match["path"]]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{git_sha1(content)}"'}
        if found := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start = int(found[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            return self.answer(206, content[start:], headers)
        return self.answer(200, content, headers)

    def preupload(self, match, query, body):
        self.json(
            {
                "files": [
                    {
                        "path": item["path"],
                        "shouldIgnore": False,
                        "oid": None,
                        "uploadMode": {"lfs": "lfs", "git": "regular"}[mode(item["path"])],
                    }
                    for item in json.loads(body)["files"]
                ]
            }
        )

    def batch(self, match, query, body):
        def one(item: dict) -> dict:
            actions = {"upload": {"href": f"{self.hub.endpoint}/objects/{item['oid']}", "header": {}}}
            return item if item["oid"] in self.hub.objects else item | {"actions": actions}

        self.json({"transfer": "basic", "objects": [one(item) for item in json.loads(body)["objects"]]})

    def store(self, match, query, body):
        if sha256(body) != match["oid"]:
            return self.answer(400, b"{}")
        with self.hub.lock:
            self.hub.objects[match["oid"]] = body
            self.hub.uploads.append(match["oid"])
        return self.answer(200, b"")

    def commit(self, match, query, body):
        problem = self.hub.apply([json.loads(line) for line in body.splitlines() if line])
        if problem:
            return self.answer(400, json.dumps({"error": problem}).encode())
        made = self.hub.commit_id(len(self.hub.commits) - 1)
        return self.json({"commitUrl": f"{self.hub.endpoint}/datasets/{REPOSITORY}/commit/{made}", "commitOid": made})

    def validate(self, match, query, body):
        self.json({"errors": [], "warnings": []})


API = rf"/api/datasets/{REPOSITORY}"
ROUTES = [
    (rf"{API}/revision/(?P<revision>[^/]+)", Handler.revision),
    (rf"{API}/tree/(?P<revision>[^/]+)", Handler.listing),
    (rf"{API}/paths-info/(?P<revision>[^/]+)", Handler.paths_info),
    (rf"/datasets/{REPOSITORY}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Handler.resolve),
    (rf"{API}/preupload/(?P<revision>[^/]+)", Handler.preupload),
    (rf"/datasets/{REPOSITORY}\.git/info/lfs/objects/batch", Handler.batch),
    (r"/objects/(?P<oid>[0-9a-f]{64})", Handler.store),
    (rf"{API}/commit/(?P<revision>[^/]+)", Handler.commit),
    (r"/api/validate-yaml", Handler.validate),
]
