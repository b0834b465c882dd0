"""Writes model/testdata/families: a tiny random model of every architecture,
with what transformers and peft compute from it. See the README.md there.

    OMP_NUM_THREADS=1 python scripts/golden_families.py [NAME...]
"""

import json
import os
import shutil
import sys

import torch
import transformers as tf
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "model", "testdata", "families")
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ATTN = ALL[:4]
FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]

BASE = dict(vocab_size=96, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=None)


def llama(**kw):
    return tf.LlamaConfig(**{**BASE, "head_dim": 8, **kw})


# name: (config, LoRA settings, length of the long sequence or None, shard size)
FAMILIES = {
    "llama2": (lambda: llama(num_key_value_heads=4, tie_word_embeddings=False, rms_norm_eps=1e-5), dict(r=4, lora_alpha=8, target_modules=ALL)),
    "llama3": (lambda: llama(head_dim=16, tie_word_embeddings=True, rope_parameters=dict(
        rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=32)), dict(r=4, lora_alpha=8, target_modules=ALL)),
    "llama-linear": (lambda: llama(tie_word_embeddings=False, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.5)),
                     dict(r=2, lora_alpha=4, target_modules=ALL)),
    "llama-dynamic": (lambda: llama(tie_word_embeddings=True, max_position_embeddings=32, rope_parameters=dict(
        rope_type="dynamic", rope_theta=10000.0, factor=2.0)), dict(r=2, lora_alpha=4, target_modules=ALL), 64),
    "llama-yarn": (lambda: llama(head_dim=16, tie_word_embeddings=True, max_position_embeddings=128, rope_parameters=dict(
        rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=32, beta_fast=4.0)),
        dict(r=2, lora_alpha=4, target_modules=ALL)),
    "llama-bias": (lambda: llama(tie_word_embeddings=False, attention_bias=True), dict(r=4, lora_alpha=8, target_modules=ALL)),
    "smollm3": (lambda: tf.SmolLM3Config(**{**BASE, "num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "tie_word_embeddings": True,
                                           "rope_parameters": dict(rope_type="default", rope_theta=2000.0)}),
                dict(r=2, lora_alpha=4, target_modules=ALL)),
    "qwen2": (lambda: tf.Qwen2Config(**BASE, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e6)),
              dict(r=4, lora_alpha=8, target_modules=ALL), None, "20KB"),
    "qwen3": (lambda: tf.Qwen3Config(**BASE, head_dim=16, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e6)),
              dict(r=4, lora_alpha=8, use_rslora=True, target_modules=ALL)),
    "mistral": (lambda: tf.MistralConfig(**BASE, head_dim=8, sliding_window=8, tie_word_embeddings=False),
                dict(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"])),
    "phi3": (lambda: tf.Phi3Config(**{**BASE, "num_attention_heads": 2, "num_key_value_heads": 1, "original_max_position_embeddings": 32,
                                     "max_position_embeddings": 128, "partial_rotary_factor": 0.75, "sliding_window": 10,
                                     "tie_word_embeddings": False, "rope_parameters": dict(
                                         rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75,
                                         short_factor=[1.0, 1.1, 1.25, 1.5, 1.75, 2.0], long_factor=[1.2, 1.7, 2.5, 3.5, 5.0, 8.0],
                                         original_max_position_embeddings=32)}),
             dict(r=4, lora_alpha=8, target_modules=FUSED), 40),
    "phi4": (lambda: tf.Phi3Config(**BASE, original_max_position_embeddings=64, sliding_window=None, tie_word_embeddings=False,
                                  rope_parameters=dict(rope_type="default", rope_theta=250000.0, partial_rotary_factor=1.0)),
             dict(r=4, lora_alpha=8, target_modules=FUSED)),
    "gemma2": (lambda: tf.Gemma2Config(**{**BASE, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24,
                                         "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0, "tie_word_embeddings": True}),
               dict(r=2, lora_alpha=4, target_modules=ALL)),
    "gemma3": (lambda: tf.Gemma3TextConfig(**{**BASE, "num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 8,
                                             "query_pre_attn_scalar": 20, "tie_word_embeddings": True,
                                             "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
                                             "rope_parameters": {
                                                 "sliding_attention": dict(rope_type="default", rope_theta=10000.0),
                                                 "full_attention": dict(rope_type="linear", factor=4.0, rope_theta=1e6)}}),
               dict(r=2, lora_alpha=4, target_modules=ALL)),
    "mixtral": (lambda: tf.MixtralConfig(**{**BASE, "intermediate_size": 24, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
                                           "sliding_window": None, "tie_word_embeddings": False,
                                           "rope_parameters": dict(rope_type="default", rope_theta=1e6)}),
                dict(r=4, lora_alpha=8, target_modules=ATTN)),
    "qwen3moe": (lambda: tf.Qwen3MoeConfig(**{**BASE, "num_hidden_layers": 3, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
                                             "moe_intermediate_size": 16, "norm_topk_prob": False, "mlp_only_layers": [1],
                                             "tie_word_embeddings": True, "rope_parameters": dict(rope_type="default", rope_theta=1e6)}),
                 dict(r=4, lora_alpha=8, target_modules=ATTN)),
}


def randomise(model, gen, plus_one):
    """Gives every parameter, norms and biases included, a value that matters."""
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=gen)
        if name.endswith("bias"):
            v = 0.5 * r
        elif p.dim() == 1:
            v = 0.3 * r + (0.0 if plus_one else 1.0)
        elif "embed_tokens" in name:
            # Gemma scales embeddings; larger ones would predict themselves.
            v = (0.15 if plus_one else 0.5) * r
        else:
            v = r * 1.3 / p.shape[-1] ** 0.5
        p.data.copy_(v)


def nll(model, seqs):
    """Mean over every predicted token of every sequence, each run alone."""
    total, count, logits = 0.0, 0, []
    for s in seqs:
        ids = torch.tensor([s])
        out = model(input_ids=ids, use_cache=False).logits[0]
        logits.append(out)
        total = total + torch.nn.functional.cross_entropy(out[:-1], ids[0, 1:], reduction="sum")
        count += len(s) - 1
    return total / count, logits


@torch.no_grad()
def greedy(model, prompt, n):
    """The continuation, and the least gap between best and second best logit."""
    ids, gap = list(prompt), float("inf")
    for _ in range(n):
        top = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
        gap = min(gap, (top.values[0] - top.values[1]).item())
        ids.append(top.indices[0].item())
    return ids[len(prompt):], gap


def hub_names(family, grads):
    """transformers 5 holds experts stacked; files hold them one by one."""
    out = {}
    for name, g in grads.items():
        if name.endswith("mlp.experts.gate_up_proj") or name.endswith("mlp.experts.down_proj"):
            pre = name.rsplit(".", 1)[0]
            for e in range(g.shape[0]):
                if name.endswith("down_proj"):
                    parts = {"down_proj": g[e]}
                else:
                    half = g.shape[1] // 2
                    parts = {"gate_proj": g[e, :half], "up_proj": g[e, half:]}
                for k, v in parts.items():
                    out[f"{pre}.{e}.{k}.weight"] = v
        else:
            out[name] = g
    if family == "mixtral":
        w = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
        for name in list(out):
            new = name.replace(".mlp.", ".block_sparse_moe.")
            if ".experts." in new:
                part = new.split(".")[-2]
                new = new.replace(part, w[part])
            out[new] = out.pop(name)
    return out


def make(name, config, lora, long=None, shard=None):
    path = os.path.join(OUT, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    cfg = config()
    cfg._attn_implementation = "eager"
    for seed in range(100):
        gen = torch.Generator().manual_seed(1000 + seed)
        torch.manual_seed(0)
        model = tf.AutoModelForCausalLM.from_config(cfg, attn_implementation="eager", dtype=torch.float32).eval()
        randomise(model, gen, cfg.model_type.startswith("gemma"))
        seqs = [torch.randint(3, cfg.vocab_size, (n,), generator=gen).tolist() for n in (24, 13)]
        tokens, gap = greedy(model, seqs[1], 12)
        # Far enough apart that rounding can't turn the choice, and not all one token.
        if gap > 0.01 and len(set(tokens)) > 4:
            break
    else:
        raise SystemExit(f"{name}: no seed gives a clear greedy continuation")
    model.save_pretrained(path, **({"max_shard_size": shard} if shard else {}))
    if os.path.exists(os.path.join(path, "generation_config.json")):
        os.remove(os.path.join(path, "generation_config.json"))
    files = [f for f in os.listdir(path) if f.endswith(".safetensors")]
    stored = {k for f in files for k in load_file(os.path.join(path, f))}

    golden, doc = {}, {"family": name, "model_type": cfg.model_type, "made_with": f"transformers {tf.__version__}, torch {torch.__version__}",
                       "sequences": seqs}
    loss, logits = nll(model, seqs)
    loss.backward()
    doc["loss"] = loss.item()
    for i, l in enumerate(logits):
        golden[f"logits.{i}"] = l.detach()
    grads = hub_names(name, {k: p.grad for k, p in model.named_parameters()})
    missing = stored - set(grads) - {"lm_head.weight"}
    assert not missing, missing
    last = cfg.num_hidden_layers - 1
    for k, g in grads.items():
        # Vectors of every layer, matrices of the last one, embedding and head.
        if g.dim() == 1 or f"layers.{last}." in k or "layers." not in k:
            golden["grad." + k] = g
    doc["greedy"] = {"prompt": seqs[1], "tokens": tokens, "gap": gap}
    if long:
        ids = torch.randint(3, cfg.vocab_size, (long,), generator=gen).tolist()
        with torch.no_grad():
            golden["long.logits"] = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -8:].clone()
            model(input_ids=torch.tensor([seqs[0]]), use_cache=False)  # back to short frequencies
        doc["long"] = {"sequence": ids, "from": long - 8}

    model.zero_grad()
    for p in model.parameters():
        p.requires_grad_(False)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, bias="none", **lora)).eval()
    trained = [(n, p) for n, p in adapted.named_parameters() if "lora_" in n]
    for _, p in trained:
        p.data.copy_(torch.randn(p.shape, generator=gen) * (0.6 / p.shape[-1] ** 0.5))
    loss, logits = nll(adapted, seqs)
    loss.backward()
    tokens, gap = greedy(adapted, seqs[1], 12)
    doc["lora"] = {"loss": loss.item(), "greedy": {"prompt": seqs[1], "tokens": tokens, "gap": gap}}
    for i, l in enumerate(logits):
        golden[f"lora.logits.{i}"] = l.detach()
    for n, p in trained:
        golden["lora.grad." + n.replace(".default.", ".")] = p.grad
    adapted.save_pretrained(path)
    for junk in ("README.md",):
        if os.path.exists(os.path.join(path, junk)):
            os.remove(os.path.join(path, junk))
    # A machine's path has no place in the file.
    conf = os.path.join(path, "adapter_config.json")
    with open(conf) as f:
        ac = json.load(f)
    ac["base_model_name_or_path"] = name
    ac["target_modules"] = sorted(ac["target_modules"])
    with open(conf, "w") as f:
        json.dump(ac, f, indent=2)
        f.write("\n")
    save_file({k: v.contiguous() for k, v in golden.items()}, os.path.join(path, "golden.safetensors"))
    with open(os.path.join(path, "golden.json"), "w") as f:
        json.dump(doc, f)
        f.write("\n")
    for f in os.listdir(path):
        os.chmod(os.path.join(path, f), 0o644)
    size = sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path))
    print(f"{name}: seed {seed}, {size // 1024} KiB, loss {doc['loss']:.4f}, lora {doc['lora']['loss']:.4f}, gaps {doc['greedy']['gap']:.3f} {gap:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for n in sys.argv[1:] or FAMILIES:
        make(n, *FAMILIES[n])
