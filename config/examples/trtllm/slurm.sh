#!/bin/bash
# llama-70b: TensorRT-LLM 1.2.1 as a Slurm job.
# Written by `bulkhead trt render --as slurm`, beside the files that it names, which all
# nodes must see. Change the model's [models.trt] and render it anew.
# Nothing here asks callers for a key: let nobody but the gateway reach these nodes.
#SBATCH --job-name=llama-70b
#SBATCH --nodes=4
#SBATCH --nodelist=llama-context-0,llama-context-1,llama-generation-0,llama
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --signal=B:TERM@120
set -euo pipefail
export TRTLLM_NO_USAGE_STATS=1

# Nodes that no server is named after are given to those that span several.
named=(llama-context-0 llama-context-1 llama-generation-0 llama)
mapfile -t spare < <(scontrol show hostnames "$SLURM_JOB_NODELIST" \
  | grep -vxF -f <(printf '%s\n' "${named[@]}") || true)

# start NAME NODE NODES RANKS COMMAND...: a server whose first rank is on NODE, in the background.
start() {
  local name=$1 node=$2 num_nodes=$3 ranks=$4
  shift 4
  local nodes=("$node" "${spare[@]:0:num_nodes - 1}")
  spare=("${spare[@]:num_nodes - 1}")
  if ((${#nodes[@]} < num_nodes)); then
    echo "$name needs $num_nodes nodes, and the job has too few" >&2
    return 1
  fi
  local hosts=$SLURM_SUBMIT_DIR/$name.$SLURM_JOB_ID.hosts
  for ((rank = 0; rank < ranks; rank++)); do
    echo "${nodes[rank / 8]}"
  done >"$hosts"
  SLURM_HOSTFILE=$hosts srun --job-name="$name" --distribution=arbitrary \
    --nodes="$num_nodes" --ntasks="$ranks" --overlap --cpu-bind=none --mpi=pmix \
    --kill-on-bad-exit=1 --output="$name.%j.%t.log" "$@" &
}

# context-0: 4 GPUs, at llama-context-0:8001
start context-0 llama-context-0 1 4 --container-image=registry.example.com/tensorrt-llm:1.2.1 \
  --container-mounts=/models/llama-70b-int4-awq-g128-fp8-kv:/models/llama-70b-int4-awq-g128-fp8-kv:ro,/shared/bulkhead/llama-70b:/shared/bulkhead/llama-70b:ro \
  env CUDA_VISIBLE_DEVICES=0,1,2,3 TRTLLM_NO_USAGE_STATS=1 trtllm-llmapi-launch trtllm-serve \
  /models/llama-70b-int4-awq-g128-fp8-kv --backend pytorch --host llama-context-0 --port 8001 \
  --config /shared/bulkhead/llama-70b/context.yaml

# context-1: 4 GPUs, at llama-context-1:8001
start context-1 llama-context-1 1 4 --container-image=registry.example.com/tensorrt-llm:1.2.1 \
  --container-mounts=/models/llama-70b-int4-awq-g128-fp8-kv:/models/llama-70b-int4-awq-g128-fp8-kv:ro,/shared/bulkhead/llama-70b:/shared/bulkhead/llama-70b:ro \
  env CUDA_VISIBLE_DEVICES=0,1,2,3 TRTLLM_NO_USAGE_STATS=1 trtllm-llmapi-launch trtllm-serve \
  /models/llama-70b-int4-awq-g128-fp8-kv --backend pytorch --host llama-context-1 --port 8001 \
  --config /shared/bulkhead/llama-70b/context.yaml

# generation-0: 8 GPUs, at llama-generation-0:8002
start generation-0 llama-generation-0 1 8 \
  --container-image=registry.example.com/tensorrt-llm:1.2.1 \
  --container-mounts=/models/llama-70b-int4-awq-g128-fp8-kv:/models/llama-70b-int4-awq-g128-fp8-kv:ro,/shared/bulkhead/llama-70b:/shared/bulkhead/llama-70b:ro \
  env CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 TRTLLM_NO_USAGE_STATS=1 trtllm-llmapi-launch \
  trtllm-serve /models/llama-70b-int4-awq-g128-fp8-kv --backend pytorch --host \
  llama-generation-0 --port 8002 --config /shared/bulkhead/llama-70b/generation.yaml

# front: no GPUs, at llama:8000
start front llama 1 1 --container-image=registry.example.com/tensorrt-llm:1.2.1 \
  --container-mounts=/models/llama-70b-int4-awq-g128-fp8-kv:/models/llama-70b-int4-awq-g128-fp8-kv:ro,/shared/bulkhead/llama-70b:/shared/bulkhead/llama-70b:ro \
  trtllm-serve disaggregated -c /shared/bulkhead/llama-70b/front.yaml

# One that ends has failed: the others end too, and Slurm may start the job again.
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT TERM
wait -n
exit 1
