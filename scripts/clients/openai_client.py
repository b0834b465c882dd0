#!/usr/bin/env python3
"""Talks to a running `skein serve` with the official OpenAI client.

openai_client.py --url URL --model NAME [--adapter-root FOLDER] [--embedding-model NAME]

Each check prints one line; the first that fails ends the run with status 1.
Into FOLDER, the server's own --adapter-root, a random adapter of SmolLM2-135M is
written, to be loaded and unloaded.
"""
import argparse
import array
import json
import math
import os
import random
import struct
import urllib.request

import openai

STOCK = {
    "type": "function",
    "function": {
        "name": "stock",
        "description": "How many of an item are in stock",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string", "enum": ["apple", "pear"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["item", "count"],
            "additionalProperties": False,
        },
    },
}
USER = [{"role": "user", "content": "Name three fruits, please."}]


def chat(client, model):
    a = client.chat.completions.create(model=model, messages=USER, max_tokens=40, temperature=0)
    text = a.choices[0].message.content
    assert text and a.usage.total_tokens == a.usage.prompt_tokens + a.usage.completion_tokens, a
    b = client.chat.completions.create(model=model, messages=USER, max_tokens=40, temperature=0)
    assert b.choices[0].message.content == text, "greedy decoding must repeat itself"
    return f"{text!r}, {a.usage.prompt_tokens} + {a.usage.completion_tokens} tokens, cached the second time {b.usage.prompt_tokens_details.cached_tokens}"


def streaming(client, model):
    whole = client.chat.completions.create(model=model, messages=USER, max_tokens=32, seed=7)
    chunks = list(client.chat.completions.create(model=model, messages=USER, max_tokens=32, seed=7, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    assert text == whole.choices[0].message.content, (text, whole)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens, chunks[-1]
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert reasons == [whole.choices[0].finish_reason], reasons
    return f"{len(chunks)} chunks, the same text as whole"


def several(client, model):
    a = client.chat.completions.create(model=model, messages=USER, max_tokens=12, n=4, seed=1, temperature=1.2)
    texts = [c.message.content for c in a.choices]
    assert [c.index for c in a.choices] == [0, 1, 2, 3] and len(set(texts)) > 1, texts
    b = client.chat.completions.create(model=model, messages=USER, max_tokens=12, n=4, seed=1, temperature=1.2)
    assert [c.message.content for c in b.choices] == texts, "a seed must repeat"
    return f"4 choices, {len(set(texts))} different, the same again with their seed"


def logprobs(client, model):
    a = client.chat.completions.create(model=model, messages=USER, max_tokens=16, logprobs=True, top_logprobs=3, seed=3, extra_body={"return_token_ids": True})
    content = a.choices[0].logprobs.content
    ids = a.choices[0].token_ids
    assert len(content) == len(ids) == a.usage.completion_tokens, a
    assert len(a.prompt_token_ids) == a.usage.prompt_tokens
    for t in content:
        assert len(t.top_logprobs) == 3 and t.top_logprobs[0].logprob >= t.logprob - 1e-6 and t.logprob <= 0, t
    assert bytes(b for t in content for b in t.bytes).decode(errors="replace").startswith(a.choices[0].message.content)
    # The ids given back as a prompt, echoed: the same tokens score the same.
    e = client.completions.create(model=model, prompt=a.prompt_token_ids + ids, max_tokens=1, echo=True, logprobs=0)
    scored = e.choices[0].logprobs.token_logprobs[len(a.prompt_token_ids) :][: len(ids)]
    gap = max(abs(x - t.logprob) for x, t in zip(scored, content))
    assert gap < 1e-3, (scored, content)
    return f"{len(ids)} tokens; generated and scored logprobs differ by at most {gap:.1e}"


def tools(client, model):
    ask = dict(model=model, messages=[{"role": "user", "content": "How many pears are left?"}], tools=[STOCK], max_tokens=200, temperature=0)
    a = client.chat.completions.create(**ask, tool_choice="required", parallel_tool_calls=False)
    c = a.choices[0]
    call = c.message.tool_calls[0]
    args = json.loads(call.function.arguments)
    assert c.finish_reason == "tool_calls" and call.function.name == "stock" and set(args) == {"item", "count"}, a
    s = client.chat.completions.create(**ask, tool_choice={"type": "function", "function": {"name": "stock"}}, stream=True)
    pieces = [d for chunk in s for d in chunk.choices[0].delta.tool_calls or []]
    assert pieces[0].function.name == "stock" and json.loads("".join(p.function.arguments or "" for p in pieces)) == args, pieces
    history = ask["messages"] + [c.message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
    b = client.chat.completions.create(**{**ask, "messages": history, "max_tokens": 24}, tool_choice="none")
    assert b.choices[0].message.content and not b.choices[0].message.tool_calls
    return f"{call.function.name}({call.function.arguments}), then {b.choices[0].message.content!r}"


def structured(client, model):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "sweet": {"type": "boolean"}}, "required": ["name", "sweet"], "additionalProperties": False}
    a = client.chat.completions.create(model=model, messages=USER, max_tokens=100, temperature=1, seed=2,
                                       response_format={"type": "json_schema", "json_schema": {"name": "fruit", "schema": schema, "strict": True}})
    got = json.loads(a.choices[0].message.content)
    assert set(got) == {"name", "sweet"} and isinstance(got["sweet"], bool), got
    b = client.completions.create(model=model, prompt="A pear is a", max_tokens=9, extra_body={"structured_outputs": {"choice": [" fruit", " fish"]}})
    assert b.choices[0].text in (" fruit", " fish"), b
    return f"{got}, {b.choices[0].text!r}"


def completions(client, model):
    a = client.completions.create(model=model, prompt=["The capital of France is", "Two plus two is"], max_tokens=8, temperature=0, stop=["\n"])
    assert [c.index for c in a.choices] == [0, 1], a
    b = client.completions.create(model=model, prompt="The capital of France is", max_tokens=8, temperature=0, extra_body={"min_tokens": 8, "top_k": 5, "min_p": 0.05, "repetition_penalty": 1.1})
    assert b.usage.completion_tokens == 8, b
    return repr([c.text for c in a.choices])


def errors(client, model):
    for want, f in {
        "NotFoundError": lambda: client.completions.create(model="nobody", prompt="x"),
        "BadRequestError": lambda: client.completions.create(model=model, prompt="x", extra_body={"beam_width": 3}),
        "context_length_exceeded": lambda: client.completions.create(model=model, prompt=[5] * 100000),
    }.items():
        try:
            f()
        except openai.APIStatusError as e:
            assert want in (type(e).__name__, e.code), e
        else:
            raise AssertionError(f"{want} was expected")
    return "an unknown model, an unknown field, a prompt too long: refused as such"


def write_adapter(folder, rank=4, hidden=576, layers=30):
    """A random LoRA adapter in PEFT's files, on q_proj of every layer."""
    rng = random.Random(1)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0, "bias": "none", "target_modules": ["q_proj"]}, f)
    header, data = {}, array.array("f")
    for layer in range(layers):
        for half, shape in ("A", [rank, hidden]), ("B", [hidden, rank]):
            begin = 4 * len(data)
            data.extend(rng.uniform(-0.1, 0.1) for _ in range(shape[0] * shape[1]))
            header[f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{half}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, 4 * len(data)]}
    head = json.dumps(header).encode()
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + data.tobytes())


