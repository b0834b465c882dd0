"""Writes model/testdata/heads: what torch says of the mean log-probability of the
vocabulary (label smoothing) and of log sum p^2 (WPO's aligned weights), over the
model, adapter and sequences of model/testdata/tiny_llama. See the README.md there.

    OMP_NUM_THREADS=1 python scripts/golden_heads.py
"""

import json
import os

import peft
import torch
import torch.nn.functional as F
import transformers as tf
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = os.path.join(HERE, "..", "model", "testdata", "tiny_llama")
OUT = os.path.join(HERE, "..", "model", "testdata", "heads")
TEMPERATURE, EPSILON = 0.9, 0.1

case = json.load(open(os.path.join(BASE, "case.json")))
# Each sequence without its padding.
rows = [torch.tensor([i for i, m in zip(ids, on) if m]) for ids, on in zip(case["input_ids"], case["attention_mask"])]
labels = [torch.tensor([x for x, m in zip(ls, on) if m]) for ls, on in zip(case["labels"], case["attention_mask"])]
targets = torch.cat([x[x != -100] for x in labels])

model = tf.LlamaForCausalLM(tf.LlamaConfig.from_pretrained(BASE, attn_implementation="eager"))
weights = load_file(os.path.join(BASE, "model.safetensors"))
model.load_state_dict({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]})
lora = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"))
lora = lora.double().eval()
adapter = load_file(os.path.join(BASE, "lora.safetensors"))
for n, p in lora.named_parameters():
    if "lora_" in n:
        p.data = adapter["w." + n].double()


def logits():
    """Of the positions that predict a label."""
    return torch.cat([lora(input_ids=ids[None]).logits[0, :-1][x[1:] != -100] for ids, x in zip(rows, labels)])


doc = {"torch": torch.__version__, "transformers": tf.__version__, "peft": peft.__version__, "temperature": TEMPERATURE, "label_smoothing": EPSILON}
out = {}


def gradients(name, loss):
    lora.zero_grad()
    loss.backward()
    doc[name] = loss.item()
    for n, p in lora.named_parameters():
        if "lora_" in n:
            out[f"{name}.{n.replace('.default', '')}"] = p.grad.float().contiguous()


logp = F.log_softmax(logits() / TEMPERATURE, dim=-1)
doc["mean_log_prob"] = logp.mean(-1).tolist()
doc["log_sum_sq"] = torch.logsumexp(2 * logp, dim=-1).tolist()
picked = logp.gather(-1, targets[:, None])[:, 0]
coef = torch.sin(torch.arange(len(targets), dtype=torch.float64))  # a number per trained token, in order
entropy = -(logp.exp() * logp).sum(-1)
gradients("mixed", (coef * logp.mean(-1)).sum() - 0.3 * (coef * picked).sum() + 0.2 * (coef.cos() * entropy).sum())
gradients("smoothed", F.cross_entropy(logits(), targets, label_smoothing=EPSILON))

os.makedirs(OUT, exist_ok=True)
save_file(out, os.path.join(OUT, "golden.safetensors"))
os.chmod(os.path.join(OUT, "golden.safetensors"), 0o644)
json.dump(doc, open(os.path.join(OUT, "golden.json"), "w"), indent=1)
with open(os.path.join(OUT, "README.md"), "w") as f:
    f.write("""# Golden numbers of the head's optional outputs

Made by `OMP_NUM_THREADS=1 python scripts/golden_heads.py` from `../tiny_llama` with its adapter, in float64.

`golden.json`: for each labelled token in order, at `temperature`, `mean_log_prob` = mean over the vocabulary of log p and `log_sum_sq` = log sum p^2;
`mixed` = sum over tokens i, with c = sin i, of c mean_log_prob - 0.3 c log p + 0.2 cos(c) entropy, at `temperature`; `smoothed` = torch's
cross_entropy with `label_smoothing` at temperature 1, a mean over tokens.

`golden.safetensors`: `mixed.NAME` and `smoothed.NAME`, the gradients of the adapter.
""")
