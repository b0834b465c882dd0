# Makes tokenizer cases with the Hugging Face tokenizers library, the reference.
# usage: python3 probe_tokenizer.py TOKENIZER.json OUT.json SEED COUNT [all]
# With "all", every block of 64 code points is a case as well.
import json
import random
import sys

from tokenizers import Tokenizer

BLOCKS = [(0x20, 0x7F)] * 8 + [
    (0, 0x20), (0x80, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x5F0), (0x600, 0x700), (0x900, 0xA00), (0xE00, 0xE80),
    (0x1000, 0x10A0), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x2070, 0x20D0), (0x20D0, 0x2100), (0x2100, 0x2200),
    (0x2160, 0x2190), (0x2460, 0x2500), (0x2581, 0x2582), (0x3000, 0x3100), (0x3130, 0x3190), (0x3200, 0x3400), (0x4E00, 0x4F00),
    (0xAC00, 0xAD00), (0xE000, 0xE010), (0xF900, 0xFB50), (0xFB50, 0xFE00), (0xFE00, 0xFF00), (0xFF00, 0xFFF0), (0xFFF0, 0x10000),
    (0x1C80, 0x1C90), (0x105C0, 0x105F4), (0x10D40, 0x10D70), (0x16FF0, 0x17000), (0x1D400, 0x1D500), (0x1F100, 0x1F200),
    (0x1F300, 0x1F700), (0x2EBF0, 0x2EC00), (0x2F800, 0x2F810), (0xE0020, 0xE0080),
]
WORDS = [
    "Hello", " the", "   ", "\n\n", "\t", "don't", "WE'LL", "I'\u017f", "'s", "'S", "123", "4567", "\u00bd", "\u00b2",
    "\u0663", "\u0085", "\u00a0", "\u2028", "\u3000", "e\u0301", "\ufb01", "\u200d", "\U0001f469\u200d\U0001f467",
    '{"a": 1}', "==", "//", "_x_", "<|im_", " word", "word ", "\r\n", "\r", "  \n ", "\u2581", "\u2581\u2581x", " \u2581", "\u0041\u030a",
    "\u0130\u0130", "\u03a3\u03a3 \u03c2", "\u1e9b\u0323", "\u00a9\u200d\u2764", "1\ufe0f\u20e3", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd",
    "\u0e33\u0e49", "\u1100\u1161\u11a8", "\ufffd", "\x00", "\x7f", "\ufeff", "\u2460\u0301", "\u00bc\u0301", "\u0600\u0031", "na\u00efve",
    "for (int i = 0; i < n; i++) {\n\t\tx += a[i];\n}", "def f(x):\n    return x**2  # \u2200x", "https://example.org/a?b=c&d=%20", "3.14159e-10",
    "1234567890123", "The quick brown fox", " jumps over", "CamelCaseWords", "snake_case", "\u4e2d\u6587\u6587\u672c", "\u65e5\u672c\u8a9e\u3067\u3059",
    "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442", "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627", "\u0928\u092e\u0938\u094d\u0924\u0947", " ", "  ", "    ", "      ",
    "<0x41>", "<unk>", "\u00e0\u0300\u0316\u0327", "a" * 120, "\u4e00" * 101, "=" * 40,
]


def text(rnd, words):
    s = ""
    for _ in range(rnd.randint(0, 14)):
        if rnd.random() < 0.5:
            s += rnd.choice(words)
        else:
            a, b = rnd.choice(BLOCKS)
            s += "".join(chr(rnd.randrange(a, b)) for _ in range(rnd.randint(1, 4)))
    return s


def cases(tok, seed, count, blocks=False):
    tok.no_truncation()
    tok.no_padding()
    rnd = random.Random(seed)
    words = WORDS + [t.content for t in tok.get_added_tokens_decoder().values()][:60]

    def case(s):
        ids = tok.encode(s, add_special_tokens=False).ids
        return {"text": s, "ids": ids, "ids_default": tok.encode(s).ids, "decoded": tok.decode(ids, skip_special_tokens=False)}

    encode = [case(text(rnd, words)) for _ in range(count)]
    if blocks:
        for i in range(0, 0x110000, 64):
            s = "".join(chr(c) for c in range(i, i + 64) if not 0xD800 <= c < 0xE000)
            if s:
                encode += [case(s), case(" ".join(s)), case("1".join(s))]
    n = tok.get_vocab_size()
    decode = []
    for _ in range(count // 4):
        ids = [rnd.randrange(n) for _ in range(rnd.randint(1, 12))]
        decode.append({"ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False)})
    return {"encode": encode, "decode": decode}


if __name__ == "__main__":
    made = cases(Tokenizer.from_file(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]), len(sys.argv) > 5)
    with open(sys.argv[2], "w") as f:
        json.dump(made, f, separators=(",", ":"))
    print(len(made["encode"]), len(made["decode"]))
