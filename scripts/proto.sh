#!/usr/bin/env bash
# Regenerate the checked-in protobuf code. Needs protoc (apt-get install protobuf-compiler); the Go plugins are installed at pinned versions.
set -eu
cd "$(dirname "$0")/.."
bin=$PWD/.cache/protobin
mkdir -p "$bin"
GOBIN=$bin CGO_ENABLED=0 go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
GOBIN=$bin CGO_ENABLED=0 go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
find proto -name '*.proto' -print0 | sort -z | PATH="$bin:$PATH" xargs -0 protoc -I proto \
	--go_out=. --go_opt=module=github.com/skein-rl/skein \
	--go-grpc_out=. --go-grpc_opt=module=github.com/skein-rl/skein
gofmt -l eventlog replay cluster
