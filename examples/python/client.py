"""A small client of Skein's replay store: mutual TLS, the leader followed, calls
that are safe to repeat repeated."""

import pathlib
import queue
import time

import blake3
import grpc
from skein.cluster.v1 import operate_pb2_grpc, replay_pb2 as rpb, replay_pb2_grpc, types_pb2 as tpb

SERVER_NAME = "replay.skein"  # in every replay node's certificate
SECOND = 1_000_000_000  # durations and times are nanoseconds


class SkeinError(Exception):
    """An error of the store: code is one of Error.Code (docs/api.md)."""

    def __init__(self, error):
        super().__init__(f"{tpb.Error.Code.Name(error.code)}: {error.message}")
        self.code, self.error = error.code, error


def error_of(e: grpc.RpcError):
    """The Error message in a status' details, or None: details are a
    google.rpc.Status in the trailer grpc-status-details-bin."""
    for key, value in e.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            from google.rpc import status_pb2  # grpcio-status and googleapis-common-protos have it

            status = status_pb2.Status.FromString(value)
            for d in status.details:
                out = tpb.Error()
                if d.Unpack(out):
                    return out
    return None


class Client:
    def __init__(self, address: str, cert_dir: str, deadline: float = 30.0):
        files = pathlib.Path(cert_dir)
        self._creds = grpc.ssl_channel_credentials(
            root_certificates=(files / "ca.crt").read_bytes(),
            private_key=(files / "node.key").read_bytes(),
            certificate_chain=(files / "node.crt").read_bytes(),
        )
        self._deadline = deadline
        self._connect(address)

    def _connect(self, address):
        self._channel = grpc.secure_channel(address, self._creds, options=[
            ("grpc.ssl_target_name_override", SERVER_NAME),
            ("grpc.max_receive_message_length", 16 << 20), ("grpc.max_send_message_length", 16 << 20),
        ])
        self._replay = replay_pb2_grpc.ReplayStub(self._channel)
        self._operate = operate_pb2_grpc.OperateStub(self._channel)

    def close(self):
        self._channel.close()

    def call(self, name, request, operate=False, wait=0.0):
        """Makes a unary call; goes to the leader when another node says where it
        is, and again while there is none."""
        end = time.monotonic() + self._deadline + wait
        while True:
            method = getattr(self._operate if operate else self._replay, name)
            try:
                return method(request, timeout=max(end - time.monotonic(), 0.1))
            except grpc.RpcError as e:
                err = error_of(e)
                retry = e.code() == grpc.StatusCode.UNAVAILABLE
                if err is not None:
                    retry = err.code in (tpb.Error.CODE_NOT_LEADER, tpb.Error.CODE_UNAVAILABLE, tpb.Error.CODE_BUSY)
                    if err.code == tpb.Error.CODE_NOT_LEADER and err.leader_addr:
                        self.close()
                        self._connect(err.leader_addr)
                if not retry or time.monotonic() > end:
                    raise SkeinError(err) from e if err is not None else e
                time.sleep(0.1)

    def append(self, records):
        """Appends records and returns a result each. Ids make it safe to append
        again: what was accepted before is a duplicate."""
        requests = queue.Queue()
        requests.put(rpb.AppendRequest(id=1, timeout=int(self._deadline * SECOND), records=records))
        requests.put(None)  # ends our side of the stream
        for response in self._replay.Append(iter(requests.get, None), timeout=self._deadline):
            if response.id == 0:
                continue  # the window: how many bytes may be unanswered at once
            if len(response.results) == len(records):
                return response.results  # an error beside results only says that some are refused
            raise SkeinError(response.error)
        raise RuntimeError("the stream ended without an answer")

    def fetch(self, log_ids):
        out = []
        for response in self._replay.Fetch(rpb.FetchRequest(log_ids=log_ids), timeout=self._deadline):
            out.extend(response.records)
        return out

    def put_blob(self, data: bytes) -> str:
        """Stores bytes under their BLAKE3 digest: what a step's checkpoint and
        adapter name."""
        digest = "blake3:" + blake3.blake3(data).hexdigest()

        def pieces():
            first = True
            for i in range(0, max(len(data), 1), 1 << 20):
                piece = rpb.BlobChunk(data=data[i:i + (1 << 20)])
                if first:
                    piece.digest, piece.size, first = digest, len(data), False
                yield piece

        return self._replay.PutBlob(pieces(), timeout=self._deadline).digest
