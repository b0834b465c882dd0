# XADD to a Redis stream with the fsync that the server was started with. Questions come as JSON lines, answers go back.
import json, os, shutil, subprocess, sys, threading, time
import redis

port = int(sys.argv[1])
for _ in range(100):
    try:
        r0 = redis.Redis(port=port)
        r0.ping()
        break
    except redis.ConnectionError:
        time.sleep(0.1)
version = "redis " + r0.info()["redis_version"]


def xadd(q, conns):
    size, counts, end = q["size"], [0] * conns, time.time() + q["seconds"]
    r0.delete("s")
    body = os.urandom(size // 2) + b"a" * (size - size // 2)

    def write(k):
        r = redis.Redis(port=port)
        while time.time() < end:
            r.xadd("s", {"d": body})
            counts[k] += 1

    start = time.time()
    threads = [threading.Thread(target=write, args=(k,)) for k in range(conns)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return sum(counts) / (time.time() - start)


# The same with redis-benchmark, which is C and one thread: the server's own limit.
def xadd_c(q, conns):
    r0.delete("s")
    n = max(int(q["seconds"] * 4000 * 8192 / q["size"]), 1000)
    out = subprocess.run(["redis-benchmark", "-p", str(port), "-c", str(conns), "-n", str(n), "--csv", "XADD", "s", "*", "d", "a" * q["size"]],
                         capture_output=True, text=True, check=True, timeout=120).stdout.strip().splitlines()
    return float(out[-1].split(",")[1].strip('"'))


def answer(q):
    if q["do"] == "append":
        q["seconds"] /= 3
        tries = {f"{c} connections": xadd(q, c) for c in (1, 16, 64)}
        what = "XADD, redis-py"
    else:
        q["seconds"] /= 3
        tries = {f"{c} connections": xadd_c(q, c) for c in (16, 64, 256)}
        what = "XADD, redis-benchmark"
    r0.delete("s")
    name = max(tries, key=tries.get)
    return {"rate": tries[name], "what": f"{what}, {name}, one copy, appendfsync always", "all": {k: round(v) for k, v in tries.items()}, "version": version}


for line in sys.stdin:
    try:
        a = answer(json.loads(line))
    except Exception as e:
        a = {"error": repr(e)}
    print(json.dumps(a), flush=True)
