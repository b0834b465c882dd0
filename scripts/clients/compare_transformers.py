#!/usr/bin/env python3
"""Compares the loglikelihoods that lm-eval got from a server with transformers'.

compare_transformers.py MODEL_FOLDER SAMPLES.jsonl [TOLERANCE]

SAMPLES is what lm-eval writes with --log_samples for a multiple-choice task.
"""
import json
import sys

import torch
import transformers


def main():
    folder, samples = sys.argv[1:3]
    tolerance = float(sys.argv[3]) if len(sys.argv) > 3 else 1e-3
    torch.set_num_threads(1)  # many short passes: threads only wait for each other
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    n, worst, greedy = 0, 0.0, 0
    with open(samples) as f:
        for line in f:
            doc = json.loads(line)
            for args, resp in zip(doc["arguments"].values(), doc["resps"]):
                context, ending = args["arg_0"], args["arg_1"]
                whole = tokenizer(context + ending, add_special_tokens=False)["input_ids"]
                begin = len(tokenizer(context, add_special_tokens=False)["input_ids"])
                with torch.no_grad():
                    logprobs = model(torch.tensor([whole])).logits[0].double().log_softmax(-1)
                steps = range(begin, len(whole))
                want = sum(logprobs[i - 1, whole[i]].item() for i in steps)
                want_greedy = all(logprobs[i - 1].argmax().item() == whole[i] for i in steps)
                got, got_greedy = float(resp[0][0]), str(resp[0][1]) == "True"
                worst = max(worst, abs(got - want))
                greedy += got_greedy
                if abs(got - want) > tolerance or got_greedy != want_greedy:
                    sys.exit(f"{context!r} + {ending!r}: {got} (greedy {got_greedy}), transformers has {want} (greedy {want_greedy})")
                n += 1
    if n == 0:
        sys.exit(f"{samples} has no loglikelihoods")
    print(f"ok transformers {transformers.__version__}: {n} loglikelihoods, {greedy} of them greedy, differ by at most {worst:.1e}")


if __name__ == "__main__":
    main()
