# A Ray actor that is called and replies. Questions come as JSON lines, answers go back.
import json, os, sys, time
out = os.dup(1)
os.dup2(2, 1)  # what ray prints is no answer
import ray

ray.init(num_cpus=2, object_store_memory=256 << 20, include_dashboard=False, logging_level="ERROR", log_to_driver=False)


@ray.remote
class Worker:
    def __init__(self):
        self.n = 0

    def ping(self):
        return 1

    def reply(self, x):
        self.n += 1
        return self.n


a = Worker.remote()
ray.get(a.ping.remote())


def rate(seconds, f):
    n, start = 0, time.time()
    while time.time() - start < seconds:
        n += f()
    return n / (time.time() - start)


def serial():
    ray.get(a.ping.remote())
    return 1


def pipelined(n, f):
    ray.get([f() for _ in range(n)])
    return n


def rates(q):
    x, s = os.urandom(q["size"]), q["seconds"] / 4
    return {
        "call": {
            "one after another": rate(s, serial),
            "5,000 at once": rate(s, lambda: pipelined(5000, a.ping.remote)),
        },
        "log": {
            "1,000 at once": rate(s, lambda: pipelined(1000, lambda: a.reply.remote(x))),
            "5,000 at once": rate(s, lambda: pipelined(5000, lambda: a.reply.remote(x))),
        },
    }


for line in sys.stdin:
    try:
        forms = rates(json.loads(line))
        a_ = {"forms": forms, "version": "ray " + ray.__version__}
    except Exception as e:
        a_ = {"error": repr(e)}
    os.write(out, (json.dumps(a_) + "\n").encode())
ray.shutdown()
