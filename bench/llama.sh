#!/usr/bin/env bash
# Build llama-bench and llama-batched-bench of llama.cpp from the source package of llama-cpp-python: llama.sh SDIST DIR.
# The instruction sets are explicit: GGML_NATIVE also turns on AMX where the CPU has it, and that path crashes on some hosts.
set -eu
sdist=$1 dir=$2
has() { grep -qw "$1" /proc/cpuinfo && echo ON || echo OFF; }
mkdir -p "$dir/src"
tar -xzf "$sdist" -C "$dir/src" --strip-components=3 --wildcards '*/vendor/llama.cpp/*'
cmake -S "$dir/src" -B "$dir/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
	-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2="$(has avx2)" -DGGML_FMA="$(has fma)" -DGGML_F16C="$(has f16c)" -DGGML_BMI2="$(has bmi2)" \
	-DGGML_AVX512="$(has avx512f)" -DGGML_AVX512_VBMI="$(has avx512vbmi)" -DGGML_AVX512_VNNI="$(has avx512_vnni)" \
	-DGGML_AVX512_BF16="$(has avx512_bf16)" -DGGML_AVX_VNNI="$(has avx_vnni)" \
	-DGGML_OPENMP=ON -DGGML_LLAMAFILE=ON -DGGML_CCACHE=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
	-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TOOLS=ON >"$dir/cmake.log"
cmake --build "$dir/build" --parallel "${JOBS:-$(nproc)}" --target llama-bench llama-batched-bench >"$dir/build.log"
cp "$dir/build/bin/llama-bench" "$dir/build/bin/llama-batched-bench" "$dir/"
rm -rf "$dir/build"
