#!/usr/bin/env python3
"""Golden numbers of model/embed, made with transformers and tokenizers:

    golden_embed.py OUT            a tiny random BERT and its vectors
    golden_embed.py OUT MODELDIR   the vectors of a real sentence-transformers directory
"""
import json
import os
import sys

import torch
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

TEXTS = [
    "How is the weather today?", "The weather is fine.", "A quick brown fox jumps over the lazy dog", "naïve café, déjà vu!",
    "深度学习 and tool calls", "x", "def f(a, b):\n    return a + b  # 12345", "Reinforcement learning with verifiable rewards " * 12,
]


def vectors(model, tok, texts):
    out = []
    for t in texts:
        ids = tok.encode(t).ids
        with torch.no_grad():
            h = model(torch.tensor([ids])).last_hidden_state[0]
        v = torch.nn.functional.normalize(h.mean(0), dim=0)
        out.append({"text": t, "ids": ids, "vector": [round(x, 8) for x in v.tolist()]})
    return out


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    if len(sys.argv) > 2:
        src = sys.argv[2]
        tok = Tokenizer.from_file(os.path.join(src, "tokenizer.json"))
        tok.no_padding(), tok.no_truncation()
        model = BertModel.from_pretrained(src, attn_implementation="eager").eval()
        rows = vectors(model, tok, TEXTS)
        for r in rows:
            r["vector"] = r["vector"][:16]
        json.dump(rows, open(os.path.join(out, "minilm.json"), "w"), ensure_ascii=False)
        return
    torch.manual_seed(0)
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] the weather is fine how today a quick brown fox ! ? . , ##s ##er x".split() + list("abcdefghijklmnopqrstuvwyz0123456789") + ["##" + c for c in "abcdefghijklmnopqrstuvwyz0123456789"]
    vocab = {w: i for i, w in enumerate(dict.fromkeys(words))}
    tok = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": vocab[w], "content": w, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for w in words[:5]],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {w: {"id": w, "ids": [vocab[w]], "tokens": [w]} for w in ("[CLS]", "[SEP]")}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab},
    }
    json.dump(tok, open(os.path.join(out, "tokenizer.json"), "w"))
    conf = BertConfig(vocab_size=len(vocab), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, max_position_embeddings=160)
    model = BertModel(conf, add_pooling_layer=False).eval()
    for p in model.parameters():  # norms and biases must matter
        p.data.add_(torch.randn_like(p) * 0.1)
    model.config._attn_implementation = "eager"
    model.save_pretrained(out)
    conf = json.load(open(os.path.join(out, "config.json")))
    conf["position_embedding_type"] = "absolute"
    json.dump(conf, open(os.path.join(out, "config.json"), "w"), indent=1)
    json.dump([{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
               {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}], open(os.path.join(out, "modules.json"), "w"))
    os.makedirs(os.path.join(out, "1_Pooling"), exist_ok=True)
    json.dump({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, open(os.path.join(out, "1_Pooling", "config.json"), "w"))
    json.dump({"max_seq_length": 128, "do_lower_case": False}, open(os.path.join(out, "sentence_bert_config.json"), "w"))
    json.dump(vectors(model, Tokenizer.from_file(os.path.join(out, "tokenizer.json")), TEXTS[:7]), open(os.path.join(out, "golden.json"), "w"), ensure_ascii=False)


main()
