# Trains small tokenizers with the normalizer, pre-tokenizer, post-processor and
# decoder settings of the model families, and stores each with cases of the
# Hugging Face tokenizers library (model/testdata/tokenizers/families/NAME.json.gz)
# or of sentencepiece (NAME.model and NAME.cases.json.gz).
# usage, from the repository root: python3 scripts/golden_tokenizers.py [NAME...]
# needs: tokenizers 0.23.3, sentencepiece 0.2
import base64
import gzip
import io
import json
import os
import random
import sys

import sentencepiece as spm
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "model", "testdata")
sys.path.insert(0, ROOT)
from probe_tokenizer import BLOCKS, WORDS, cases, text  # noqa: E402

OUT = os.path.join(ROOT, "tokenizers", "families")
COUNT = 240
RND = random.Random(3)
CORPUS = [
    "the cat sat on the mat and the dog sat on the log while the other animals were sleeping in the garden",
    "The price of tea is 12 and the price of coffee is 3456; it's what we'll pay, isn't it?",
    '{"name": "get_price", "arguments": {"item": "tea", "count": 2}}',
    "naïve café über straße Ελληνικά русский текст 日本語テスト 中文文本 한국어 नमस्ते שלום مرحبا",
    "    indented\n\n\ttabs and  double  spaces\r\n",
    "for (int i = 0; i < n; i++) { x += a[i]; } def f(x): return x**2",
    "CamelCaseWords and snake_case_words are HTTPServerErrors too",
] * 3 + [text(RND, WORDS).replace("\x00", "") for _ in range(400)]

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
PATTERNS = {
    "llama3": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL,
    "qwen2": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL,
    "qwen35": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL,
    "o200k": LOWER + CONTRACTIONS + "?|" + UPPER + CONTRACTIONS + r"?|\p{N}{1,3}" + O200K_TAIL,
    "tekken": LOWER + "|" + UPPER + r"|\p{N}" + O200K_TAIL,
}
DEEPSEEK_V3 = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-\u309f\u30a0-\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-一가-\ud7ff]+"]
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(pre, normalizer=None, ignore_merges=False, bos=False):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tok.pre_tokenizer = pre
    if normalizer:
        tok.normalizer = normalizer
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|begin|>", "<|im_start|>", "<|im_end|>"], show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if bos:
        tok.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B", special_tokens=[("<|begin|>", 0)])])
    tok.add_tokens([AddedToken("<tool_call>", special=False, normalized=False), AddedToken("  \n", special=False, normalized=True)])
    return tok


def byte_tokens():
    return ["<0x%02X>" % b for b in range(256)]


def spm_bpe(normalizer=None, pre=None, strip=True):
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer:
        tok.normalizer = normalizer
    # Training needs words; the family's own pre-tokenizer is set after it.
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        ([pre_tokenizers.Metaspace(split=True)] if not normalizer else []) + [pre_tokenizers.Split("▁", "merged_with_next")])
    tok.train_from_iterator(CORPUS[:30], trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", "<s>", "</s>"] + byte_tokens(), show_progress=False, limit_alphabet=150))
    spec = json.loads(tok.to_str())
    spec["added_tokens"] = spec["added_tokens"][:3]
    spec["pre_tokenizer"] = None
    tok = Tokenizer.from_str(json.dumps(spec))
    if pre:
        tok.pre_tokenizer = pre
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tok.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    tok.add_tokens([AddedToken("<|user|>", special=False, normalized=False, rstrip=True), AddedToken("[INST]", special=False, normalized=True)])
    return tok


def word_piece(lowercase, strip_accents=None):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tok.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    # GGUF writes "word" as "▁word" and "##ing" as "ing".
    tok.train_from_iterator([c.replace("▁", " ") for c in CORPUS], trainers.WordPieceTrainer(vocab_size=900, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False, limit_alphabet=400))
    tok.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tok


def sentence_piece(name, **kw):
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter([c.replace("\n", " ") for c in CORPUS[:60]]), model_writer=out, minloglevel=2,
                                   hard_vocab_limit=False, character_coverage=0.98, max_sentence_length=10000, **kw)
    return out.getvalue()


