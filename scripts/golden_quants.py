# Makes model/testdata/quants.bin: blocks of every quantised GGUF type with what
# the gguf package's dequantiser makes of them, and of f32 rows with what its
# quantiser makes of them.
#
# Python packages: gguf (0.19.0) numpy. From the repository's root:
#
#   python3 scripts/golden_quants.py model/testdata/quants.bin
#
# The file is a sequence of records, little endian: name length (u8), name,
# number of stored bytes (u32), stored bytes, number of floats (u32), f32
# floats. A record "X" decodes, a record ">X" encodes its floats to its bytes.
import struct
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, quants

rng = np.random.default_rng(20)
BLOCKS = 6


def record(out, name, raw, floats):
    raw, floats = np.ascontiguousarray(raw).tobytes(), np.ascontiguousarray(floats, dtype="<f4").tobytes()
    out.write(struct.pack("<B", len(name)) + name.encode() + struct.pack("<I", len(raw)) + raw)
    out.write(struct.pack("<I", len(floats) // 4) + floats)


# Where a block's f16 scales stand; everything else may be any byte.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
}

with open(sys.argv[1], "wb") as out:
    for name, at in SCALES.items():
        elems, size = GGML_QUANT_SIZES[T[name]]
        blocks = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        for a in at:
            scale = (rng.standard_normal(BLOCKS) * 0.1).astype(np.float16)
            scale[1] = -scale[1]
            scale[2] = 3e-7  # subnormal
            scale[3] = 0
            blocks[:, a : a + 2] = scale.view(np.uint8).reshape(BLOCKS, 2)
        record(out, name, blocks, quants.dequantize(blocks, T[name]))
    for name in ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]:
        x = rng.standard_normal((8, 32)).astype(np.float32)
        x[1] *= 1e-6
        x[2] = 0
        x[3] = 7
        x[4] = np.abs(x[4])
        x[5, 3], x[5, 7] = 4, -4  # equal magnitudes: the first counts
        x[6] = np.round(x[6] * 4) / 4  # codes that fall on halves
        record(out, ">" + name, quants.quantize(x, T[name]), x)
