#!/bin/bash
# One machine: a process for each device, started anew at a failure, up to three times.
#   examples/launch/machine.sh book.txt --max-steps 2000 --parallel shard=2,tensor=2
set -euo pipefail

devices=$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)
[ "$devices" -gt 0 ] || devices=2 # no GPU: two processes

exec torchrun --standalone --nproc-per-node "$devices" --max-restarts 3 --shutdown-timeout 120 \
    -m limpid train "$@"