def charsmap():
    sys.path.insert(0, os.path.dirname(spm.__file__))
    from sentencepiece import sentencepiece_model_pb2 as pb
    m = pb.ModelProto()
    m.ParseFromString(sentence_piece("t5", model_type="unigram", vocab_size=500, normalization_rule_name="nmt_nfkc"))
    return m


def unigram(normalizer, pre, fallback=False, decoder=None, eos=False):
    m = charsmap()
    vocab = [(p.piece, p.score) for p in m.pieces]
    if fallback:
        vocab += [(b, -20.0) for b in byte_tokens()]
    tok = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=fallback))
    tok.normalizer = normalizer(m)
    tok.pre_tokenizer = pre
    tok.decoder = decoder or decoders.Metaspace()
    if eos:
        tok.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)])
    tok.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>")] + [AddedToken("<mask>", lstrip=True, normalized=True)])
    return tok


def spm_normalizer(m):
    return normalizers.Sequence([normalizers.Precompiled(m.normalizer_spec.precompiled_charsmap), normalizers.Strip(left=False, right=True),
                                 normalizers.Replace(Regex(" {2,}"), "▁")])


def roberta():
    tok = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tok.add_special_tokens([AddedToken("<mask>", lstrip=True), "<s>", "</s>"])
    ids = tok.get_vocab()
    tok.post_processor = processors.RobertaProcessing(("</s>", ids["</s>"]), ("<s>", ids["<s>"]))
    return tok


def clip():
    tok = Tokenizer(models.BPE(unk_token="<|end|>", end_of_word_suffix="</w>", continuing_subword_prefix="##"))
    tok.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=1200, special_tokens=["<|end|>"], end_of_word_suffix="</w>", continuing_subword_prefix="##", show_progress=False))
    tok.decoder = decoders.ByteLevel()
    return tok


def steps(normalizer, pre, decoder=None):
    """A tokenizer whose model is of little interest."""
    tok = Tokenizer(models.BPE(unk_token="[UNK]"))
    tok.normalizer, tok.pre_tokenizer = normalizer, pre
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=900, special_tokens=["[UNK]"], show_progress=False))
    if decoder:
        tok.decoder = decoder
    return tok


