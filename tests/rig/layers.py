"""Layers by code: tar streams, compressed, written once into a store of blobs and found again by what they are made of.

Equal specifications give equal bytes, so equal digests: shared layers are shared, and a second run builds nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import tarfile
import threading
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, cast

from tests.rig import paths

Compression = Literal["gzip", "zstd", "none"]
# Random bytes repeat at this distance: beyond the window of gzip and of zstd's lower levels, so they do not compress.
BLOCK = 16 << 20
STORE_LIMIT = 6 << 30
# Part of every key: raise it when the same specification gives other bytes.
FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """One thing in a layer: a file, a directory (content None) or a symbolic link."""

    path: str
    content: bytes | None = b""
    mode: int = 0o644
    link: str = ""


@dataclass(frozen=True)
class LayerSpec:
    """What a layer is made of: `files` files that hold `size` bytes together, or the entries given."""

    size: int = 64 << 10
    files: int = 1
    # The share of the bytes that compresses to almost nothing.
    compressible: float = 0.0
    compression: Compression = "gzip"
    # Of gzip: 1 unpacks like real layers and is built at some 30 MB/s; 0 only stores, and is built ten times as fast.
    level: int = 1
    seed: int | str = 0
    directory: str = "data"
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Layer:
    """A layer that lies in the store."""

    blob: Path
    digest: str
    size: int
    diff_id: str
    unpacked_size: int
    files: int
    compression: Compression


class _Sink(Protocol):
    def write(self, data: bytes, /) -> int: ...
    def close(self) -> None: ...


class _Hashing(io.RawIOBase):
    """Passes bytes on and counts and hashes them."""

    def __init__(self, sink: _Sink) -> None:
        super().__init__()
        self.sink, self.count, self.hash = sink, 0, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        piece = bytes(cast("bytes", data))
        self.hash.update(piece)
        self.count += len(piece)
        self.sink.write(piece)
        return len(piece)

    @property
    def digest(self) -> str:
        return f"sha256:{self.hash.hexdigest()}"


class _Deflate:
    """gzip with a constant header, so that equal content gives equal bytes."""

    def __init__(self, sink: _Sink, level: int) -> None:
        self.sink, self.crc, self.size = sink, 0, 0
        self.packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, 9)
        sink.write(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\x03")

    def write(self, data: bytes, /) -> int:
        self.crc, self.size = zlib.crc32(data, self.crc), self.size + len(data)
        self.sink.write(self.packer.compress(data))
        return len(data)

    def close(self) -> None:
        self.sink.write(self.packer.flush())
        self.sink.write(self.crc.to_bytes(4, "little") + (self.size & 0xFFFFFFFF).to_bytes(4, "little"))


class _Plain:
    def __init__(self, sink: _Sink) -> None:
        self.sink = sink

    def write(self, data: bytes, /) -> int:
        return self.sink.write(data)

    def close(self) -> None:
        return


class _Zstd(_Plain):
    def __init__(self, sink: _Sink, level: int) -> None:
        import zstandard

        super().__init__(sink)
        self.packer = zstandard.ZstdCompressor(level=level).compressobj()

    def write(self, data: bytes, /) -> int:
        self.sink.write(self.packer.compress(data))
        return len(data)

    def close(self) -> None:
        self.sink.write(self.packer.flush())


def _compressor(sink: _Sink, spec: LayerSpec) -> _Sink:
    if spec.compression == "gzip":
        return _Deflate(sink, spec.level)
    return _Zstd(sink, spec.level) if spec.compression == "zstd" else _Plain(sink)


@lru_cache(maxsize=2)
def _block(seed: str) -> bytes:
    # A string seeds random.Random by its hash, which is the same in every process.
    return random.Random(seed).randbytes(BLOCK)


def _content(spec: LayerSpec, number: int, size: int) -> bytes:
    """The bytes of one file: its own head, a compressible share, then random bytes."""
    head = f"{spec.seed}/{number}\n".encode()[:size]
    soft = min(int(size * spec.compressible), size - len(head))
    hard = size - len(head) - soft
    block = _block("stoker")
    start = zlib.crc32(f"{spec.seed}/{spec.directory}/{number}".encode()) % BLOCK
    whole = block[start:] + block * (hard // BLOCK + 1) if hard > BLOCK - start else block[start : start + hard]
    return head + b"all work and no play " * (soft // 21) + b"." * (soft % 21) + whole[:hard]


def _entries(spec: LayerSpec) -> Iterator[Entry]:
    if spec.entries:
        yield from spec.entries
        return
    if not spec.files:
        return
    share, rest = divmod(spec.size, spec.files)
    for number in range(spec.files):
        # Not more than a hundred files in a directory, as in real trees.
        where = f"{spec.directory}/{number // 100:04d}/{number:06d}"
        yield Entry(where, _content(spec, number, share + (1 if number < rest else 0)))


def _write_tar(entries: Iterable[Entry], sink: BinaryIO) -> int:
    """Returns how many entries are not directories that were made on the way."""
    made: set[str] = set()
    count = 0
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20) as tar:
        for entry in entries:
            for above in reversed(Path(entry.path).parents[:-1] if "/" in entry.path else []):
                if str(above) not in made:
                    made.add(str(above))
                    _add(tar, Entry(str(above), None, 0o755))
            _add(tar, entry)
            made.update({entry.path} if entry.content is None and not entry.link else ())
            count += 1
    return count


def _add(tar: tarfile.TarFile, entry: Entry) -> None:
    info = tarfile.TarInfo(entry.path)
    info.mode, info.mtime = entry.mode, 1_700_000_000
    if entry.link:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link, 0o777
        tar.addfile(info)
    elif entry.content is None:
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    else:
        info.size = len(entry.content)
        tar.addfile(info, io.BytesIO(entry.content))


class BlobStore:
    """Blobs by digest, and an index from what a layer is made of to what came out."""

    def __init__(self, directory: Path = paths.CACHE / "images", limit: int = STORE_LIMIT) -> None:
        self.directory, self.limit = directory, limit

    def layer(self, spec: LayerSpec) -> Layer:
        """The layer of `spec`, built when it is not there."""
        self.directory.mkdir(parents=True, exist_ok=True)
        key = hashlib.sha256(f"{FORMAT} {spec!r}".encode()).hexdigest()
        note = self.directory / f"{key}.json"
        try:
            data = json.loads(note.read_text(encoding="utf-8"))
            layer = Layer(**{**data, "blob": self.directory / data["blob"]})
            if layer.blob.stat().st_size == layer.size:
                os.utime(layer.blob)
                return layer
        except (OSError, ValueError, TypeError, KeyError):
            pass
        layer = self._build(spec)
        self._write(note, json.dumps({**asdict(layer), "blob": layer.blob.name}).encode())
        self._trim(keep=layer.blob)
        return layer

    def _build(self, spec: LayerSpec) -> Layer:
        aside = self._aside()
        try:
            with aside.open("wb") as file:
                packed = _Hashing(cast("_Sink", file))
                packer = _compressor(cast("_Sink", packed), spec)
                plain = _Hashing(packer)
                count = _write_tar(_entries(spec), cast("BinaryIO", plain))
                packer.close()
            blob = self.directory / packed.digest.removeprefix("sha256:")
            aside.rename(blob)
        finally:
            aside.unlink(missing_ok=True)
        return Layer(blob, packed.digest, packed.count, plain.digest, plain.count, count, spec.compression)

    def _aside(self) -> Path:
        return self.directory / f".new-{os.getpid()}-{threading.get_ident()}"

    def _write(self, path: Path, data: bytes) -> None:
        aside = self._aside()
        aside.write_bytes(data)
        aside.rename(path)

    def _trim(self, keep: Path) -> None:
        """Drop the blobs that were not used for longest once the store is over its limit."""
        blobs = [(file.stat(), file) for file in self.directory.iterdir() if len(file.name) == 64]
        total = sum(stat.st_size for stat, _ in blobs)
        for stat, file in sorted(blobs, key=lambda each: each[0].st_mtime):
            if total <= self.limit:
                return
            if file != keep:
                file.unlink(missing_ok=True)
                total -= stat.st_size
