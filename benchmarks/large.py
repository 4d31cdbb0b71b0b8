"""A model of a billion parameters on a CPU: memory after loading, and time and peak memory of one trace.

    python benchmarks/large.py [--layers 16] [--folder DIR]

1. A Llama with the shape of Llama 3.2 1B (16 layers, 32 heads on 8 key-value heads, d_model 2048, d_mlp 8192)
   and random weights is written to a folder in fp32, once. Its vocabulary is mini's, 512 tokens, so that
   nearly all of its parameters are in its blocks. One head in 64 writes as usual, the others a hundredth of
   it: of heads that are all alike, nearly all would be carriers.
2. It is loaded in a process of its own. Memory is what the process holds, without what it held before.
3. A prompt of 32 tokens is traced: one mapping, with all controls and spans.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

SHAPE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
WORDS = "the house , the dog , the river and the table ; the horse , the door and the tree . It is near the road"
PROMPT = f'{WORDS} . The opposite of "large" is "'  # 31 words, read after BOS


def write(folder: Path, layers: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from circuits.zoo.language import tokenizer

    torch.manual_seed(0)
    words = tokenizer()
    config = LlamaConfig(
        **SHAPE,
        num_hidden_layers=layers,
        vocab_size=len(words),
        tie_word_embeddings=True,
        bos_token_id=0,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for number, block in enumerate(model.model.layers):
            quiet = [head for head in range(32) if (32 * number + head) % 64]
            # (d_model, head, d_head)
            written = block.self_attn.o_proj.weight.unflatten(1, (32, -1))
            written[:, quiet] *= 0.01
    model.save_pretrained(folder)
    words.save_pretrained(folder)


def held() -> float:
    """Memory that this process holds now, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measure(folder: Path) -> None:
    import circuits
    from circuits.tracing.trace import trace  # noqa: F401 (imports are paid before memory is read)

    circuits.load("mini")
    before, started = held(), time.process_time()
    model = circuits.load(folder, bos=True)
    loaded = held() - before
    sizes = {
        each.data_ptr(): each.numel() * each.element_size()
        for each in model.bridge.parameters()
    }
    weights, seconds = sum(sizes.values()), time.process_time() - started
    print(f"weights {weights / 1e9:.2f} GB, loaded in {seconds:.1f} CPU s")
    print(
        f"memory after loading {loaded / 1e9:.2f} GB, {loaded / weights:.2f} × the weights",
        flush=True,
    )
    length, started = len(model.tokenize(PROMPT)), time.process_time()
    circuit = circuits.trace(model, PROMPT, key="large", swap={"large": "hot"}, metric="kl")
    took, peak = (
        time.process_time() - started,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
    print(
        f"trace of {length} tokens, {circuit.engine} path: {took:.0f} CPU s, peak {peak / 1e9:.2f} GB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary) / "model"
        for act, values in ((write, (folder, arguments.layers)), (measure, (folder,))):
            if act is measure or not (folder / "config.json").exists():
                process = multiprocessing.get_context("spawn").Process(target=act, args=values)
                process.start()
                process.join()


if __name__ == "__main__":
    main()
