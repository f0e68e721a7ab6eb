#!/usr/bin/env bash
# Judge the solutions of many definitions, one queue over all GPUs of this host.
#   run_gpu_benchmarks.sh OUT [DEFINITION...]   (default: every definition that has workloads)
# Reports go to OUT/<definition>.jsonl, the output of each command to OUT/<definition>.log. The same command resumes.
# Variables: GPUS, UUIDs (default: those of nvidia-smi; `cpu` tries the harness); ROOT, the dataset (default: this one);
# LOCKS, a local folder; BENCHMARK_FLAGS, for benchmark_solutions.py; BENCHMARK_PYTHON.
set -uo pipefail
[ $# -gt 0 ] || { sed -n '2,6p' "$0"; exit 2; }
out=$(realpath -m "$1"); shift
cd "$(dirname "$0")/.."
root=${ROOT:-$PWD} locks=${LOCKS:-/tmp/kernel-locks} python=${BENCHMARK_PYTHON:-python3}
read -r -a gpus <<< "${GPUS:-$(nvidia-smi -L 2> /dev/null | sed -n 's/^GPU .*(UUID: \(GPU-[^)]*\)).*/\1/p' | tr '\n' ' ')}"
[ ${#gpus[@]} -gt 0 ] || { echo "error: expected a GPU; found none; run where nvidia-smi lists one, or set GPUS" >&2; exit 1; }
mkdir -p "$out"
if [ $# -eq 0 ]; then
  mapfile -t names < <(cd "$root/workloads" && ls ./*/*.jsonl | sed 's|.*/||; s|\.jsonl$||')
  set -- "${names[@]}"
fi
taken=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null; rm -rf "$taken"' EXIT

# The definitions that no other GPU has taken; making a folder succeeds once.
work() {
  local gpu=$1 name begun status; shift
  for name in "$@"; do
    mkdir "$taken/$name" 2> /dev/null || continue
    begun=$SECONDS
    "$python" scripts/benchmark_solutions.py --root "$root" --gpu "$gpu" --lock-directory "$locks" --lock-timeout 3600 \
      --definition "$name" --report "$out/$name.jsonl" --resume ${BENCHMARK_FLAGS:-} > "$out/$name.log" 2>&1
    status=$?
    echo "$gpu $name: exit code $status, $((SECONDS - begun)) s: $(tail -n 1 "$out/$name.log")"
    [ $status -le 1 ] || touch "$taken/failed"
  done
}

for gpu in "${gpus[@]}"; do work "$gpu" "$@" & done
wait
[ ! -e "$taken/failed" ]
