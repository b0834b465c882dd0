#!/usr/bin/env bash
# Runs the official OpenAI client and lm-eval against a real skein serve.
# run.sh SKEIN PYTHON MODEL MINILM HF [TORCH_PYTHON]: MODEL and HF are SmolLM2 as
# GGUF and as a Hugging Face folder; with TORCH_PYTHON, an interpreter that has
# torch and transformers, lm-eval's numbers are compared with theirs.
set -euo pipefail
skein=$1 python=$2 model=$3 minilm=$4 hf=$5 torch=${6:-}
here=$(dirname "$0")
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT

# start ARGS...: a server on a free port; sets url.
start() {
	"$skein" serve "$@" --listen 127.0.0.1:0 --json >"$dir/out" 2>"$dir/err" &
	server=$!
	for _ in $(seq 600); do
		[ ! -s "$dir/out" ] || break
		kill -0 "$server" 2>/dev/null || { cat "$dir/err" >&2; exit 1; }
		sleep 0.1
	done
	url=$("$python" -c 'import json, sys; print(json.load(sys.stdin)["url"])' <"$dir/out")
}

# stop: SIGTERM, and the server must end well.
stop() {
	kill -TERM "$server"
	wait "$server" || { cat "$dir/err" >&2; exit 1; }
	server=
}

mkdir "$dir/adapters"
start "$model" --name smollm2 --embedding-model "$minilm" --embedding-name minilm --adapter-root "$dir/adapters" --max-len 1024
"$python" "$here/openai_client.py" --url "$url" --model smollm2 --adapter-root "$dir/adapters" --embedding-model minilm
stop

start "$hf" --name smollm2-hf --max-len 1024
HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$dir/hf" "$python" -m lm_eval run --model local-completions \
	--model_args "model=smollm2-hf,base_url=$url/v1/completions,tokenizer_backend=remote,num_concurrent=4,max_retries=1" \
	--include_path "$here/lm_eval" --tasks skein_choice,skein_generate --batch_size 4 --log_samples --output_path "$dir/lm_eval"
stop
samples=$(find "$dir/lm_eval" -name 'samples_skein_choice_*.jsonl')
if [ -n "$torch" ]; then
	OMP_NUM_THREADS=1 "$torch" "$here/compare_transformers.py" "$hf" "$samples"
else
	echo "skipped: no interpreter with transformers was named, so lm-eval's numbers are not compared with its"
fi
