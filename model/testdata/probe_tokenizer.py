# Makes tokenizer cases with the Hugging Face tokenizers library, the reference.
# usage: python3 probe_tokenizer.py TOKENIZER.json OUT.json SEED COUNT [all]
# With "all", every block of 64 code points is a case as well.
import json
import random
import sys

from tokenizers import Tokenizer

tok = Tokenizer.from_file(sys.argv[1])
tok.no_truncation()
tok.no_padding()
random.seed(int(sys.argv[3]))
BLOCKS = [(0x20, 0x7F)] * 6 + [
    (0, 0x20), (0x80, 0x250), (0x300, 0x370), (0x370, 0x530), (0x600, 0x700), (0x900, 0xA00), (0x2000, 0x2070),
    (0x2100, 0x2200), (0x2160, 0x2190), (0x3000, 0x3100), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xFE00, 0xFF00),
    (0x1C80, 0x1C90), (0x105C0, 0x105F4), (0x10D40, 0x10D70), (0x16FF0, 0x17000), (0x1F300, 0x1F700), (0x2EBF0, 0x2EC00),
]
WORDS = [
    "Hello", " the", "   ", "\n\n", "\t", "don't", "WE'LL", "I'\u017f", "'s", "'S", "123", "4567", "\u00bd", "\u00b2",
    "\u0663", "\u0085", "\u00a0", "\u2028", "\u3000", "e\u0301", "\ufb01", "\u200d", "\U0001f469\u200d\U0001f467",
    '{"a": 1}', "==", "//", "_x_", "<|im_", " word", "word ",
] + [t.content for t in tok.get_added_tokens_decoder().values()][:40]


def text():
    s = ""
    for _ in range(random.randint(0, 14)):
        if random.random() < 0.5:
            s += random.choice(WORDS)
        else:
            a, b = random.choice(BLOCKS)
            s += "".join(chr(random.randrange(a, b)) for _ in range(random.randint(1, 4)))
    return s


def case(s):
    ids = tok.encode(s, add_special_tokens=False).ids
    return {"text": s, "ids": ids, "ids_default": tok.encode(s).ids, "decoded": tok.decode(ids, skip_special_tokens=False)}


encode = [case(text()) for _ in range(int(sys.argv[4]))]
if len(sys.argv) > 5:
    for i in range(0, 0x110000, 64):
        s = "".join(chr(c) for c in range(i, i + 64) if not 0xD800 <= c < 0xE000)
        if s:
            encode += [case(s), case(" ".join(s)), case("1".join(s))]
n = tok.get_vocab_size()
decode = []
for _ in range(int(sys.argv[4]) // 4):
    ids = [random.randrange(n) for _ in range(random.randint(1, 12))]
    decode.append({"ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False)})
with open(sys.argv[2], "w") as f:
    json.dump({"encode": encode, "decode": decode}, f, separators=(",", ":"))
print(len(encode), len(decode))
