"""Writes testdata/recipes/*.jsonl: small data sets in the manner of the store
task, for the recipes that train on files. Deterministic; run it from the
repository's root: python3 scripts/recipe_data.py
"""
import json
import random
from pathlib import Path

OUT = Path("testdata/recipes")
SYSTEM = {"role": "system", "content": "You run a shop. Sell if asked, look up, calculate, then answer with the number."}
ITEMS = ["pens", "cups", "bags", "keys", "fans", "mugs", "hats"]


def tool(name, description, **properties):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": list(properties)}}}


TOOLS = [tool("price", "price of one", item={"type": "string"}), tool("stock", "number in stock", item={"type": "string"}),
         tool("calc", "arithmetic", expr={"type": "string"})]


def call(n, name, **arguments):
    return {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}


def turns(lookup, item, price, count, right=True):
    """The assistant's way from the question to the answer; the wrong one answers
    without calculating."""
    out = [{"role": "assistant", "content": "", "tool_calls": [call(1, lookup, item=item)]},
           {"role": "tool", "tool_call_id": "call_1", "content": str(price)}]
    if right:
        out += [{"role": "assistant", "content": "", "tool_calls": [call(2, "calc", expr=f"{count}*{price}")]},
                {"role": "tool", "tool_call_id": "call_2", "content": str(count * price)}]
    return out + [{"role": "assistant", "content": str(count * price if right else price)}]


def write(name, rows):
    OUT.mkdir(parents=True, exist_ok=True)
    with open(OUT / name, "w") as f:
        for r in rows:
            f.write(json.dumps(r, separators=(",", ":")) + "\n")


def main():
    rng = random.Random(5)
    demos, pairs, verdicts = [], [], []
    for i in range(48):
        item, price, count = rng.choice(ITEMS), rng.randint(2, 40), rng.randint(2, 9)
        prompt = [SYSTEM, {"role": "user", "content": f"What do {count} {item} cost?"}]
        good, bad = turns("price", item, price, count), turns("price", item, price, count, right=False)
        demos.append({"messages": prompt + good, "tools": TOOLS, "difficulty": count})
        pairs.append({"prompt": prompt, "chosen": good, "rejected": bad, "tools": TOOLS})
        verdicts.append({"prompt": prompt, "completion": good if i % 2 == 0 else bad, "label": i % 2 == 0, "tools": TOOLS})
    write("demonstrations.jsonl", demos)
    write("pairs.jsonl", pairs)
    write("verdicts.jsonl", verdicts)


if __name__ == "__main__":
    main()
