"""Collect conversations into a table, sample them, commit a step, follow the logs.

    python3 example.py HOST:PORT CERT_DIR
"""

import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent / "gen"))

import eventlog  # noqa: E402
from client import SECOND, Client, SkeinError  # noqa: E402
from skein.cluster.v1 import operate_pb2 as opb, replay_pb2 as rpb, types_pb2 as tpb  # noqa: E402
from skein.eventlog.v1 import eventlog_pb2 as epb  # noqa: E402

STATUS_OK = 1
RUN, TABLE, GROUPS, SIZE = f"python-{int(time.time())}", "conversations", 4, 2


def record(group: int, member: int) -> tpb.Record:
    now = time.time_ns()
    meta = epb.Meta(run=RUN, group=f"{RUN}/{group}", member=member, group_size=SIZE, table=TABLE, source="python", task=str(group),
                    attempt=1, worker="example.py", status=STATUS_OK, created_ns=now)
    reward = float(member)
    log = eventlog.conversation(f"{RUN}/{group}/{member}", meta, [("human:ann", f"What is {group} + {member}?"), ("agent", str(group + member))], reward)
    data = eventlog.encode(log)
    item = tpb.Item(log_id=log.id, run=RUN, table=TABLE, group=meta.group, member=member, group_size=SIZE, source=meta.source, task=meta.task,
                    attempt=1, worker=meta.worker, status=STATUS_OK, reward=reward, has_reward=True, digest=eventlog.digest(log),
                    size_bytes=len(data), created=now)
    return tpb.Record(item=item, data=data)


def main(address, cert_dir):
    c = Client(address, cert_dir)
    c.call("CreateRun", rpb.CreateRunRequest(spec=tpb.RunSpec(run=RUN, group_size=SIZE, groups_per_step=1, ticket_ttl=60 * SECOND, max_attempts=1)))
    config = {"sampler": {"kind": "uniform"}, "remover": {"kind": "fifo"}, "limiter": {"kind": "min_size", "min_size": 1}, "max_times_sampled": 1,
              "max_staleness": -1, "constant_groups": "keep", "on_full": "refuse", "priority_from": "constant", "priority": 1}
    c.call("SetTable", rpb.SetTableRequest(run=RUN, table=TABLE, config=json.dumps(config).encode()))

    records = [record(g, m) for g in range(GROUPS) for m in range(SIZE)]
    assert not any(r.rejected or r.busy or r.duplicate for r in c.append(records))
    assert all(r.duplicate for r in c.append(records)), "the same logs again change nothing"
    broken = record(99, 0)
    broken.item.digest = "blake3:" + "0" * 64
    assert "digest" in c.append([broken])[0].rejected, "bytes are checked against their digest"

    lease = c.call("Lease", rpb.LeaseRequest(run=RUN, table=TABLE, holder="example.py", groups=GROUPS, ttl=60 * SECOND, wait=5 * SECOND), wait=5).lease
    assert len(lease.groups) == GROUPS
    log_ids = [item.log_id for g in lease.groups for item in g.items]
    sent = {r.item.log_id: r.data for r in records}
    for r in c.fetch(log_ids):
        assert r.data == sent[r.item.log_id], "bytes come back as they were sent"
    c.call("Extend", rpb.ExtendRequest(run=RUN, lease=lease.id, ttl=120 * SECOND))

    weights = c.put_blob(b"weights of a policy")
    step = tpb.StepRecord(run=RUN, step=1, version=1, lease=lease.id, log_ids=log_ids, groups=[g.group for g in lease.groups],
                          checkpoint=weights, adapter=weights, metrics={"loss": 0.5})
    c.call("Commit", step)
    c.call("Commit", step)  # the same step again is a success that changes nothing
    assert c.call("Latest", rpb.RunRequest(run=RUN)).version == 1
    try:
        c.call("Release", rpb.ReleaseRequest(run=RUN, lease=lease.id))
        raise AssertionError("the lease is over")
    except SkeinError as e:
        assert e.code == tpb.Error.CODE_STALE, e

    seen, token = [], ""
    while len(seen) < len(records):
        page = c.call("Tail", opb.TailRequest(run=RUN, token=token, limit=3, wait=SECOND), operate=True, wait=1)
        seen += [i.log_id for i in page.items]
        token = page.tokens[-1]
    assert seen == [r.item.log_id for r in records], "every log once, in order"
    c.call("FinishRun", rpb.RunRequest(run=RUN))
    c.close()
    print(json.dumps({"run": RUN, "appended": len(records), "trained": len(log_ids), "followed": len(seen), "policy": 1}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
