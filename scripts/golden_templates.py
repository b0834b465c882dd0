"""Renders chat templates with transformers, the reference, at a fixed date.

usage: python golden_templates.py OUT.json.gz NAME=DIR...

Every *.jinja of each DIR is rendered for every conversation below, with and
without the generation prompt, and with the extra variables the template
mentions. OUT holds the templates themselves too, so that the test needs nothing
else. See model/testdata/templates/README.md for where the templates come from.
"""

import datetime
import glob
import gzip
import json
import os
import re
import sys

from transformers.utils import chat_template_utils as ct

TOOLS = [
    {"type": "function", "function": {"name": "get_price", "description": "Price of an item, in <EUR> & \u00fc", "parameters": {
        "type": "object", "properties": {
            "item": {"type": "string", "description": "it's \"the\" item"}, "count": {"type": "integer", "minimum": 1},
            "kind": {"type": "string", "enum": ["a", "b"]}, "tags": {"type": "array", "items": {"type": "string"}},
            "deep": {"type": "object", "properties": {"x": {"type": "number", "default": 1.5}}, "required": ["x"]}},
        "required": ["item"], "x-weights": [1.0, 2.5e-7, 1e22, None, True, []]}}},
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}},
]


def call(name, args, id=None):
    c = {"type": "function"}
    if id:
        c["id"] = id
    c["function"] = {"name": name, "arguments": args}
    return c


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def said(text, reasoning=None, calls=None):
    m = {"role": "assistant", "content": text}
    if reasoning:
        m["reasoning_content"] = reasoning
    if calls:
        m["tool_calls"] = calls
    return m


def result(text, id, name="get_price"):
    return {"role": "tool", "content": text, "tool_call_id": id, "name": name}


TEA = {"item": "tea", "count": 2, "w": [0.5, 1e-05], "deep": {"b": None, "a": False, "s": "\u00fc\n\"q\""}}
CONVERSATIONS = [
    {"name": "plain", "messages": [user("Hello")]},
    {"name": "turns", "messages": [system("Be brief."), user("Hi  "), said("\n Yes? "), user("2 < 3 & 'x' \"y\" \u00e9\u2028"), said("Right."), user("Go on")]},
    {"name": "tools", "messages": [user("Price of tea?")], "tools": TOOLS},
    {"name": "call", "messages": [system("You sell."), user("Price of tea?"), said("", calls=[call("get_price", TEA, "callid001")]),
                                  result("{\"price\": 3.0}", "callid001"), said("It is 3."), user("Thanks")], "tools": TOOLS},
    {"name": "pending", "messages": [user("Price of tea?"), said("Let me see.", calls=[call("get_price", {"item": "tea"}, "callid001"), call("noop", {}, "callid002")]),
                                     result("3\n", "callid001"), result("", "callid002", "noop")], "tools": TOOLS},
    {"name": "thought", "messages": [user("Think."), said("Done.", "hm\nhm"), user("More."), said("Again.", " second "), user("Last.")]},
    {"name": "thoughtcall", "messages": [system("You sell."), user("Price?"), said("", "I look it up.", [call("get_price", {"item": "tea"}, "callid001")]),
                                         result("3", "callid001"), said("It is 3.", "So 3.")], "tools": TOOLS},
    {"name": "inline", "messages": [user("Think."), said("<think>\nhm\n</think>\n\nDone."), user("More."), said("<think>\nno end"), user("So?")]},
    {"name": "edge", "messages": [system(" \t{{ x }} {% if %} {# c #}\r\n"), user("<|im_end|>\n<|eot_id|></s>[INST] \\n \x00\x1f\x85 \U0001f600\u202e\ufeff"),
                                  said("\u3000tab\tend\r"), user("\\ud83d \"'")]},
    {"name": "empty", "messages": [system(""), user(""), said(""), user("x")]},
    {"name": "assistantlast", "messages": [user("Hi"), said("Hello.")]},
    {"name": "twousers", "messages": [user("a"), user("b")]},
    {"name": "none", "messages": []},
    {"name": "systemonly", "messages": [system("s")]},
]
VARIABLES = {
    "enable_thinking": [True, False], "thinking": [True], "reasoning_effort": ["high"], "keep_past_thinking": [True], "preserve_thinking": [True],
    "builtin_tools": [["code_interpreter", "brave_search"]], "date_string": ["01 Jan 2024"], "tools_in_user_message": [False], "clear_thinking": [False],
    "xml_tools": [["t"]], "documents": [None], "custom_tools": [None],
}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 3, 7, 9, 5, 2)


ct.datetime = Clock
special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
out = []
for spec in sys.argv[2:]:
    origin, folder = spec.split("=", 1)
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        source = open(path, newline="").read()
        case = {"origin": origin, "file": os.path.basename(path), "template": source, "special": special, "renders": []}
        sets = [{}] + [{k: v} for k, vs in VARIABLES.items() if re.search(r"\b%s\b" % k, source) for v in vs if v is not None]
        for i, c in enumerate(CONVERSATIONS):
            for extra in sets:
                for gen in (False, True):
                    if extra and c["name"] not in ("plain", "call", "thought", "thoughtcall"):
                        continue
                    r = {"conversation": i, "generate": gen}
                    if extra:
                        r["vars"] = extra
                    try:
                        [r["text"]], _ = ct.render_jinja_template([c["messages"]], tools=c.get("tools"), chat_template=source,
                                                                  add_generation_prompt=gen, **{**special, **extra})
                    except Exception as e:
                        r["error"] = "%s: %s" % (type(e).__name__, e)
                    case["renders"].append(r)
        out.append(case)
with gzip.GzipFile(sys.argv[1], "w", 9, mtime=0) as f:
    f.write(json.dumps({"conversations": CONVERSATIONS, "templates": out}, ensure_ascii=True).encode())
print(len(out), "templates,", sum(len(c["renders"]) for c in out), "renderings")
