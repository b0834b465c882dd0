"""Writes model/testdata/gguf: tiny models of model/testdata/families as
llama.cpp's converter would store them, through the gguf package's own names for
tensors and keys. Matrices are F16, vectors F32.

    python scripts/golden_gguf.py
"""

import glob
import json
import os

import gguf
import numpy as np
from safetensors.numpy import load_file

HERE = os.path.dirname(os.path.abspath(__file__))
IN = os.path.join(HERE, "..", "model", "testdata", "families")
OUT = os.path.join(HERE, "..", "model", "testdata", "gguf")

ARCH = gguf.MODEL_ARCH
FAMILIES = {
    "llama3": ARCH.LLAMA, "llama-bias": ARCH.LLAMA, "llama-yarn": ARCH.LLAMA, "mixtral": ARCH.LLAMA, "smollm3": ARCH.SMOLLM3,
    "qwen2": ARCH.QWEN2, "qwen3": ARCH.QWEN3, "qwen3moe": ARCH.QWEN3MOE, "phi3": ARCH.PHI3, "gemma2": ARCH.GEMMA2, "gemma3": ARCH.GEMMA3,
}


def permute(w, heads):
    """The converter's, for architectures whose rope turns neighbours."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def llama3_factors(c, rope, dim):
    freqs = 1.0 / (rope["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float32) / dim))
    old, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    out = []
    for f in freqs:
        wave = 2 * np.pi / f
        if wave < old / high:
            out.append(1.0)
        elif wave > old / low:
            out.append(rope["factor"])
        else:
            smooth = (old / wave - low) / (high - low)
            out.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(out, dtype=np.float32)


def write(name, arch):
    with open(os.path.join(IN, name, "config.json")) as f:
        c = json.load(f)
    tensors = {}
    for f in glob.glob(os.path.join(IN, name, "model*.safetensors")):
        tensors.update(load_file(f))
    w = gguf.GGUFWriter(os.path.join(OUT, name + ".gguf"), gguf.MODEL_ARCH_NAMES[arch])
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    dim = c.get("head_dim") or c["hidden_size"] // heads
    rope = c["rope_parameters"]
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    if "head_dim" in c:
        w.add_key_length(dim)
        w.add_value_length(dim)
    if arch in (ARCH.LLAMA, ARCH.SMOLLM3):
        w.add_vocab_size(c["vocab_size"])
        w.add_rope_dimension_count(dim)
    if arch == ARCH.PHI3:
        w.add_rope_dimension_count(int(dim * c["partial_rotary_factor"]))
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        scale = c["max_position_embeddings"] / rope["original_max_position_embeddings"]
        w.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(rope["original_max_position_embeddings"]))))
        w.add_sliding_window(c["sliding_window"] or 0)
        w.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], dtype=np.float32))
        w.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], dtype=np.float32))
    if arch in (ARCH.GEMMA2, ARCH.GEMMA3):
        w.add_sliding_window(c["sliding_window"])
    if arch == ARCH.GEMMA2:
        w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if arch == ARCH.GEMMA3:
        # The converter leaves the pattern to its reader's 6; ours is 3.
        w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
        w.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    w.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    elif rope["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_factors(c, rope, dim))
    if "num_local_experts" in c:
        w.add_expert_count(c["num_local_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        if "moe_intermediate_size" in c:
            w.add_expert_feed_forward_length(c["moe_intermediate_size"])

    names = gguf.get_tensor_name_map(arch, c["num_hidden_layers"])
    dense = gguf.get_tensor_name_map(ARCH.LLAMA, c["num_hidden_layers"])  # for the dense layer of qwen3moe
    experts = {}
    for hf, t in tensors.items():
        parts = hf.split(".")
        if "experts" in parts:
            e = parts.index("experts") + 1
            experts.setdefault(".".join(parts[:e] + parts[e + 1:]), {})[int(parts[e])] = t
            continue
        add(w, arch, names, dense, heads, kv, hf, t)
    for hf, parts in experts.items():
        add(w, arch, names, dense, heads, kv, hf, np.stack([parts[e] for e in sorted(parts)]))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def add(w, arch, names, dense, heads, kv, hf, t):
    name = names.get_name(hf, try_suffixes=(".weight", ".bias")) or dense.get_name(hf, try_suffixes=(".weight", ".bias"))
    assert name, hf
    if arch in (ARCH.LLAMA, ARCH.SMOLLM3):
        if ".q_proj." in hf:
            t = permute(t, heads)
        if ".k_proj." in hf:
            t = permute(t, kv)
    if arch in (ARCH.GEMMA2, ARCH.GEMMA3) and hf.endswith("norm.weight"):
        t = t + np.float32(1)
    vector = t.ndim == 1 or "ffn_gate_inp" in name
    w.add_tensor(name, np.ascontiguousarray(t.astype(np.float32 if vector else np.float16)))


os.makedirs(OUT, exist_ok=True)
for family, architecture in FAMILIES.items():
    write(family, architecture)
