"""Measure one training job with torch and TRL: peer.py JOB.json HF_DIR. The last line of stdout is a JSON object.

The job is bench/learner's (jobs.go). Kind update is what TRL's GRPOTrainer does for a batch: padded prompts left and completions right, logits of
the completion positions only, log-probabilities and entropies, backward. step, sft and dpo are TRL's trainers with LoRA on all linear layers; bf16
means autocast there and bf16 weights in update."""

import json
import os
import resource
import sys
import tempfile
import time

job = json.load(open(sys.argv[1]))
hf, threads, bf16 = sys.argv[2], job["threads"], job["dtype"] == "bf16"
os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS=str(threads), TRANSFORMERS_VERBOSITY="error")

import torch  # noqa: E402  the environment comes first
from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402

torch.set_num_threads(threads)
torch.manual_seed(0)


def now():
    r = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), r.ru_utime + r.ru_stime


def since(t):
    n = now()
    return n[0] - t[0], n[1] - t[1]


def summary(steps, **more):
    rest = steps[1:] or steps
    return {"wall": min(s[0] for s in rest), "cpu": min(s[1] for s in rest), "first": steps[0][0], **more}


def update():
    model = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.bfloat16 if bf16 else torch.float32)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM"))
    if bf16:
        model = model.to(torch.bfloat16)
    model.train()
    seqs = [(g["prompt"], n) for g in job["groups"] for n in g["completions"]]
    P, C = max(p for p, _ in seqs), max(n for _, n in seqs)
    vocab = model.config.vocab_size
    ids = torch.randint(0, vocab, (len(seqs), P + C))
    attention = torch.zeros_like(ids)
    mask = torch.zeros(len(seqs), C)
    for i, (p, n) in enumerate(seqs):
        attention[i, P - p : P + n] = 1
        mask[i, :n] = 1
    d = torch.randn(len(seqs), C) * mask / mask.sum()
    params = [p for p in model.parameters() if p.requires_grad]
    steps = []
    for _ in range(job["steps"] + 1):
        t = now()
        logits = model(input_ids=ids, attention_mask=attention, logits_to_keep=C + 1, use_cache=False).logits[:, :-1]
        parts = []  # row by row, as TRL's selective_log_softmax keeps memory low
        for row, target in zip(logits, ids[:, P:]):
            logp = row.log_softmax(-1)
            parts.append(logp.gather(-1, target.unsqueeze(-1)).squeeze(-1))
            with torch.no_grad():
                _ = -(logp.exp() * logp).sum(-1)
        (torch.stack(parts).float() * d).sum().backward()
        for p in params:
            p.grad = None
        steps.append(since(t))
    return summary(steps, tokens=int(mask.sum()), version="torch " + torch.__version__)


class Timer(TrainerCallback):
    def __init__(self):
        self.steps, self.tokens = [], []

    def on_step_begin(self, args, state, control, **kw):
        self.t = now()

    def on_step_end(self, args, state, control, **kw):
        self.steps.append(since(self.t))

    def on_log(self, args, state, control, logs=None, **kw):
        if "num_tokens" in logs:
            self.tokens.append(float(logs["num_tokens"]))


def trl_job():
    import trl
    from datasets import Dataset

    kind = job["kind"]
    tok = AutoTokenizer.from_pretrained(hf, **({"padding_side": "left"} if kind == "step" else {}))
    model = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float32)
    timer, out = Timer(), tempfile.mkdtemp()
    common = dict(output_dir=out, gradient_accumulation_steps=1, max_steps=job["steps"] + 1, learning_rate=1e-4, lr_scheduler_type="constant", logging_steps=1,
                  save_strategy="no", report_to=[], bf16=bf16, gradient_checkpointing=False, use_cpu=True, dataloader_pin_memory=False, seed=0, disable_tqdm=True)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    detail = {}
    if kind == "step":
        rows = [{"prompt": [{"role": "user", "content": p.split("\t")[0]}], "answer": p.split("\t")[1]} for p in job["prompts"]] * (job["steps"] + 1)

        def reward(completions, answer, **kw):
            scores = []
            for c, a in zip(completions, answer):
                text = c[0]["content"]
                t = text.strip()
                scores.append((0.5 if t[:1].isdigit() else 0.0) + (0.5 if t == a else 0.0) - 0.005 * len(text))
            return scores

        trainer = trl.GRPOTrainer(
            model=model, reward_funcs=reward, train_dataset=Dataset.from_list(rows), processing_class=tok, peft_config=lora,
            args=trl.GRPOConfig(per_device_train_batch_size=len(job["prompts"]) * job["gens"], num_generations=job["gens"],
                                max_completion_length=job["new"], beta=0.0, **common))
        gen, inner = [], trainer._generate_single_turn

        def timed(*a, **k):
            t = now()
            r = inner(*a, **k)
            gen.append(since(t)[0])
            return r

        trainer._generate_single_turn = timed
    elif kind == "sft":
        rows = [{"prompt": r["prompt"], "completion": r["chosen"]} for r in job["rows"]]
        trainer = trl.SFTTrainer(model=model, train_dataset=Dataset.from_list(rows), processing_class=tok, peft_config=lora,
                                 args=trl.SFTConfig(per_device_train_batch_size=job["batch"], max_length=job["max_len"], **common))
    else:
        rows = [{"prompt": r["prompt"], "chosen": r["chosen"], "rejected": r["rejected"]} for r in job["rows"]]
        trainer = trl.DPOTrainer(model=model, train_dataset=Dataset.from_list(rows), processing_class=tok, peft_config=lora,
                                 args=trl.DPOConfig(per_device_train_batch_size=job["batch"], max_length=job["max_len"], beta=0.1, **common))
    trainer.add_callback(timer)
    trainer.train()
    if kind == "step":
        detail["gen_s"] = min(gen[1:] or gen)
    tokens = timer.tokens[0] if timer.tokens else 0
    return summary(timer.steps, tokens=tokens, version="trl " + trl.__version__, detail=detail)


print(json.dumps(update() if job["kind"] == "update" else trl_job()), flush=True)
