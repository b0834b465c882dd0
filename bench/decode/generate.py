"""transformers' generate in bf16, driven by ../decode: generate.py MODEL_DIR THREADS.

Reads one job per line (JSON: batch, group, prompt, new), samples at temperature 1 without filters, and answers with one line:
total is new tokens per second with the prefill, rss the peak in MB. Members of a group have the same prompt."""
import json
import resource
import sys
import time

import torch
import transformers

torch.set_num_threads(int(sys.argv[2]))
torch.manual_seed(1)
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
print(json.dumps({"version": f"transformers {transformers.__version__}, torch {torch.__version__}"}), flush=True)


def run(job, new):
    prompts = torch.randint(0, model.config.vocab_size, (job["batch"] // job["group"], job["prompt"]))
    ids = prompts.repeat_interleave(job["group"], 0)
    start = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new,
                             do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0)
    seconds = time.perf_counter() - start
    assert out.shape == (job["batch"], job["prompt"] + new), out.shape
    return job["batch"] * new / seconds


for line in sys.stdin:
    job = json.loads(line)
    run(job, 2)
    total = run(job, job["new"])
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"total": total, "rss": rss}), flush=True)
