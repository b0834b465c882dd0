# Scores a fixed text with transformers and PEFT, the reference, under adapters
# that Skein wrote, and saves adapters of PEFT's own for Skein to read.
#
# Python packages: torch transformers peft safetensors; see "versions" in
# golden.json. From the repository's root:
#
#   go test ./model/gobackend -run TestWritePEFT -args -peft-base "$BASE"
#   python3 model/testdata/probe_peft.py "$BASE" model/gobackend/testdata/peft
#
# The first command writes the embedded model to the folder $BASE (an absolute
# path) with Model.Save, and the adapters with Adapter.Save to
# testdata/peft/{lora,rslora}. The second writes testdata/peft/golden.json and
# the adapters testdata/peft/peft-*.
#
# With more arguments it only prints: each is an adapter folder, for example
# one of `skein model export-adapter --save-base`:
#
#   python3 model/testdata/probe_peft.py "$BASE" - ADAPTER...
import json
import os
import shutil
import sys

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXT = (
    "<|im_start|>system\ntools: get_price get_stock<|im_end|>\n<|im_start|>user\nWhat do 3 apples and 2 pears cost?<|im_end|>\n"
    '<|im_start|>assistant\n<tool_call>{"name":"get_price","arguments":{"item":"apples"}}</tool_call><|im_end|>\n'
)
OWN = ["lora", "rslora"]  # by Skein
THEIRS = {  # by PEFT; small, and unlike Skein's own in every setting
    "peft-all-linear": (LoraConfig(r=2, lora_alpha=3, target_modules="all-linear", lora_dropout=0.1, task_type="CAUSAL_LM"), torch.float32),
    "peft-rslora-bf16": (LoraConfig(r=3, lora_alpha=5, use_rslora=True, target_modules=["v_proj", "down_proj", "q_proj"], init_lora_weights="gaussian"), torch.bfloat16),
}


def open_base(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def logprobs(model, ids):
    """Of ids[t] given ids[:t], for t from 1."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    assert logits.dtype == torch.float32
    lp = torch.log_softmax(logits.double(), -1)
    return [lp[t, ids[t + 1]].item() for t in range(len(ids) - 1)]


def score(base, adapter, ids):
    model = PeftModel.from_pretrained(open_base(base), adapter).eval()
    # PEFT only warns of tensors that are missing, and says nothing of others.
    loaded, file = get_peft_model_state_dict(model), load_file(os.path.join(adapter, "adapter_model.safetensors"))
    assert loaded.keys() == file.keys(), sorted(loaded.keys() ^ file.keys())
    for name, t in file.items():
        assert torch.equal(loaded[name], t.float()), name
    return logprobs(model, ids)


def save_theirs(base, name, config, dtype, out):
    torch.manual_seed(len(name))
    model = get_peft_model(open_base(base), config)
    model.peft_config["default"].base_model_name_or_path = "tiny"
    for n, p in model.named_parameters():
        if "lora_B" in n:
            torch.nn.init.normal_(p, std=0.1)
        if "lora_" in n:
            p.data = p.data.to(dtype)
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out)
    os.chmod(os.path.join(out, "adapter_model.safetensors"), 0o644)
    os.remove(os.path.join(out, "README.md"))  # a model card template


def main():
    base, out, more = sys.argv[1], sys.argv[2], sys.argv[3:]
    tok = AutoTokenizer.from_pretrained(base)
    ids = tok.encode(TEXT, add_special_tokens=False)
    plain = logprobs(open_base(base), ids)
    adapters = {a: a for a in more}
    if not more:
        for name, (config, dtype) in THEIRS.items():
            save_theirs(base, name, config, dtype, os.path.join(out, name))
        adapters = {name: os.path.join(out, name) for name in OWN + list(THEIRS)}
    scores = {name: score(base, path, ids) for name, path in adapters.items()}
    print(f"{len(ids)} tokens {ids}\nbase {sum(plain):.6f}")
    for name, lp in scores.items():
        print(f"{name} {sum(lp):.6f}, largest change {max(abs(a - b) for a, b in zip(lp, plain)):.4f}")
        print([round(x, 6) for x in lp])
    if not more:
        versions = {m.__name__: m.__version__.split("+")[0] for m in (torch, transformers, peft)}
        with open(os.path.join(out, "golden.json"), "w") as f:
            json.dump({"versions": versions, "text": TEXT, "ids": ids, "base": plain, "adapters": scores}, f, indent=1)
            f.write("\n")


main()
