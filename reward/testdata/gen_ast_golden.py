"""Writes the golden cases of the AST match from BFCL's own checker.

usage: gen_ast_golden.py WHEEL_DIR OUT.jsonl [CASES]

WHEEL_DIR is an unpacked bfcl-eval wheel (2026.3.23 was used). For every row of
simple_python it takes a right call and mutations of it, asks the checker for
its verdict (an exception counts as invalid), and keeps CASES of them, evenly
over verdict, error type and mutation; 0 keeps all.
"""
import copy, json, random, sys, types

wheel, out, keep = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0
sys.path.insert(0, wheel)
# The checker asks the model table only whether dots in names become
# underscores; importing the real one would pull in every model client.
stub = types.ModuleType("bfcl_eval.constants.model_config")
class Entry:
    underscore_to_dot = False
class Table(dict):
    def __missing__(self, key):
        return Entry
stub.MODEL_CONFIG_MAPPING = Table()
sys.modules["bfcl_eval.constants.model_config"] = stub
for name in ("java", "js"):
    m = types.ModuleType(f"bfcl_eval.eval_checker.ast_eval.type_convertor.{name}_type_converter")
    setattr(m, f"{name}_type_converter", lambda *a: a[0])
    sys.modules[m.__name__] = m
from bfcl_eval.constants.enums import Language
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

rng = random.Random(7)
base = f"{wheel}/bfcl_eval/data/"
rows = [json.loads(l) for l in open(base + "BFCL_v4_simple_python.json")]
truth = {r["id"]: r["ground_truth"][0] for r in map(json.loads, open(base + "possible_answer/BFCL_v4_simple_python.json"))}

def first(values):
    for v in values:
        if v != "":
            return v
    return ""

def concrete(v):
    return {k: first(x) for k, x in v.items()} if isinstance(v, dict) else v

def right(possible):
    args = {}
    for k, values in possible.items():
        v = first(values)
        args[k] = [concrete(x) for x in v] if isinstance(v, list) else concrete(v)
    return args

VALUES = [0, 1, -1, 5, 5.0, 2.5, 1e20, True, False, None, "", "x", "5", [], [1], [1.0, 2], ["a"], {}, {"a": 1}, [[1]], [{}], 12345678901234567890]

def mutations(args):
    yield "right", args
    for k in args:
        a = copy.deepcopy(args); del a[k]; yield "drop", a
        for _ in range(3):
            a = copy.deepcopy(args); a[k] = rng.choice(VALUES); yield "replace", a
        v = args[k]
        alts = []
        if isinstance(v, bool): alts = [int(v), float(v), str(v), not v]
        elif isinstance(v, int): alts = [float(v), str(v), v + 1, [v], v == 1]
        elif isinstance(v, float): alts = [int(v), str(v), v + 0.5, -v]
        elif isinstance(v, str):
            alts = [v.upper(), v.replace(" ", "_"), v + ".", v + "!", " " + v, v.replace("'", '"'), v[:-1], [v], v.title() + " , "]
        elif isinstance(v, list):
            alts = [v[::-1], v[:-1], v + v[:1], [str(x) for x in v], [x.upper() if isinstance(x, str) else x for x in v], tuple(v), [],
                    [float(x) if isinstance(x, int) and not isinstance(x, bool) else x for x in v],
                    [int(x) if isinstance(x, float) else x for x in v], json.dumps(v)]
            if v and isinstance(v[0], dict):
                alts += [[{**v[0], "extra": 1}] + v[1:], [dict(list(v[0].items())[1:])] + v[1:], v[0], [5]]
        elif isinstance(v, dict):
            alts = [{**v, "extra": 1}, dict(list(v.items())[1:]), {kk: str(x) for kk, x in v.items()}, {}, [v], json.dumps(v),
                    {kk: x.upper() if isinstance(x, str) else x for kk, x in v.items()},
                    {kk: [x] for kk, x in v.items()}]
        for x in alts:
            a = copy.deepcopy(args); a[k] = x; yield "alter:" + type(v).__name__, a
    a = copy.deepcopy(args); a["surplus"] = 1; yield "surplus", a

cases = []
for r in rows:
    f, t = r["function"][0], truth[r["id"]]
    fn = {"name": f["name"], "parameters": f["parameters"]}
    name, possible = next(iter(t.items()))
    lists = [[(m, f["name"], a)] for m, a in mutations(right(possible))]
    # every accepted value of every parameter in turn
    for k, values in possible.items():
        for v in values:
            a = right(possible)
            if v == "": a.pop(k)
            else: a[k] = [concrete(x) for x in v] if isinstance(v, list) else concrete(v)
            lists.append([("accepted", f["name"], a)])
    lists.append([("name", f["name"] + "_", right(possible))])
    lists.append([("name", f["name"].replace(".", "_"), right(possible))])
    lists.append([])
    lists.append([("twice", f["name"], right(possible))] * 2)
    for calls in lists:
        text = [json.dumps(a) for _, _, a in calls]  # tuples become lists, as on the wire
        output = [{n: json.loads(a)} for (_, n, _), a in zip(calls, text)]
        try:
            res = ast_checker([copy.deepcopy(f)], output, [copy.deepcopy(t)], Language.PYTHON, "simple_python", "none")
            valid, kind = res["valid"], res.get("error_type", "")
        except Exception as e:
            valid, kind = False, "raised " + type(e).__name__
        cases.append(({"id": r["id"], "reference": {"function": fn, "possible": t},
                       "calls": [{"name": n, "arguments": json.loads(a)} for (_, n, _), a in zip(calls, text)],
                       "valid": bool(valid), "kind": kind}, (valid, kind, calls[0][0] if calls else "none")))

rng.shuffle(cases)
if keep:
    groups = {}
    for c, key in cases:
        groups.setdefault(key, []).append(c)
    picked = []
    while len(picked) < keep and any(groups.values()):
        for g in groups.values():
            if g and len(picked) < keep:
                picked.append(g.pop())
else:
    picked = [c for c, _ in cases]
def strip(v):
    if isinstance(v, dict):
        return {k: strip(x) for k, x in v.items() if k != "description" or not isinstance(x, str)}
    return [strip(x) for x in v] if isinstance(v, list) else v
with open(out, "w") as o:
    for c in picked:
        c["reference"]["function"]["parameters"] = strip(c["reference"]["function"]["parameters"])
        o.write(json.dumps(c, separators=(",", ":")) + "\n")
print(len(picked), "cases,", sum(c["valid"] for c in picked), "valid")
