"""Writes model/testdata/lora: adapters with rank_pattern, alpha_pattern and
rsLoRA as peft makes and saves them over model/testdata/tiny_llama, and what they
compute: logprobs, and gradients of a weighted sum of them, without dropout and
with LoRA dropout whose masks are those of model.Dropout (computed here anew).

    OMP_NUM_THREADS=1 python scripts/golden_lora.py

With a folder it reads back, with peft, the adapters that Skein saved there, and
compares their logprobs:

    SKEIN_SAVE_OUT=DIR go test -run TestGoldenLoRAPatterns ./model/gobackend
    python scripts/golden_lora.py DIR
"""

import json
import math
import os
import shutil
import sys

import peft
import torch
import transformers as tf
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = os.path.join(HERE, "..", "model", "testdata", "tiny_llama")
OUT = os.path.join(HERE, "..", "model", "testdata", "lora")
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# peft sorts a pattern's keys when it saves, so these are in that order. Several
# match one module: the first decides.
CONFIGS = {
    "pattern": dict(
        r=4, lora_alpha=6, target_modules=ALL,
        rank_pattern={"^model.layers.0.mlp.up_proj": 6, "k_proj|v_proj": 2, r"layers\.1\..*_proj": 3, "q_proj": 5},
        alpha_pattern={"down_proj": 1.5, r"layers\.0\.self_attn\.[qk]_proj": 11, "self_attn.*": 2},
    ),
    "rslora": dict(
        r=3, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "down_proj"],
        rank_pattern={"layers.1.mlp.down_proj": 9}, alpha_pattern={"q_proj": 8},
    ),
}
RATE, SEED, STEP = 0.25, 7, 3
PROMPT = [5, 17, 3, 60, 22, 9, 41]
MEMBERS = [[7, 30, 30, 12, 1], [7, 30, 8], [55, 2, 44, 44, 19, 6]]
M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def mix64(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & M64
    return x ^ x >> 31


def mix32(x):
    x = (x ^ x >> 16) * 0x7FEB352D & M32
    x = (x ^ x >> 15) * 0x846CA68B & M32
    return x ^ x >> 16


def bits(a, b, f):
    x = (f * 0x9E3779B1 + a) & M32
    x = (x ^ x >> 16) * 0x7FEB352D & M32
    x = ((x ^ x >> 15) + b) * 0x846CA68B & M32
    return x ^ x >> 16


def key():
    k = mix64(SEED ^ 0x6C6F72615F647270)
    return mix64((mix64(k) + STEP) & M64)  # use 0: the policy


class Masked(torch.nn.Module):
    """LoRA dropout of one projection, for the sequence in Masked.tokens."""

    tokens = []

    def __init__(self, layer, projection):
        super().__init__()
        self.site = layer * 16 + ALL.index(projection)

    def forward(self, x):
        row, rows = key(), []
        for t in Masked.tokens:
            row = mix64((row + 0x9E3779B97F4A7C15 * (t + 1)) & M64)
            a = mix32(row & M32 ^ self.site * 0x9E3779B1 & M32)
            b = mix32((row >> 32) + self.site * 0x85EBCA6B & M32)
            rows.append([float(bits(a, b, f) >= round(RATE * 2**32)) for f in range(x.shape[-1])])
        return x * torch.tensor(rows) / (1 - RATE)


def base():
    model, info = tf.AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def logprobs(model):
    """Of every member's tokens, in order."""
    out = []
    for m in MEMBERS:
        ids = PROMPT + m
        Masked.tokens = ids
        lp = torch.log_softmax(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0], -1)
        out += [lp[len(PROMPT) + i - 1, t] for i, t in enumerate(m)]
    return torch.stack(out)


def run(model, name, out):
    lp = logprobs(model)
    weights = [math.sin(t + 0.3 * i) for m in MEMBERS for i, t in enumerate(m)]
    model.zero_grad()
    (lp * torch.tensor(weights)).sum().backward()
    for n, p in model.named_parameters():
        if "lora_" in n:
            out[f"{name}.{n.replace('.default', '')}"] = p.grad.clone()
    return lp.tolist()


def check(folder, doc):
    worst = 0.0
    for name in CONFIGS:
        model = PeftModel.from_pretrained(base(), os.path.join(folder, name)).eval()
        with torch.no_grad():
            got = logprobs(model).tolist()
        worst = max(worst, max(abs(a - b) for a, b in zip(got, doc["adapters"][name]["plain"])))
    print(f"largest difference of a logprob {worst:.1e}")
    sys.exit(worst > 1e-5)


def main():
    if len(sys.argv) > 1:
        with open(os.path.join(OUT, "golden.json")) as f:
            check(sys.argv[1], json.load(f))
    shutil.rmtree(OUT, ignore_errors=True)
    doc = {
        "versions": {m.__name__: m.__version__.split("+")[0] for m in (torch, tf, peft)},
        "prompt": PROMPT, "members": MEMBERS, "rate": RATE, "seed": SEED, "step": STEP, "adapters": {},
    }
    for name, config in CONFIGS.items():
        torch.manual_seed(len(name))
        model = get_peft_model(base(), LoraConfig(lora_dropout=RATE, task_type="CAUSAL_LM", **config)).eval()
        model.peft_config["default"].base_model_name_or_path = "tiny_llama"
        for n, p in model.named_parameters():
            if "lora_B" in n:
                torch.nn.init.normal_(p, std=0.3)
        folder, grads = os.path.join(OUT, name), {}
        model.save_pretrained(folder)
        os.remove(os.path.join(folder, "README.md"))  # a model card template
        got = {"plain": run(model, "plain", grads), "scales": {}}
        for n, module in model.named_modules():
            if hasattr(module, "lora_dropout"):
                n = n.removeprefix("base_model.model.")
                assert isinstance(module.lora_dropout["default"], torch.nn.Dropout)
                module.lora_dropout["default"] = Masked(int(n.split(".")[2]), n.split(".")[-1])
                got["scales"][n] = [module.r["default"], module.scaling["default"]]
        got["dropped"] = run(model, "dropped", grads)
        doc["adapters"][name] = got
        save_file(grads, os.path.join(folder, "grads.safetensors"))
        # What peft itself reads back from the files.
        again = PeftModel.from_pretrained(base(), folder).eval()
        with torch.no_grad():
            assert max(abs(a - b) for a, b in zip(logprobs(again).tolist(), got["plain"])) < 1e-6
    with open(os.path.join(OUT, "golden.json"), "w") as f:
        json.dump(doc, f, indent=1)
        f.write("\n")


main()
