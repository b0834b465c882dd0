"""Writes model/testdata/rope.json: inverse frequencies and attention factors of
transformers' rope scalings, for a table test of Config.Rope.

    python scripts/golden_rope.py
"""

import json
import os

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "model", "testdata", "rope.json")
short = [1.0 + 0.05 * i for i in range(8)]
long = [1.5 + 0.9 * i for i in range(8)]

# name, max_position_embeddings, sequence length asked for, rope_parameters
CASES = [
    ("linear", 4096, None, dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    ("dynamic within", 2048, None, dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)),
    ("dynamic long", 2048, 4096, dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)),
    ("dynamic longer", 1024, 8192, dict(rope_type="dynamic", rope_theta=500000.0, factor=8.0)),
    ("yarn", 131072, None, dict(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=32768)),
    ("yarn betas", 8192, None, dict(rope_type="yarn", rope_theta=10000.0, factor=16.0, original_max_position_embeddings=512, beta_fast=16.0, beta_slow=2.0)),
    ("yarn untruncated", 131072, None, dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, original_max_position_embeddings=4096, truncate=False)),
    ("yarn mscale", 163840, None, dict(rope_type="yarn", rope_theta=10000.0, factor=40.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=0.7)),
    ("yarn attention factor", 8192, None, dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=1024, attention_factor=1.25)),
    ("yarn ratio", 8192, None, dict(rope_type="yarn", rope_theta=10000.0, factor=None, original_max_position_embeddings=1024)),
    ("yarn one pair", 64, None, dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=4)),
    ("llama3", 131072, None, dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
    ("llama3.2", 131072, None, dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
    ("longrope short", 131072, None, dict(rope_type="longrope", rope_theta=10000.0, short_factor=short, long_factor=long, original_max_position_embeddings=4096)),
    ("longrope long", 131072, 4097, dict(rope_type="longrope", rope_theta=10000.0, short_factor=short, long_factor=long, original_max_position_embeddings=4096)),
    ("longrope factor", 4096, None, dict(rope_type="longrope", rope_theta=10000.0, short_factor=short, long_factor=long, original_max_position_embeddings=4096, factor=6.0)),
    ("longrope attention factor", 131072, None, dict(rope_type="longrope", rope_theta=10000.0, short_factor=short, long_factor=long, original_max_position_embeddings=4096, attention_factor=1.1)),
]

out = []
for name, positions, length, rope in CASES:
    config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=16, intermediate_size=64, num_hidden_layers=1, vocab_size=8,
                                      max_position_embeddings=positions, rope_parameters=dict(rope))
    inv, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=length)
    file = dict(model_type="llama", vocab_size=8, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, head_dim=16,
                max_position_embeddings=positions, rope_parameters=rope)
    out.append(dict(name=name, long=length is not None, config=file, inv=[float(x) for x in inv], scale=float(factor)))
with open(OUT, "w") as f:
    json.dump(out, f, indent=1)
    f.write("\n")