N, P = normalizers, pre_tokenizers
FAMILIES = {
    "gpt2": lambda: byte_level(P.ByteLevel(add_prefix_space=False)),
    "gpt2_prefix": lambda: byte_level(P.ByteLevel(add_prefix_space=True)),
    "smollm2": lambda: byte_level(P.Sequence([P.Digits(True), P.ByteLevel(add_prefix_space=False)])),
    "llama3": lambda: byte_level(P.Sequence([isolated(PATTERNS["llama3"]), BYTES]), None, True, True),
    "qwen2": lambda: byte_level(P.Sequence([isolated(PATTERNS["qwen2"]), BYTES]), N.NFC()),
    "qwen35": lambda: byte_level(P.Sequence([isolated(PATTERNS["qwen35"]), BYTES]), N.NFC()),
    "phi4_cl100k": lambda: byte_level(P.Sequence([isolated(PATTERNS["cl100k"]), BYTES])),
    "o200k": lambda: byte_level(P.Sequence([isolated(PATTERNS["o200k"]), BYTES])),
    "tekken": lambda: byte_level(P.Sequence([isolated(PATTERNS["tekken"]), BYTES]), None, True, True),
    "deepseek_v3": lambda: byte_level(P.Sequence([isolated(p) for p in DEEPSEEK_V3] + [BYTES])),
    "deepseek_coder": lambda: byte_level(P.Sequence([isolated(p) for p in DEEPSEEK_CODER] + [P.Digits(True), BYTES])),
    "falcon": lambda: byte_level(P.Sequence([P.Punctuation("contiguous"), P.ByteLevel(add_prefix_space=False), P.Digits(False), isolated("[0-9][0-9][0-9]")])),
    "roberta": roberta,
    "clip": clip,
    "llama2": lambda: spm_bpe(N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")])),
    "mistral": lambda: spm_bpe(None, P.Metaspace(prepend_scheme="first", split=False)),
    "metaspace_always": lambda: spm_bpe(None, P.Metaspace(prepend_scheme="always", split=True)),
    "gemma": lambda: spm_bpe(N.Replace(" ", "▁"), P.Split(" ", "merged_with_previous"), strip=False),
    "bert_uncased": lambda: word_piece(True),
    "bert_cased": lambda: word_piece(False),
    "bert_accents": lambda: word_piece(True, False),
    "t5": lambda: unigram(spm_normalizer, P.Metaspace(prepend_scheme="always"), eos=True),
    "xlm_roberta": lambda: unigram(spm_normalizer, P.Sequence([P.WhitespaceSplit(), P.Metaspace(prepend_scheme="first")])),
    "albert": lambda: unigram(lambda m: N.Sequence([N.Replace("``", '"'), N.NFKD(), N.StripAccents(), N.Lowercase(), N.Nmt()]), P.Metaspace(prepend_scheme="never"), True,
                              decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip("▁", 1, 0)])),
    "nfkc": lambda: steps(N.Sequence([N.NFKC(), N.Strip()]), P.Whitespace()),
    "nfd": lambda: steps(N.NFD(), P.Sequence([P.CharDelimiterSplit("a"), P.Punctuation("merged_with_previous")]), decoders.WordPiece(cleanup=False)),
    "punctuation_next": lambda: steps(N.Lowercase(), P.Punctuation("merged_with_next"), decoders.Fuse()),
    "punctuation_removed": lambda: steps(N.Nmt(), P.Punctuation("removed"), decoders.Metaspace(prepend_scheme="never")),
}
MODELS = {
    "spm_bpe": dict(model_type="bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False),
    "spm_gemma": dict(model_type="bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                      add_dummy_prefix=False, user_defined_symbols=["<start_of_turn>", "\t\t", "▁▁", "▁▁▁"]),
    "spm_user": dict(model_type="bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=True,
                     user_defined_symbols=["<sep>", "<a|b>"]),
    "spm_unigram": dict(model_type="unigram", vocab_size=500, normalization_rule_name="identity"),
}


def save(name, data):
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, compresslevel=9) as f:
        f.write(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
    with open(os.path.join(OUT, name), "wb") as f:
        f.write(raw.getvalue())


os.makedirs(OUT, exist_ok=True)
wanted = sys.argv[1:]
for name, make in FAMILIES.items():
    if not wanted or name in wanted:
        tok = make()
        save(name + ".json.gz", {"tokenizer": json.loads(tok.to_str()), **cases(tok, 7, COUNT)})
for name, args in MODELS.items():
    if not wanted or name in wanted:
        model = sentence_piece(name, **args)
        with open(os.path.join(OUT, name + ".model"), "wb") as f:
            f.write(model)
        sp = spm.SentencePieceProcessor(model_proto=model)
        words = WORDS + [sp.id_to_piece(i) for i in range(sp.get_piece_size()) if not sp.is_byte(i) and not sp.is_control(i)][:20]
        rnd, made = random.Random(5), []
        while len(made) < COUNT:
            # SentencePiece cuts a text at a zero byte and reads ▁ as a space.
            s = text(rnd, words).replace("\x00", "")
            if args["model_type"] == "unigram" and "一" * 101 in s:
                continue  # SentencePiece adds 32-bit scores, whose rounding decides ties
            made.append({"text": s, "ids": sp.encode(s)})
        save(name + ".cases.json.gz", made)
print("done")
