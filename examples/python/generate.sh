#!/bin/sh
# Make the Python code of Skein's protocol in ./gen. Needs grpcio-tools.
set -eu
cd "$(dirname "$0")"
mkdir -p gen
python3 -m grpc_tools.protoc -I ../../proto --python_out=gen --grpc_python_out=gen \
	skein/cluster/v1/types.proto skein/cluster/v1/replay.proto skein/cluster/v1/node.proto \
	skein/cluster/v1/operate.proto skein/eventlog/v1/eventlog.proto
