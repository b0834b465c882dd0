"""Writes model/testdata/value: the value head of a reward model as transformers'
LlamaForSequenceClassification and peft compute and save it, over the base
model/testdata/families/llama2. See the README.md there.

    OMP_NUM_THREADS=1 python scripts/golden_value.py
"""

import json
import math
import os

import peft
import torch
import transformers as tf
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = os.path.join(HERE, "..", "model", "testdata", "families", "llama2")
OUT = os.path.join(HERE, "..", "model", "testdata", "value")

gen = torch.Generator().manual_seed(5)
seqs = [torch.randint(3, 96, (n,), generator=gen).tolist() for n in (11, 17, 6, 9)]


def values(model, s, taken):
    """HF's pooled logit of a sequence run alone, and the head at every token."""
    taken.clear()
    pooled = model(input_ids=torch.tensor([s]), use_cache=False).logits[0, 0]
    every = taken[0][0, :, 0]
    assert torch.equal(pooled, every[-1])
    return pooled, every


def run(model, head, out, prefix):
    """Two losses: a weighted sum of the values of all tokens, and Bradley-Terry's
    of the pairs (0, 1) and (2, 3). Gradients of every trainable parameter."""
    taken = []
    hook = head.register_forward_hook(lambda m, i, o: taken.append(o))
    every = [values(model, s, taken)[1] for s in seqs]
    for i, v in enumerate(every):
        out[f"{prefix}values.{i}"] = v.detach().clone()
    dense = sum(math.sin(t + 0.3 * i) * v for s, vs in zip(seqs, every) for i, (t, v) in enumerate(zip(s, vs)))
    pooled = [values(model, s, taken)[0] for s in seqs]
    pair = -torch.stack([torch.nn.functional.logsigmoid(pooled[a] - pooled[b]) for a, b in ((0, 1), (2, 3))]).mean()
    hook.remove()
    losses = {"dense": dense, "pair": pair}
    for name, loss in losses.items():
        model.zero_grad()
        loss.backward(retain_graph=True)
        for n, p in model.named_parameters():
            if p.grad is not None:
                n = n.replace(".default", "").replace(".modules_to_save", "")
                if "lora_" in n or n.endswith("score.weight") or n in ("model.norm.weight", "model.embed_tokens.weight"):
                    out[f"{prefix}{name}.grad.{n}"] = p.grad.clone()
    return {k: v.item() for k, v in losses.items()}


# Not from_pretrained, which would load the folder's adapter too.
config = tf.LlamaConfig.from_pretrained(BASE, num_labels=1, attn_implementation="eager")
model = tf.LlamaForSequenceClassification(config)
missing, extra = model.load_state_dict(load_file(os.path.join(BASE, "model.safetensors")), strict=False)
assert missing == ["score.weight"] and extra == ["lm_head.weight"], (missing, extra)
model.score.weight.data = torch.randn(1, 32, generator=gen) * 0.3
model.eval().requires_grad_(True)
base_score = model.score.weight.data.clone()
out = {"score": base_score}
doc = {"torch": torch.__version__, "transformers": tf.__version__, "peft": peft.__version__, "sequences": seqs, "full": run(model, model.score, out, "")}

lora = get_peft_model(model, LoraConfig(r=3, lora_alpha=6, task_type="SEQ_CLS", lora_dropout=0.0,
                                        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]))
for n, p in lora.named_parameters():
    if "lora_" in n:
        p.data = torch.randn(p.shape, generator=gen) * 0.2
    if p.requires_grad and "score" in n:
        p.data = torch.randn(p.shape, generator=gen) * 0.3
lora.eval()
doc["lora"] = run(lora, lora.base_model.model.score, out, "lora.")
os.makedirs(OUT, exist_ok=True)
lora.save_pretrained(OUT)
os.remove(os.path.join(OUT, "README.md"))
assert "base_model.model.score.weight" in load_file(os.path.join(OUT, "adapter_model.safetensors"))
conf = json.load(open(os.path.join(OUT, "adapter_config.json")))
conf["base_model_name_or_path"] = None
conf["target_modules"].sort()
json.dump(conf, open(os.path.join(OUT, "adapter_config.json"), "w"), indent=2, sort_keys=True)
save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(OUT, "golden.safetensors"))
json.dump(doc, open(os.path.join(OUT, "golden.json"), "w"), indent=1)
with open(os.path.join(OUT, "README.md"), "w") as f:
    f.write("""# Golden numbers of the value head

Made by `OMP_NUM_THREADS=1 python scripts/golden_value.py`: LlamaForSequenceClassification (num_labels 1) over `../families/llama2`, in eager f32, one
sequence at a time. `adapter_config.json` and `adapter_model.safetensors` are a reward model's adapter as peft saves it (task type SEQ_CLS).

`golden.json`: `sequences`; under `full` (no adapter) and `lora` (with it) the losses `dense` = sum over all tokens t at index i of sin(t + 0.3 i) v and
`pair` = mean over the pairs (0, 1) and (2, 3) of -log sigmoid(v_a - v_b), v being the value after the last token.

`golden.safetensors`: `score` [1, 32], the head without adapter; `values.I`, the value after every token of sequence I; `dense.grad.NAME` and
`pair.grad.NAME`; the same with the prefix `lora.`, where gradients are of the adapter and its head.
""")
