"""Two completions with vLLM in one process, no server (section 6.3.1). Runs in vLLM's environment, not in the lab's."""

from __future__ import annotations

import os

from vllm import LLM, SamplingParams

PROMPTS = ["The sky was", "The river was"]


def main() -> None:
    engine = LLM(
        model=os.environ["MODEL_DIR"],
        max_model_len=2048,
        gpu_memory_utilization=0.5,
        generation_config="vllm",  # vLLM's own sampling defaults, not those in the model's generation_config.json
        enforce_eager=os.environ.get("ENFORCE_EAGER") == "1",
    )
    sampling = SamplingParams(temperature=0.6, max_tokens=32)
    for request in engine.generate(PROMPTS, sampling):
        output = request.outputs[0]
        print(f"{request.prompt!r} -> {output.text!r} ({len(output.token_ids)} tokens, {output.finish_reason})")


if __name__ == "__main__":  # vLLM starts its engine in a child process, which imports this file again
    main()
