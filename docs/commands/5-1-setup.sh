# 5.1 Setup: from an unpacked lab to a baseline that passes.
# GPU blocks carry the suffix -gpu, so that one host can hold both results.

# ---- 5.1.1 what this host is ----------------------------------------------------------------------------------------

# tier: doc reason=问的是你这台 GPU 主机 | asks about your GPU host
# --8<-- [start:host]
uname -sm
python3 --version
nvidia-smi --query-gpu=index,name,uuid,memory.total,driver_version --format=csv
nvcc --version
# --8<-- [end:host]

# ---- 5.1.2 the package ----------------------------------------------------------------------------------------------

# tier: doc reason=要换成你的用户名和主机 | put in your user and host
# --8<-- [start:copy]
scp nanovllm-inference-lab-v6.zip YOUR_USER@YOUR_GPU_HOST:
ssh YOUR_USER@YOUR_GPU_HOST
# --8<-- [end:copy]

# tier: doc reason=在你的主目录里解包 | unpacks into your home directory
# --8<-- [start:unzip]
cd "$HOME"
test ! -e nanovllm-inference-lab && unzip -q nanovllm-inference-lab-v6.zip
cd nanovllm-inference-lab
sha256sum -c --quiet SHA256SUMS && echo "SUMS OK"
# --8<-- [end:unzip]

# tier: cpu
# --8<-- [start:enter]
source env.sh
mkdir -p runs notes
ls env.sh scripts src patches
printf '%s\n' "$LAB_ROOT" "$NANO_DIR" "$MODEL_DIR" "$NANO_COMMIT"
# --8<-- [end:enter]

# ---- 5.1.3 the environment begins, the working copy -----------------------------------------------------------------

# tier: doc reason=建虚拟环境，只做一次 | makes the virtual environment, once
# --8<-- [start:venv]
source env.sh
python3.11 -m venv .venv-nano
source .venv-nano/bin/activate
python -m pip install pip==25.2 "setuptools>=77" wheel
# --8<-- [end:venv]

# tier: doc reason=装包，需要网络 | installs packages, needs the network
# --8<-- [start:base-gpu]
source env.sh
python -m pip install -r requirements-nano.txt
python -m pip install -e . --no-deps --no-build-isolation
# --8<-- [end:base-gpu]

# tier: doc reason=装包，需要网络 | installs packages, needs the network
# --8<-- [start:base-cpu]
source env.sh
python -m pip install -r requirements-cpu.txt
python -m pip install -e . --no-deps --no-build-isolation
# --8<-- [end:base-cpu]

# tier: cpu
# needs: enter
# --8<-- [start:working-copy]
source env.sh
python scripts/e2e/engine_source.py init
# --8<-- [end:working-copy]

# tier: cpu
# needs: working-copy
# prints: SOURCE PASS
# --8<-- [start:working-copy-check]
source env.sh
git -C "$NANO_DIR" rev-parse HEAD
echo "$NANO_COMMIT"
git -C "$NANO_DIR" status --short
python scripts/e2e/source_walk.py verify
# --8<-- [end:working-copy-check]

# tier: doc reason=克隆上游仓库，需要网络 | clones the upstream repository, needs the network
# --8<-- [start:upstream]
source env.sh
git clone https://github.com/GeeeekExplorer/nano-vllm.git nano-vllm
git -C nano-vllm checkout --detach "$NANO_UPSTREAM_COMMIT"
git -C nano-vllm switch -c lab/upstream
python scripts/e2e/engine_source.py upstream --dir nano-vllm
# --8<-- [end:upstream]

# ---- 5.1.4 dependencies ---------------------------------------------------------------------------------------------

# tier: doc reason=装 CUDA 版 PyTorch，需要网络 | installs PyTorch for CUDA, needs the network
# --8<-- [start:torch-gpu]
source env.sh
python -m pip install torch==2.8.0 --index-url https://download.pytorch.org/whl/cu129
python -m pip install triton==3.4.0
# --8<-- [end:torch-gpu]

# tier: doc reason=编译 flash-attn，需要 nvcc，耗时可达一小时 | compiles flash-attn: needs nvcc, may take an hour
# --8<-- [start:flash-attn]
source env.sh
mkdir -p runs
export TORCH_CUDA_ARCH_LIST="8.0"
MAX_JOBS=4 NVCC_THREADS=2 python -m pip install flash-attn==2.8.3 \
  --no-build-isolation --no-deps 2>&1 | tee runs/flash-attn-build.log
# --8<-- [end:flash-attn]

# tier: doc reason=另一条路：沿用主机上能用的 PyTorch | the other route: reuse the host's working PyTorch
# --8<-- [start:venv-reuse]
source env.sh
python3 -m venv --system-site-packages .venv-nano
source .venv-nano/bin/activate
python -m pip install pip==25.2 "setuptools>=77" wheel
python -m pip install -r requirements-nano.txt
python -m pip install -e . --no-deps --no-build-isolation
# --8<-- [end:venv-reuse]

# tier: doc reason=记录你这个环境里实际装了什么 | records what your environment really holds
# --8<-- [start:freeze]
source env.sh
mkdir -p runs
python -m pip check
python -m pip freeze > runs/environment.txt
# --8<-- [end:freeze]

# tier: gpu reason=读取 CUDA 版的版本号 | reads the versions of the CUDA stack
# --8<-- [start:versions-gpu]
source env.sh
python - <<'PY'
from importlib.metadata import PackageNotFoundError, version

