"""Computes what Skein saved with transformers: loads every folder of DIR (made
by SKEIN_SAVE_OUT=DIR go test -run 'TestSaveFamilies|TestFamilyAdapters' ./model),
its adapter with peft, and compares logits with model/testdata/families.

    python scripts/check_families.py DIR
"""

import json
import os
import sys

import torch
import transformers as tf
from peft import PeftModel
from safetensors.torch import load_file

FAMILIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "model", "testdata", "families")
torch.set_num_threads(1)
bad = 0
for name in sorted(os.listdir(sys.argv[1])):
    model, info = tf.AutoModelForCausalLM.from_pretrained(os.path.join(sys.argv[1], name), dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    with open(os.path.join(FAMILIES, name, "golden.json")) as f:
        doc = json.load(f)
    golden = load_file(os.path.join(FAMILIES, name, "golden.safetensors"))

    @torch.no_grad()
    def difference(model, key):
        out = 0.0
        for i, ids in enumerate(doc["sequences"]):
            got = model.eval()(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
            out = max(out, (got - golden[f"{key}.{i}"]).abs().max().item())
        return out

    worst = difference(model, "logits")
    adapted = difference(PeftModel.from_pretrained(model, os.path.join(sys.argv[1], name, "adapter")), "lora.logits")
    extra = {k: v for k, v in info.items() if v}
    bad += max(worst, adapted) > 1e-5 or bool(extra)
    print(f"{name:14} {worst:.1e} {adapted:.1e} {extra or ''}")
sys.exit(bad != 0)
