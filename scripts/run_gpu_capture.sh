#!/usr/bin/env bash
# Capture on a GPU host where a command may run for ten minutes only: the work is detached, each command looks in.
#   run_gpu_capture.sh start JOB...       write the checkpoints, then capture; the jobs of a GPU one after the other
#   run_gpu_capture.sh watch SECONDS      show progress until all is done or the time is over
#   run_gpu_capture.sh table              what was captured so far
#   run_gpu_capture.sh pack JOB...        runs as parts below 16 MiB into $OUT
#   run_gpu_capture.sh reports NAME       summaries and logs of all jobs as $OUT/NAME.tar.gz
#   run_gpu_capture.sh cache FIRST COUNT  parts FIRST .. of the compile caches into $OUT
# JOB: KIND[/PROFILE[/CASE,CASE...]], such as deepseek41, deepseek41/large, qwen-next/rehearsal/cold_main.
# GPUS: their ids (default 0); jobs take them in turn, so that several engines run at a time, each on its own GPU.
# Checkpoints, runs and logs go to $WORK (default /dev/shm/capture); compile caches lie in $CACHE. A job that failed
# is resumed by the same `start`. Variables: SEED, WRITERS, CAPTURE_FLAGS (for capture_llm.py), QUEUE_PYTHON.
set -uo pipefail
WORK=${WORK:-/dev/shm/capture} CACHE=${CACHE:-/tmp/site.cache} PYTHON=${QUEUE_PYTHON:-python3} SEED=${SEED:-0}
WRITERS=${WRITERS:-$(nproc)} GPUS=${GPUS:-0}
cd "$(dirname "$0")/.."
[ $# -gt 0 ] && mkdir -p "$WORK"
say() { echo "$(date +%T) $*" >> "$WORK/queue.log"; }

# kind, profile, cases and folder of a job
read_job() {
  IFS=/ read -r kind profile cases <<< "$1"
  profile=${profile:-seeded}
  name=$kind; [ "$profile" = seeded ] || name=$kind-$profile
}

checkpoints() {
  local kind
  for kind in "$@"; do
    rm -f "$WORK/$kind.written"
    "$PYTHON" scripts/make_seeded_checkpoint.py --kind "$kind" --output "$WORK/$kind/checkpoint" --seed "$SEED" \
      --jobs "$WRITERS" > "$WORK/$kind.checkpoint.log" 2>&1 && echo yes > "$WORK/$kind.written" \
      || echo no > "$WORK/$kind.written"
    say "checkpoint $kind written: $(cat "$WORK/$kind.written")"
  done
}

capture() {
  local chosen=()
  read_job "$1"
  until [ -s "$WORK/$kind.written" ]; do sleep 1; done
  [ "$(cat "$WORK/$kind.written")" = yes ] || { say "capture $name FAILED: no checkpoint"; return; }
  for case in ${cases//,/ }; do chosen+=(--case "$case"); done
  mkdir -p "$WORK/$name"
  say "capture $name starts on GPU $CUDA_VISIBLE_DEVICES"
  "$PYTHON" scripts/capture_llm.py --kind "$kind" --profile "$profile" --model-path "$WORK/$kind/checkpoint" \
    "${chosen[@]}" ${CAPTURE_FLAGS:-} --output-root "$WORK/$name/dataset" > "$WORK/$name.json" \
    2> "$WORK/$name/capture.log" \
    && say "capture $name done" || say "capture $name FAILED ($?): $(tail -n 1 "$WORK/$name/capture.log")"
  "$PYTHON" scripts/summarise_capture.py "$WORK/$name/dataset" --output "$WORK/$name/summary.json" \
    >> "$WORK/$name/capture.log" 2>&1 || say "summary of $name: $(tail -n 1 "$WORK/$name/capture.log")"
}

queue() {
  export TORCHINDUCTOR_CACHE_DIR="$CACHE/inductor"
  local gpus=() kinds=() job lane first
  read -r -a gpus <<< "$GPUS"
  for job in "$@"; do
    read_job "$job"
    [[ " ${kinds[*]-} " == *" $kind "* ]] || kinds+=("$kind")
    rm -f "$WORK/$kind.written"
  done
  checkpoints "${kinds[@]}" &
  for lane in "${!gpus[@]}"; do
    for ((first = lane + 1; first <= $#; first += ${#gpus[@]})); do
      CUDA_VISIBLE_DEVICES=${gpus[$lane]} capture "${!first}"
    done &
  done
  wait
  say "queue finished"
}

watch() {
  local end=$((SECONDS + $1)) shown=0 lines
  while [ $SECONDS -lt "$end" ]; do
    lines=$(wc -l < "$WORK/queue.log")
    [ "$lines" -gt "$shown" ] && tail -n +$((shown + 1)) "$WORK/queue.log" && shown=$lines
    kill -0 "$(cat "$WORK/queue.pid")" 2> /dev/null || break
    sleep 5
  done
  for log in "$WORK"/*/engine.log; do
    [ -e "$log" ] && echo "--- $log" && tail -n 4 "$log" | cut -c -200
  done
}

table() {
  "$PYTHON" - "$WORK" <<'PYTHON'
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*/summary.json")):
    result = json.loads(path.read_text())
    print(f"{path.parent.name}: complete {result['complete']}, excluded {len(result['excluded'])}, seconds",
          {name: case["seconds"] for name, case in result["cases"].items()}, "missed", result["missed"])
    for call in result["calls"]:
        figures = " ".join(f"{name} {e['max_abs_error']:.3g} ({e['tolerance_used']:.2f} of the tolerance)"
                           for name, e in call["errors"].items() if e["max_abs_error"] is not None)
        print(f"  {call['definition'][:40]:40} {call['case']:18} {call['phase']} {call['step']} x {call['batch']:<3}"
              f" {'pass' if call['passed'] else 'FAIL'} {figures}")
PYTHON
}

case ${1:-} in
  start) shift; : >> "$WORK/queue.log"
    setsid nohup bash "$0" queue "$@" < /dev/null > /dev/null 2>&1 &
    echo $! > "$WORK/queue.pid"; echo "started, process $!" ;;
  queue) shift; queue "$@" ;;
  watch) watch "$2"; table ;;
  table) table ;;
  pack) shift
    runs=(); for job in "$@"; do read_job "$job"; runs+=("$name=$WORK/$name/dataset"); done
    "$PYTHON" scripts/pack_capture.py "${runs[@]}" --output "${OUT:?}" ;;
  reports)
    tar czf "${OUT:?}/$2.tar.gz" -C "$WORK" queue.log \
      $(cd "$WORK" && ls -- *.json *.checkpoint.log */summary.json */capture.log */engine.log 2> /dev/null) ;;
  cache)
    [ -d "$WORK/cache" ] || { mkdir "$WORK/cache"
      tar cf - -C "$CACHE" . | xz -T0 -2 | split -b 15M -d -a 2 - "$WORK/cache/cache.tar.xz."; }
    ls "$WORK/cache" | wc -l
    ls "$WORK"/cache/* | tail -n +$(($2 + 1)) | head -n "$3" | xargs -I{} cp {} "${OUT:?}" ;;
  *) sed -n '2,12p' "$0"; exit 2 ;;
esac
