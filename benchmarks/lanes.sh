#!/usr/bin/env bash
# Commands in lanes on one GPU: lanes run side by side, the commands of a lane one after another.
#
#     bash benchmarks/lanes.sh LOGS "command; command" "command" ...
#
# A search or a figure of small models leaves a GPU idle while it compiles, and its last trials fill
# few slots. NVIDIA's MPS, where it is installed and works, lets kernels of several processes run at
# once. Every lane writes to LOGS/lane-N.log, and how each command ended to LOGS/ended. Ctrl-C ends
# all lanes; commands of this package go on where they stopped when they are run again.
set -u
logs=${1:?give a folder for logs, then a lane of commands in each argument}; shift
mkdir -p "$logs"

if command -v nvidia-cuda-mps-control > /dev/null; then
    nvidia-cuda-mps-control -d 2> /dev/null
    if ! timeout 60 python3 -c "import torch; torch.ones(8, device='cuda').sum().item()"; then
        echo "MPS does not work here: the lanes take turns" >&2
        echo quit | nvidia-cuda-mps-control
    fi
fi

lane() {
    local rest=$1 command began
    while [ -n "$rest" ]; do
        command=${rest%%;*}
        if [ "$command" = "$rest" ]; then rest=""; else rest=${rest#*;}; fi
        began=$SECONDS
        bash -c "$command"
        echo "$? after $((SECONDS - began)) s:$command" >> "$logs/ended"
    done
}

set -m # a process group for each lane, to end it whole
trap 'for job in $(jobs -p); do kill -TERM -- "-$job"; done' INT TERM
number=0
for each in "$@"; do
    number=$((number + 1))
    lane " $each" > "$logs/lane-$number.log" 2>&1 &
done
while [ -n "$(jobs -pr)" ]; do wait -n; done
cat "$logs/ended" 2> /dev/null
