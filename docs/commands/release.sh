# Release in five commands: a maintainer's path, run in a clean checkout.

# tier: doc reason=完整的检查，CI 单独执行 | the whole check, a CI job of its own
# --8<-- [start:prove]
make test
# --8<-- [end:prove]

# tier: doc reason=改写仓库根目录的文件并提交 | rewrites files at the repository's root and commits them
# --8<-- [start:current]
python scripts/maintain/bundle.py docs
python scripts/maintain/bundle.py sums
git commit -m "Bring the root documents and sums up to date" CHECKPOINTS.md VALIDATION.md SHA256SUMS
# --8<-- [end:current]

# tier: doc reason=从干净的提交构建 | builds from a clean commit
# --8<-- [start:build]
python scripts/maintain/bundle.py build --version v6
# --8<-- [end:build]

# tier: doc reason=再构建一次并逐字节比较 | builds a second time and compares every byte
# --8<-- [start:check]
python scripts/maintain/bundle.py check dist/nanovllm-inference-lab-v6.zip --rebuild
# --8<-- [end:check]

# tier: doc reason=建新环境并装包，需要网络 | makes a new environment and installs packages, needs the network
# --8<-- [start:rehearse]
python scripts/maintain/bundle.py rehearse dist/nanovllm-inference-lab-v6.zip --venv
# --8<-- [end:rehearse]
