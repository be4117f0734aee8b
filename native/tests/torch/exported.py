"""What `transformers` makes of exported folders.

    BARNRAISE_EXPORTED=/tmp/exported cargo test -p barnraise-native --lib exported
    pip install torch transformers pillow
    python native/tests/torch/exported.py /tmp/exported/*

Prints for each folder the natural logarithms of the probabilities of the token after a few, of that in the place of a
mask, or of the classes of a picture: the constants of `native/src/exported/tests.rs`.
"""

import json
import sys

import numpy
import torch
import transformers
from PIL import Image

IDS = [2, 17, 5, 39, 11, 8]
MASKED_IDS = [2, 17, 5, 39, 1, 8, 2, 17, 5, 39, 6, 8]


def logits(folder, model):
    if isinstance(model, transformers.AlbertForMaskedLM):
        return model(torch.tensor([MASKED_IDS])).logits[0, MASKED_IDS.index(1)]
    if isinstance(model, transformers.ResNetForImageClassification):
        processor = transformers.AutoImageProcessor.from_pretrained(folder, use_fast=False)
        height, width = processor.size["height"], processor.size["width"]
        pixels = [index * index * 7 % 251 for index in range(height * width * 3)]
        picture = Image.fromarray(numpy.array(pixels, dtype=numpy.uint8).reshape(height, width, 3))
        return model(**processor(picture, return_tensors="pt")).logits[0]
    return model(torch.tensor([IDS])).logits[0, -1]


for folder in sys.argv[1:]:
    with open(f"{folder}/config.json") as file:
        (architecture,) = json.load(file)["architectures"]
    model, info = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    model.eval()
    with torch.no_grad():
        values = torch.log_softmax(logits(folder, model).double(), dim=0)
    print(folder)
    print(", ".join(f"{value:.5f}" for value in values))
