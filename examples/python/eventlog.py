"""EventLogs in Python: encode one, and compute its digest.

The layout is docs/format/eventlog.md. What a store checks when a log is appended:
the frame and its checksum, every rule of the format, and that the item's digest is
the log's.
"""

import json
import struct

import blake3
from skein.eventlog.v1 import eventlog_pb2 as pb


def canonical(value) -> bytes:
    """Canonical JSON: no white space, keys sorted by their UTF-8 bytes, only the
    escapes that JSON demands. Floats need Go's shortest form: give integers, or
    numbers that Python and Go write alike (0.5, 1.25)."""
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda kv: kv[0].encode())
        return b"{" + b",".join(canonical(k) + b":" + canonical(v) for k, v in items) + b"}"
    if isinstance(value, (list, tuple)):
        return b"[" + b",".join(map(canonical, value)) + b"]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def event(kind, payload, parent, author, scope=pb.SCOPE_NONE) -> pb.Event:
    return pb.Event(kind=kind, payload=canonical(payload), parent=parent, author=author, scope=scope)


def conversation(log_id: str, meta: pb.Meta, turns, reward: float) -> pb.Log:
    """A light log (no tokens): turns are (author, text) pairs, where the author
    "agent" answers and any other ("human:ann", "env") observes."""
    log = pb.Log(id=log_id, tier=pb.TIER_LIGHT, meta=meta)
    for author, text in turns:
        kind = pb.KIND_TEXT if author == "agent" else pb.KIND_OBSERVATION
        log.events.append(event(kind, {"text": text}, len(log.events), author))
    log.events.append(event(pb.KIND_REWARD, {"value": reward}, len(log.events), "env", pb.SCOPE_EPISODE))
    return log


def encode(log: pb.Log) -> bytes:
    """The frame around the body: magic, version, flags, length, CRC-32C."""
    body = log.SerializeToString(deterministic=True)
    return struct.pack("<4sHHII", b"SKEL", 1, 0, len(body), crc32c(body)) + body


def digest(log: pb.Log) -> str:
    """BLAKE3 of a serialisation of its own, so that it depends on no library."""
    out = bytearray(b"skein.eventlog.v1\n")

    def u8(v):
        out.extend(struct.pack("<B", v))

    def u32(v):
        out.extend(struct.pack("<I", v))

    def text(s):
        b = s.encode() if isinstance(s, str) else s
        u32(len(b))
        out.extend(b)

    def time(message, field):
        u8(message.HasField(field))
        if message.HasField(field):
            out.extend(struct.pack("<q", getattr(message, field)))

    if log.branches:
        raise ValueError("this example hashes light logs only")
    m = log.meta
    text(log.id)
    u8(log.tier)
    text(m.run)
    text(m.group)
    u32(m.member)
    u32(m.group_size)
    text(m.table)
    text(m.source)
    text(m.task)
    u32(m.attempt)
    text(m.worker)
    u8(m.status)
    text(m.cause)
    time(m, "created_ns")
    u32(log.outcome)
    u32(len(log.events))
    for e in log.events:
        u8(e.kind)
        u32(e.parent)
        text(e.payload or b"{}")
        u8(0)  # no span
        u8(e.scope)
        text(e.author)
        text(e.call_id)
        time(e, "start_ns")
        time(e, "end_ns")
        u8(e.partial)
    u32(0)  # branches
    return "blake3:" + blake3.blake3(bytes(out)).hexdigest()


def _table():
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)
        yield n


_CRC = tuple(_table())


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for b in data:
        crc = _CRC[(crc ^ b) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF
