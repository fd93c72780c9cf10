"""A file system of fsspec's that can do no more than Phalanx asks for.

It lists, reads, removes, and writes files from their beginning to their end: what is written is seen at once, and
nothing can be renamed. `bare://x/y` is the file BARE_ROOT/x/y. It is text, so that a subprocess can have it, too.
"""

from __future__ import annotations

BARE = """
import os
from fsspec import AbstractFileSystem, register_implementation

class Bare(AbstractFileSystem):
    protocol = "bare"
    cachable = False
    at_write = staticmethod(lambda path: None)

    def __init__(self, root=os.environ.get("BARE_ROOT"), **options):
        super().__init__(**options)
        self.root = root

    def _file(self, path):
        return f"{self.root}/{self._strip_protocol(path)}"

    def makedirs(self, path, exist_ok=False):
        os.makedirs(self._file(path), exist_ok=True)

    def ls(self, path, detail=True, **options):
        path = self._strip_protocol(path).rstrip("/")
        found = [
            {"name": f"{path}/{item.name}", "size": 0 if item.is_dir() else item.stat().st_size,
             "type": "directory" if item.is_dir() else "file"}
            for item in os.scandir(self._file(path))
        ]
        return found if detail else [item["name"] for item in found]

    def _open(self, path, mode="rb", **options):
        assert mode in ("rb", "wb"), mode
        file = open(self._file(path), mode, buffering=0 if mode == "wb" else -1)
        return Writer(file, path, self.at_write) if mode == "wb" else file

    def rm_file(self, path):
        os.unlink(self._file(path))

    def rmdir(self, path):
        os.rmdir(self._file(path))

    def rm(self, path, recursive=False, maxdepth=None):
        if os.path.isdir(self._file(path)):
            for item in self.ls(path):
                self.rm(item["name"], recursive=True)
            self.rmdir(path)
        else:
            self.rm_file(path)

class Writer:
    def __init__(self, file, path, at_write):
        self.file, self.path, self.at_write = file, path, at_write
    def write(self, data):
        self.at_write(self.path)
        data = bytes(data)
        self.file.write(data[: len(data) // 2])
        self.at_write(self.path)
        self.file.write(data[len(data) // 2 :])
        return len(data)
    def flush(self):
        pass
    def tell(self):
        return self.file.tell()
    def close(self):
        self.file.close()
    def __enter__(self):
        return self
    def __exit__(self, *problem):
        self.close()

register_implementation("bare", Bare, clobber=True)
"""
