# Reverb in two processes, server and client, over gRPC on 127.0.0.1. Questions come as JSON lines, answers go back.
import json, os, subprocess, sys, threading, time

if len(sys.argv) > 1:  # the server
    import reverb, tensorflow as tf
    tables = []
    for size in (8192, 65536):
        for name, sampler in (("fifo", reverb.selectors.Fifo), ("uniform", reverb.selectors.Uniform), ("prioritized", lambda: reverb.selectors.Prioritized(0.8))):
            tables.append(reverb.Table(
                name=f"{name}{size}", sampler=sampler(), remover=reverb.selectors.Fifo(), max_size=(256 << 20) // size, max_times_sampled=0,
                rate_limiter=reverb.rate_limiters.MinSize(1), signature={"x": tf.TensorSpec([None, size], tf.uint8)}))
    server = reverb.Server(tables)
    print(server.port, flush=True)
    sys.stdin.read()
    os._exit(0)

# The interpreter got this program with -c; the server gets it the same way.
source = open("/proc/self/cmdline", "rb").read().split(b"\0")
code = source[source.index(b"-c") + 1].decode()
srv = subprocess.Popen([sys.executable, "-c", code, "server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
port = int(srv.stdout.readline())
import numpy as np, reverb, tensorflow as tf
client = reverb.Client(f"127.0.0.1:{port}")
import importlib.metadata
version = "dm-reverb " + importlib.metadata.version("dm-reverb")
rng = np.random.default_rng(0)
# Half random, half constant.
bodies = {size: [np.concatenate([rng.integers(0, 255, size // 2, dtype=np.uint8), np.zeros(size - size // 2, np.uint8)]) for _ in range(64)] for size in (8192, 65536)}


def insert(q, table, writers, each):
    client.reset(table)
    data, counts, end = bodies[q["size"]], [0] * writers, time.time() + q["seconds"]

    def write(k):
        with client.trajectory_writer(num_keep_alive_refs=1) as w:
            i = 0
            while time.time() < end:
                for _ in range(1 if each else 100):
                    w.append({"x": data[i % 64]})
                    w.create_item(table, 1.0 + i % 7, {"x": w.history["x"][-1:]})
                    i += 1
                if each:
                    w.flush()
                elif i % 200 == 0:
                    w.flush()
            w.flush()
        counts[k] = i

    start = time.time()
    threads = [threading.Thread(target=write, args=(k,)) for k in range(writers)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return sum(counts) / (time.time() - start)


def fill(table, size, n):
    client.reset(table)
    data = bodies[size]
    with client.trajectory_writer(num_keep_alive_refs=1) as w:
        for i in range(n):
            w.append({"x": data[i % 64]})
            w.create_item(table, 1.0 + i % 7, {"x": w.history["x"][-1:]})
            if i % 200 == 199:
                w.flush()
        w.flush()


def sample(q, table):
    # One call: a new sampler costs streams and threads.
    n, start = 0, time.time()
    for _ in client.sample(table, num_samples=1 << 20, emit_timesteps=False):
        n += 1
        if n % 64 == 0 and time.time() - start > q["seconds"]:
            break
    return n / (time.time() - start)


def best(rates, what):
    name = max(rates, key=rates.get)
    return {"rate": rates[name], "all": {k: round(v) for k, v in rates.items()}, "what": f"{what}, {name}", "version": version}


def answer(q):
    size = q["size"]
    if q["do"] == "insert":
        # In the manner of its documentation: a flush now and then. Two tries of half the time.
        q["seconds"] /= 2
        return best({f"{k} writers": insert(q, f"uniform{size}", k, False) for k in (1, 2)}, "in memory, flush every 200 items")
    if q["do"] == "insert_flush":
        q["seconds"] /= 3
        return best({f"{k} writers": insert(q, f"uniform{size}", k, True) for k in (1, 4, 16)}, "in memory, each item flushed")
    if q["do"] == "fill":
        fill(f"{q['table']}{size}", size, (128 << 20) // size)
        return {"rate": 1, "version": version, "what": "filled"}
    if q["do"] == "sample":
        return best({"client.sample": sample(q, f"{q['table']}{size}")}, q["table"])
    raise ValueError(q["do"])


for line in sys.stdin:
    try:
        a = answer(json.loads(line))
    except Exception as e:
        a = {"error": repr(e)}
    print(json.dumps(a), flush=True)
srv.stdin.close()
srv.wait(timeout=20)
os._exit(0)