import torch

print("torch", torch.__version__, "cuda", torch.version.cuda)
for name in ("triton", "flash_attn", "transformers"):
    try:
        print(name, version(name))
    except PackageNotFoundError:
        print(name, "not installed")
PY
# --8<-- [end:versions-gpu]

# tier: cpu
# needs: working-copy
# prints: working-copy
# --8<-- [start:which-engine]
source env.sh
python - <<'PY'
from nanolab import sources

engine = sources.resolve()
print(engine.kind, engine.module("engine.llm_engine").__file__)
PY
PYTHONPATH="$NANO_DIR" python -c "import nanoengine; print(nanoengine.__file__)"
# --8<-- [end:which-engine]

# ---- 5.1.5 the model ------------------------------------------------------------------------------------------------

# tier: doc reason=从 Hugging Face 下载约 1.5 GB | downloads about 1.5 GB from Hugging Face
# --8<-- [start:download]
source env.sh
mkdir -p runs
python scripts/e2e/download_model.py --model "$MODEL_DIR" --weights 2>&1 |
  tee runs/model-download.log
ls -l "$MODEL_DIR"
# --8<-- [end:download]

# tier: cpu
# needs: enter
# --8<-- [start:make-tiny]
source env.sh
python scripts/e2e/make_model.py --preset tiny --out models/tiny
cat models/tiny/synthetic.json
# --8<-- [end:make-tiny]

# tier: doc reason=在当前终端里选定教学模型 | chooses the teaching model for this terminal
# --8<-- [start:use-tiny]
source env.sh
export MODEL_DIR="$LAB_ROOT/models/tiny"
# --8<-- [end:use-tiny]

# tier: doc reason=写出 1 GB 以上的合成权重 | writes more than 1 GB of synthetic weights
# --8<-- [start:make-shape]
source env.sh
python scripts/e2e/make_model.py --preset qwen3-0.6b-shape --out models/qwen3-0.6b-shape
export MODEL_DIR="$LAB_ROOT/models/qwen3-0.6b-shape"
# --8<-- [end:make-shape]

# ---- 5.1.6 the baseline ---------------------------------------------------------------------------------------------

# tier: gpu reason=检查 CUDA、显存与驱动 | checks CUDA, GPU memory and the driver
# block: setup-doctor-gpu
# needs: working-copy
# prints: PASS
# --8<-- [start:doctor-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/e2e/doctor.py --out runs/setup-doctor-gpu.json
# --8<-- [end:doctor-gpu]

# tier: cpu
# block: setup-doctor
# needs: working-copy, make-tiny
# prints: PASS
# --8<-- [start:doctor-cpu]
source env.sh
python scripts/e2e/doctor.py --cpu --out runs/setup-doctor.json
# --8<-- [end:doctor-cpu]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# block: setup-smoke-gpu
# needs: working-copy
# prints: PASS
# --8<-- [start:smoke-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/e2e/smoke.py --out runs/setup-smoke-gpu.json 2>&1 |
  tee runs/setup-smoke-gpu.log
# --8<-- [end:smoke-gpu]

# tier: cpu
# block: setup-smoke
# needs: working-copy
# prints: PASS
# --8<-- [start:smoke-cpu]
source env.sh
python scripts/e2e/smoke.py --out runs/setup-smoke.json 2>&1 |
  tee runs/setup-smoke.log
# --8<-- [end:smoke-cpu]

# tier: gpu reason=在 GPU 上跑引擎 | runs the engine on the GPU
# block: quick-A-gpu
# needs: working-copy
# prints: PASS
# --8<-- [start:quick-a-gpu]
source env.sh
CUDA_VISIBLE_DEVICES=0 python scripts/e2e/quick_walk.py --case A --out runs/quick-A-gpu.json 2>&1 |
  tee runs/quick-A-gpu.log
# --8<-- [end:quick-a-gpu]

# tier: cpu
# block: quick-A
# needs: working-copy
# prints: PASS
# --8<-- [start:quick-a-cpu]
source env.sh
python scripts/e2e/quick_walk.py --case A --out runs/quick-A.json 2>&1 |
  tee runs/quick-A.log
# --8<-- [end:quick-a-cpu]

# ---- 5.1.7 editor, debugger, the next login -------------------------------------------------------------------------

# tier: doc reason=pdb 要直接接在终端上 | pdb needs the terminal itself
# --8<-- [start:debug]
source env.sh
python scripts/e2e/quick_walk.py --case A --debug
# --8<-- [end:debug]

# tier: cpu
# needs: enter
# prints: COLLECTED
# --8<-- [start:notes]
source env.sh
python scripts/e2e/final_report.py --root "$LAB_ROOT" --init-notes
# --8<-- [end:notes]

# tier: doc reason=每次重新登录之后 | after every new login
# --8<-- [start:login-gpu]
cd "$HOME/nanovllm-inference-lab"
source env.sh
source .venv-nano/bin/activate
# --8<-- [end:login-gpu]

# tier: doc reason=每次重新登录之后 | after every new login
# --8<-- [start:login-cpu]
cd "$HOME/nanovllm-inference-lab"
source env.sh
source .venv-nano/bin/activate
export MODEL_DIR="$LAB_ROOT/models/tiny"
# --8<-- [end:login-cpu]
