# The start page: the two commands of the repository.

# tier: doc reason=装依赖、做模型、跑实验、建网站 | installs, makes a model, runs the labs, builds the site
# --8<-- [start:lab]
make lab
# --8<-- [end:lab]

# tier: doc reason=完整的检查，CI 单独执行 | the whole check, a CI job of its own
# --8<-- [start:test]
make test
# --8<-- [end:test]
