#!/usr/bin/env bash
# Checks the XLA backend on an NVIDIA GPU: golden comparisons in f32, then decode and training benchmarks in bf16. Prints JSON lines
# on stdout, everything else on stderr. Ends within 10 minutes. Exit status: 0 all passed, 1 something failed, 2 bad usage, 3 no GPU or no plugin.
#
#   scripts/gpu_check.sh [--plugin FILE] [--cpu]
#
# The plugin is FILE, else $SKEIN_CUDA_PLUGIN, else that of the pip package jax-cuda13-pjrt (or jax-cuda12-pjrt) beside python3. The package's
# CUDA libraries (pip install "jax[cuda13]") must lie beside it. The test binary is .cache/gpu/xla.test, built here when Go is there; make gpu-test-binary
# builds it for a machine without Go. --cpu runs the same on the CPU plugin of PJRT_PLUGIN_LIBRARY_PATH, to test this script: it proves nothing of a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
say() { echo "gpu_check: $*" >&2; }

plugin=${SKEIN_CUDA_PLUGIN:-} device=cuda
while [ $# -gt 0 ]; do
	case $1 in
	--plugin) plugin=${2:?--plugin wants a file}; shift 2 ;;
	--cpu) device=cpu; shift ;;
	*) say "unknown argument $1; usage: scripts/gpu_check.sh [--plugin FILE] [--cpu]"; exit 2 ;;
	esac
done

if [ $device = cuda ]; then
	if ! gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -1) || [ -z "$gpu" ]; then
		say "no NVIDIA GPU here (nvidia-smi finds none): nothing was run"
		echo '{"check":"gpu","status":"none","reason":"no NVIDIA GPU: nothing was run"}'
		exit 3
	fi
	if [ -z "$plugin" ]; then
		plugin=$(python3 - <<'PY' 2>/dev/null || true
import importlib.util, pathlib
for where in importlib.util.find_spec("jax_plugins").submodule_search_locations:
    for name in ("xla_cuda13", "xla_cuda12"):
        so = pathlib.Path(where) / name / "xla_cuda_plugin.so"
        if so.is_file():
            print(so)
            raise SystemExit
PY
)
	fi
	if [ ! -f "$plugin" ]; then
		say "no CUDA plugin ${plugin:+at $plugin}: pip install 'jax[cuda13]', or name its xla_cuda_plugin.so with --plugin; nothing was run"
		echo '{"check":"plugin","status":"none","reason":"no jax-cuda13-pjrt plugin: nothing was run"}'
		exit 3
	fi
else
	gpu=none plugin=
	: "${PJRT_PLUGIN_LIBRARY_PATH:?--cpu wants PJRT_PLUGIN_LIBRARY_PATH (make plugin)}"
	say "on the CPU plugin: no program is run on a GPU"
fi

bin=$root/.cache/gpu/xla.test
if command -v go >/dev/null; then
	mkdir -p "$(dirname "$bin")"
	CGO_ENABLED=1 go test -tags xla -c -trimpath -ldflags '-s -w' -o "$bin" ./model/xla
elif [ ! -x "$bin" ]; then
	say "no Go here and no $bin: run make gpu-test-binary on a machine with Go and bring .cache/gpu along"
	exit 2
fi

cd model/xla # the tests read ../testdata
export SKEIN_XLA_DEVICE=$device SKEIN_XLA_PLUGIN=$plugin
began=$SECONDS failed=0
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
printf '{"check":"start","device":"%s","gpu":"%s","plugin":"%s","commit":"%s"}\n' "$device" "$gpu" "${plugin##*/}" "$commit"

# Tolerances are the tests' own, those of f32 on the CPU: products are asked for in full precision, no TF32. Only tests that hold on any
# device: bit-equality of batches is the CPU's.
run() { # name, seconds, arguments of the test binary
	local name=$1 limit=$2 log status=0
	shift 2
	log=$(mktemp)
	timeout "$limit" "$bin" "$@" >"$log" 2>&1 || status=$?
	cat "$log" >&2
	# --- PASS: TestX/y (1.2s) becomes a line; a benchmark's value-unit pairs become fields.
	awk -v q='"' -v name="$name" '
		/^ *--- (PASS|FAIL|SKIP):/ { s = $2; sub(":", "", s); t = $4; gsub(/[()s]/, "", t)
			printf "{%scheck%s:%s%s%s,%stest%s:%s%s%s,%sstatus%s:%s%s%s,%sseconds%s:%s}\n", q,q,q,name,q, q,q,q,$3,q, q,q,q,tolower(s),q, q,q,t }
		/^Benchmark/ && NF > 3 { printf "{%scheck%s:%s%s%s,%sbenchmark%s:%s%s%s", q,q,q,name,q, q,q,q,$1,q
			for (i = 3; i < NF; i += 2) printf ",%s%s%s:%s", q, $(i+1), q, $i
			print "}" }' "$log"
	rm -f "$log"
	printf '{"check":"%s","status":"%s","exit":%d,"seconds":%d}\n' "$name" "$([ $status = 0 ] && echo pass || echo fail)" "$status" "$((SECONDS - began))"
	[ $status = 0 ] || failed=1
}

if [ $device = cuda ]; then
	families='TestFamilies$/^(llama3|qwen2|gemma2|gemma3|phi3|qwen3moe)$|TestFamiliesBF16|TestGolden|TestAdapterPlaces|TestHostRows|TestDecoderAgreesWithTrainer|TestTrainsAsGo|TestSamplerLargeVocabulary'
	slots='bf16-(1|8|64|256)$'
else # enough to see every path of this script
	families='TestGolden|TestFamilies$/^llama2$'
	slots='f32-1$'
fi
run golden 300 -test.v -test.run "$families"
run decode 130 -test.run '^$' -test.bench "Decode/$slots" -test.benchtime 3x
run train 130 -test.run '^$' -test.bench "Update/$([ $device = cuda ] && echo bf16 || echo f32)\$" -test.benchtime 3x
[ $device = cuda ] || say "not run: anything on a GPU (run scripts/gpu_check.sh without --cpu where there is one)"
exit $failed
