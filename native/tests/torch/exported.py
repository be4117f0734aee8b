"""What `transformers` makes of exported folders.

    BARNRAISE_EXPORTED=/tmp/exported cargo test -p barnraise-native --lib exported
    pip install torch transformers
    python native/tests/torch/exported.py /tmp/exported/gpt2 /tmp/exported/llama

Prints for each folder the natural logarithms of the probabilities of the token after a few: the constants of
`native/src/exported/tests.rs`.
"""

import sys

import torch
from transformers import AutoModelForCausalLM

IDS = [2, 17, 5, 39, 11, 8]

for folder in sys.argv[1:]:
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0, -1].double()
    print(folder)
    print(", ".join(f"{value:.5f}" for value in torch.log_softmax(logits, dim=0)))
