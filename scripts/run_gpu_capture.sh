#!/usr/bin/env bash
# Capture on a GPU host where a command may run for ten minutes only: the work is detached, each command looks in.
#   run_gpu_capture.sh start KIND...      write the checkpoints, then capture one kind after the other
#   run_gpu_capture.sh watch SECONDS      show progress until all is done or the time is over
#   run_gpu_capture.sh table              what was captured so far
#   run_gpu_capture.sh pack KIND...       runs as parts below 16 MiB into $OUT
#   run_gpu_capture.sh cache FIRST COUNT  parts FIRST .. of the compile caches into $OUT
# Checkpoints, runs and logs go to $WORK (default /dev/shm/capture); compile caches lie in $CACHE. A kind that failed
# is resumed by the same `start`. Variables: SEED, JOBS, CAPTURE_FLAGS (for capture_llm.py), QUEUE_PYTHON.
set -uo pipefail
WORK=${WORK:-/dev/shm/capture} CACHE=${CACHE:-/tmp/site.cache} PYTHON=${QUEUE_PYTHON:-python3} SEED=${SEED:-0}
JOBS=${JOBS:-$(nproc)}
cd "$(dirname "$0")/.."
[ $# -gt 0 ] && mkdir -p "$WORK"
say() { echo "$(date +%T) $*" >> "$WORK/queue.log"; }

queue() {
  export TORCHINDUCTOR_CACHE_DIR="$CACHE/inductor"
  for kind in "$@"; do
    "$PYTHON" scripts/make_seeded_checkpoint.py --kind "$kind" --output "$WORK/$kind/checkpoint" --seed "$SEED" \
      --jobs "$JOBS" > "$WORK/$kind.checkpoint.log" 2>&1 && say "checkpoint $kind written" || say "checkpoint $kind FAILED"
  done
  for kind in "$@"; do
    say "capture $kind starts"
    "$PYTHON" scripts/capture_llm.py --kind "$kind" --model-path "$WORK/$kind/checkpoint" ${CAPTURE_FLAGS:-} \
      --output-root "$WORK/$kind/dataset" > "$WORK/$kind.json" 2>> "$WORK/queue.log" \
      && say "capture $kind done" || say "capture $kind FAILED ($?): see $WORK/$kind/engine.log"
  done
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
  echo "--- last lines of the engine"
  for log in $(ls -t "$WORK"/*/engine.log 2> /dev/null | head -1); do tail -n 15 "$log" | cut -c -300; done
}

table() {
  "$PYTHON" - "$WORK" <<'PYTHON'
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    text = path.read_text().strip()
    if not text:
        continue
    result = json.loads(text.splitlines()[-1])
    print(f"{path.stem}: complete {result['complete']}, excluded {result['excluded']}, seconds {result['seconds']}")
    for name, row in result["captured"].items():
        print(f"  {name:50} calls {row['calls']:3} of {result['seen'].get(name, 0):4}  max abs {row['max_abs_error']:.3g}"
              f"  rel rms {row['max_relative_rms']:.3g}")
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
    runs=(); for kind in "$@"; do runs+=("$kind=$WORK/$kind/dataset"); done
    "$PYTHON" scripts/pack_capture.py "${runs[@]}" --output "${OUT:?}"
    for kind in "$@"; do tail -c 400000 "$WORK/$kind/engine.log" | gzip > "$OUT/$kind.engine.log.gz"; done ;;
  cache)
    [ -d "$WORK/cache" ] || { mkdir "$WORK/cache"
      tar cf - -C "$CACHE" . | xz -T0 -2 | split -b 15M -d -a 2 - "$WORK/cache/cache.tar.xz."; }
    ls "$WORK/cache" | wc -l
    ls "$WORK"/cache/* | tail -n +$(($2 + 1)) | head -n "$3" | xargs -I{} cp {} "${OUT:?}" ;;
  *) sed -n '2,9p' "$0"; exit 2 ;;
esac
