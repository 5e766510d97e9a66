"""Copies of the tiny checkpoint to be spoiled: hard links until something is rewritten, and the
safetensors container in ten lines of Python, so that a test can write what no tool would."""
import json
import os
import pathlib
import shutil
import struct

from tandem_job import CHECKPOINT

SHARD = "model.safetensors"
INDEX = "model.safetensors.index.json"


def copy_checkpoint(target, *, without=()):
    target = pathlib.Path(target)
    target.mkdir()
    for source in CHECKPOINT.iterdir():
        if source.name in without:
            continue
        try:
            os.link(source, target / source.name)
        except OSError:  # another file system
            shutil.copy(source, target / source.name)
    return target


def rewrite(path, data):
    """Replaces a file; never writes through a hard link into the original."""
    path.unlink()
    path.write_bytes(data)


def edit_json(path, edit):
    value = json.loads(path.read_text())
    edit(value)
    rewrite(path, json.dumps(value).encode())


def read_shard(path=CHECKPOINT / SHARD):
    """(header, data): {name: {dtype, shape, data_offsets}} and the bytes behind it."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    return header, raw[8 + length:]


def pack_shard(header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def rebuild_shard(tensors):
    """A shard of {name: (dtype, shape, bytes)}, packed without gaps."""
    header, data = {}, bytearray()
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return pack_shard(header, bytes(data))


def shard_tensors(path=CHECKPOINT / SHARD):
    header, data = read_shard(path)
    return {name: (e["dtype"], e["shape"], data[e["data_offsets"][0]:e["data_offsets"][1]])
            for name, e in header.items()}