def adapters(client, model, root):
    folder = "random"
    write_adapter(os.path.join(root, folder))

    def post(path, body):
        req = urllib.request.Request(str(client.base_url).rstrip("/") + path, json.dumps(body).encode(), {"Content-Type": "application/json", "Authorization": f"Bearer {client.api_key}"})
        with urllib.request.urlopen(req, timeout=60) as r:
            return json.load(r)

    ask = dict(messages=USER, max_tokens=8, temperature=0, logprobs=True)
    base = client.chat.completions.create(model=model, **ask)
    post("/load_lora_adapter", {"lora_name": "tuned", "lora_path": folder})
    assert "tuned" in [m.id for m in client.models.list().data]
    tuned = client.chat.completions.create(model="tuned", **ask)
    before, after = (x.choices[0].logprobs.content[0].logprob for x in (base, tuned))
    assert tuned.model == "tuned" and before != after, (before, after)
    post("/unload_lora_adapter", {"lora_name": "tuned"})
    try:
        client.chat.completions.create(model="tuned", **ask)
    except openai.NotFoundError:
        pass
    else:
        raise AssertionError("an unloaded adapter must be unknown")
    again = client.chat.completions.create(model=model, **ask)
    assert again.choices[0].logprobs.content[0].logprob == before
    return f"first logprob {before:.4f} without, {after:.4f} with it"


def embeddings(client, model):
    texts = ["A man is eating food.", "A man eats something.", "The stock market fell sharply today."]
    a = client.embeddings.create(model=model, input=texts)
    v = [d.embedding for d in a.data]
    cos = lambda x, y: sum(p * q for p, q in zip(x, y)) / math.sqrt(sum(p * p for p in x) * sum(q * q for q in y))
    near, far = cos(v[0], v[1]), cos(v[0], v[2])
    assert near > 0.6 > far, (near, far)
    f = client.embeddings.create(model=model, input=texts[0], encoding_format="float")
    assert max(abs(x - y) for x, y in zip(f.data[0].embedding, v[0])) < 1e-6
    return f"{len(v[0])} numbers; cosine of a paraphrase {near:.3f}, of another topic {far:.3f}"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--url", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--adapter-root")
    p.add_argument("--embedding-model")
    a = p.parse_args()
    client = openai.OpenAI(base_url=a.url + "/v1", api_key="unused-key", max_retries=0, timeout=300)
    print(f"openai {openai.__version__} against {a.url}")
    checks = [(f, (a.model,)) for f in (chat, streaming, several, logprobs, completions, tools, structured, errors)]
    if a.adapter_root:
        checks.append((adapters, (a.model, a.adapter_root)))
    if a.embedding_model:
        checks.append((embeddings, (a.embedding_model,)))
    for f, args in checks:
        print(f"ok {f.__name__}: {f(client, *args)}", flush=True)
    print(f"{len(checks)} passed, 0 failed")


if __name__ == "__main__":
    main()
