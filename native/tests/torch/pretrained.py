"""Small models as `transformers` saves them, for the tests of `native/src/pretrained`.

    pip install torch transformers
    python native/tests/torch/pretrained.py native/tests/pretrained

Writes a folder for each and prints the natural logarithms of the probabilities of the token after a few: the constants of
`native/src/pretrained/tests.rs`.
"""

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

IDS = [2, 17, 5, 39, 11, 8]
ENDS = {"bos_token_id": 2, "eos_token_id": 2}

MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=40, n_positions=16, n_embd=8, n_layer=2, n_head=2, **ENDS)
    ),
    # Halves of numbers, weights of its own in the last layer, and other numbers than the usual ones.
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40,
            max_position_embeddings=16,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=12,
            rms_norm_eps=1e-3,
            rope_theta=500.0,
            tie_word_embeddings=False,
            **ENDS,
        )
    ).to(torch.bfloat16),
    # Waves as those of Llama 3.1: of the two of a head one is longer by a part, one by all of the factor.
    "llama-3": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40,
            max_position_embeddings=32,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=12,
            tie_word_embeddings=True,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 100.0,
                "factor": 8.0,
                "low_freq_factor": 0.25,
                "high_freq_factor": 1.0,
                "original_max_position_embeddings": 16,
            },
            **ENDS,
        )
    ),
    # More rows in its table than tokens, as the real ones.
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=48,
            max_position_embeddings=16,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=12,
            tie_word_embeddings=True,
            **ENDS,
        )
    ),
}

for name, make in MODELS.items():
    torch.manual_seed(7)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger than at the beginning of training, so that a mistake is seen.
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter == 1) * 1.0)
    folder = Path(sys.argv[1]) / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    with torch.no_grad():
        logits = model.float()(torch.tensor([IDS])).logits[0, -1, :40].double()
    print(name)
    print(", ".join(f"{value:.5f}" for value in torch.log_softmax(logits, dim=0)))
