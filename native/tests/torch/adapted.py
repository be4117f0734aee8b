"""What PEFT makes of exported adapters.

    BARNRAISE_ADAPTED=/tmp/adapted cargo test -p barnraise-native --lib peft
    pip install torch transformers peft
    python native/tests/torch/adapted.py native/tests/pretrained /tmp/adapted

Puts the adapters of each folder on the model of the same name, and prints the natural logarithms of the probabilities of the
token after a few: the constants of `native/src/exported/tests.rs`.
"""

import sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

IDS = [2, 17, 5, 39, 11, 8]

bases, adapted = map(Path, sys.argv[1:])
for folder in sorted(adapted.iterdir()):
    base = AutoModelForCausalLM.from_pretrained(bases / folder.name, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "adapter").eval()
    whole = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        values, of_whole = [
            torch.log_softmax(each(torch.tensor([IDS])).logits[0, -1].double(), dim=0)
            for each in (model, whole)
        ]
    assert (values - of_whole).abs().max() < 1e-4, folder
    print(folder.name)
    print(", ".join(f"{value:.5f}" for value in values))
