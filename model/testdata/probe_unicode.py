# Writes the general category, white space, numeric property, normalization forms,
# lower case and BERT's character classes of every code point as the Hugging Face
# tokenizers library sees them: input of genunicode.go.
# usage: python3 probe_unicode.py OUT.json      (needs: pip install tokenizers)
import json
import sys

from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()
BLOCK = 4096


def matching(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    for i in range(0, len(CODE_POINTS), BLOCK):
        block = CODE_POINTS[i : i + BLOCK]
        kept = set()
        for _, (a, b) in split.pre_tokenize_str("".join(map(chr, block))):
            kept.update(range(a, b))
        yield from (c for j, c in enumerate(block) if j not in kept)


def numeric():
    digits = pre_tokenizers.Digits(individual_digits=True)
    return (c for c in CODE_POINTS if len(digits.pre_tokenize_str("a" + chr(c))) == 2)


def ranges(points):
    out = []
    for c in points:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


probe = {cat: ranges(matching(r"\p{%s}" % cat)) for cat in CATEGORIES}
probe["space"] = ranges(matching(r"\s"))
probe["numeric"] = ranges(numeric())
nfc = normalizers.NFC().normalize_str
# Code points that move before U+0300 (combining class 1 to 229), that U+0316
# moves before (class above 220), and that NFC leaves as they are.
probe["nfc_before_300"] = ranges(c for c in CODE_POINTS if nfc("\u0300" + chr(c))[0] != "\u0300")
probe["nfc_after_316"] = ranges(c for c in CODE_POINTS if nfc("\u0378" + chr(c) + "\u0316")[1] == "\u0316")
probe["nfc_stable"] = ranges(c for c in CODE_POINTS if nfc(chr(c)) == chr(c))
probe["nfc_composes"] = ranges(c for c in CODE_POINTS if nfc(normalizers.NFD().normalize_str(chr(c))) == chr(c) != normalizers.NFD().normalize_str(chr(c)))
# Full sets of what steps drop or split at.
bert = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
for name, step in (
    ("set_bertDropped", normalizers.BertNormalizer(**{**bert, "clean_text": True})),
    ("set_bertMarks", normalizers.BertNormalizer(**{**bert, "strip_accents": True})),
    ("set_combiningMarks", normalizers.StripAccents()),
):
    probe[name] = ranges(c for c in CODE_POINTS if step.normalize_str(chr(c)) == "")
punctuation = pre_tokenizers.Punctuation().pre_tokenize_str
probe["set_punctuation"] = ranges(c for c in CODE_POINTS if len(punctuation("a" + chr(c) + "b")) == 3)
# Mappings of single code points.
for name, step in (("map_lower", normalizers.Lowercase()), ("map_nfd", normalizers.NFD()), ("map_nfkd", normalizers.NFKD())):
    probe[name] = [[c, step.normalize_str(chr(c))] for c in CODE_POINTS if step.normalize_str(chr(c)) != chr(c)]
with open(sys.argv[1], "w") as f:
    json.dump(probe, f)
