#!/usr/bin/env python3
"""Golden numbers of Gemma 3 270M (Q4_K_M, dequantised to float32 by transformers): golden_gemma3.py FOLDER FILE.gguf OUT.json

Greedy tokens with their logits' margins, and last-position logits, for prompts longer and shorter than the sliding window."""
import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, name, out = sys.argv[1:4]
torch.set_num_threads(2)
tok = AutoTokenizer.from_pretrained(folder, gguf_file=name)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32, attn_implementation="eager").eval()
TEXTS = ["The capital of France is", "def fibonacci(n):\n    ", "Les trois couleurs du drapeau sont", "日本の首都は", "🙂 emoji and ünïcode:", "One two three. " * 180 + "One two"]
rows = []
for text in TEXTS:
    ids = tok(text)["input_ids"]
    with torch.no_grad():
        cur = torch.tensor([ids])
        first = model(cur).logits[0, -1]
        greedy, margins = [], []
        for _ in range(10 if len(ids) < 100 else 2):
            logits = model(cur).logits[0, -1]
            top = logits.topk(2).values
            margins.append(float(top[0] - top[1]))
            greedy.append(int(logits.argmax()))
            cur = torch.cat([cur, torch.tensor([[greedy[-1]]])], 1)
    best = first.topk(32)
    rows.append({"text": text, "ids": ids, "greedy": greedy, "margins": margins, "top_ids": best.indices.tolist(), "top_logits": best.values.tolist(),
                 "logsumexp": float(torch.logsumexp(first.double(), 0))})
    print(len(ids), tok.decode(greedy), min(margins))
json.dump(rows, open(out, "w"), ensure_ascii=False)
