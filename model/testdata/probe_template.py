# Renders chat templates with transformers, the reference, at a fixed date.
# usage: python3 probe_template.py OUT.json TEMPLATE.jinja...
import datetime
import json
import sys

from transformers.utils import chat_template_utils as ct

TOOLS = [
    {"type": "function", "function": {"name": "get_price", "description": "Price of an item, in <EUR> & \u00fc", "parameters": {
        "type": "object", "properties": {"item": {"type": "string", "description": "it's \"the\" item"}, "count": {"type": "integer", "minimum": 1}},
        "required": ["item"], "x-weights": [1.0, 2.5e-7, 1e22, None, True, []]}}},
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}},
]


def call(name, args, id=None):
    c = {"type": "function"}
    if id:
        c["id"] = id
    c["function"] = {"name": name, "arguments": args}
    return c


CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "Hello"}], "tools": None},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi  "}, {"role": "assistant", "content": "\n Yes? "},
                  {"role": "user", "content": "2 < 3 & 'x' \"y\" \u00e9\u2028"}], "tools": None},
    {"messages": [{"role": "user", "content": "Price of tea?"}], "tools": TOOLS},
    {"messages": [{"role": "system", "content": "You sell."}, {"role": "user", "content": "Price of tea?"},
                  {"role": "assistant", "content": "", "tool_calls": [call("get_price", {"item": "tea", "count": 2, "w": [0.5, 1e-05], "deep": {"b": None, "a": False}}, "callid001")]},
                  {"role": "tool", "content": "{\"price\": 3.0}", "tool_call_id": "callid001", "name": "get_price"},
                  {"role": "assistant", "content": "It is 3."}, {"role": "user", "content": "Thanks"}], "tools": TOOLS},
    {"messages": [{"role": "user", "content": "Think."}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nDone.", "reasoning_content": "hm"},
                  {"role": "user", "content": "More."}], "tools": None},
]


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 3, 7, 9, 5, 2)


ct.datetime = Clock if isinstance(getattr(ct, "datetime", None), type) else ct.datetime
out = []
for path in sys.argv[2:]:
    source = open(path, newline="").read()
    template = ct._compile_jinja_template(source)
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    case = {"file": path.rsplit("/", 1)[-1], "template": source, "special": special, "renders": []}
    for i, c in enumerate(CONVERSATIONS):
        for gen in (False, True):
            r = {"conversation": i, "generate": gen}
            try:
                r["text"] = template.render(messages=c["messages"], tools=c["tools"], documents=None, add_generation_prompt=gen, **special)
            except Exception as e:
                r["error"] = str(e)
            case["renders"].append(r)
    out.append(case)
with open(sys.argv[1], "w") as f:
    json.dump({"conversations": CONVERSATIONS, "templates": out}, f, indent=1)
