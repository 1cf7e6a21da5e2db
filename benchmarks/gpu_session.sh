#!/usr/bin/env bash
# One GPU session of at most eight minutes: is every kernel right on the card, and how fast is it?
#
#   benchmarks/gpu_session.sh                  rows into $OUT, or reports/gpu where OUT is not set
#   benchmarks/gpu_session.sh --dry-run        the same code on the CPU, tiny sizes, Triton's interpreter
#   benchmarks/gpu_session.sh --only decode    some parts alone
#
# Needs torch and triton only. What a part measured is kept when it, or a later one, fails.
set -u
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD:$PWD/kernels${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
exec "${PYTHON:-python3}" -m benchmarks.gpu.session --out "${OUT:-reports/gpu}" "$@"
