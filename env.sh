# Where the lab's parts are. Source it at the start of every command block, any number of times:
#
#     source env.sh
#
# It starts nothing, installs nothing and leaves the current directory alone. Works in bash (also with set -u and
# set -e) and zsh, from any directory. A NANO_DIR or MODEL_DIR that you exported before is kept.

if [ -n "${BASH_VERSION:-}" ]; then
  _lab_file="${BASH_SOURCE[0]}"
elif [ -n "${ZSH_VERSION:-}" ]; then
  eval '_lab_file="${(%):-%x}"' # zsh's name for the file being sourced; not bash syntax, hence eval
else
  echo 'env.sh works in bash and zsh, and this shell is neither: type `bash`, then `source env.sh`' >&2
  return 1
fi
_lab_root="$(CDPATH='' builtin cd -- "$(dirname -- "$_lab_file")" && pwd -P)"

# Values derived from another copy of the lab, sourced earlier in this terminal, are not the learner's choice.
if [ -n "${LAB_ROOT:-}" ] && [ "$LAB_ROOT" != "$_lab_root" ]; then
  if [ "${NANO_DIR:-}" = "$LAB_ROOT/engine" ]; then unset NANO_DIR; fi
  if [ "${MODEL_DIR:-}" = "$LAB_ROOT/models/Qwen3-0.6B" ]; then unset MODEL_DIR; fi
fi

export LAB_ROOT="$_lab_root"
export NANO_DIR="${NANO_DIR:-$LAB_ROOT/engine}"
export MODEL_DIR="${MODEL_DIR:-$LAB_ROOT/models/Qwen3-0.6B}"
export MODEL_REVISION="c1899de289a04d12100db370d81485cdf75e47ca"
export NANO_UPSTREAM_COMMIT="bb823b3e06983d71485a8e1f23715ebd87d98ef8"

# The baseline's commit is generated with the patch series; empty until that file exists.
NANO_COMMIT=""
if [ -r "$LAB_ROOT/patches/baseline.json" ]; then
  NANO_COMMIT="$(sed -n '/"commit"[[:space:]]*:/{s/.*"commit"[[:space:]]*:[[:space:]]*"\([0-9a-f]*\)".*/\1/p;q;}' \
    "$LAB_ROOT/patches/baseline.json")"
fi
export NANO_COMMIT

unset _lab_file _lab_root
