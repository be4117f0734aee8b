"""Small tokenizers of every kind, and what Python's `tokenizers` makes of a corpus with every script.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 protobuf
    python shared/learning/tests/tokenizers/make.py

Trains on this repository's own prose and on the corpus, and writes the files beside this script: `tokenizer.json` files by
the names of their kinds, and `expected.json` with the ids of each text and the text that comes back.
`shared/learning/src/tokenizer/tests.rs` and the tests of the browser peer compare them.
"""

import base64
import io
import json
import pathlib

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[3]

CORPUS = [
    "It's 1913, and  they -- well...\tsaid: \"No!?\"\n\n",
    "The quick brown fox jumps over 13 lazy dogs; don't we'll I'M x² = ½·y³.",
    "Ein größerer Fluß; l'été à Noël, año 2024 — naïve café, Æsir, Łódź, İstanbul",
    "Tiếng Việt có dấu thanh: ậ ề ỗ",
    "Все счастливые семьи похожи друг на друга, Ёжик її",
    "Ἐν ἀρχῇ ἦν ὁ λόγος, καὶ ὁ λόγος ἦν πρὸς τὸν θεόν",
    "כל בני אדם נולדו בני חורין, שָׁלוֹם עוֹלָם",
    "كل عام وأنتم بخير ١٢٣ — السَّلَامُ عَلَيْكُمْ",
    "सभी मनुष्यों को गौरव और अधिकार, क्ष त्र ज्ञ १२३",
    "ทุกคนเกิดมามีอิสระและเสมอภาคกัน น้ำ ก็ ที่",
    "人人生而自由,在尊严和权利上一律平等。𠀀𪚥",
    "吾輩は猫である。名前はまだ無い。ｶﾀｶﾅ ガ が",
    "모든 인간은 태어날 때부터 자유로우며 ᄒᆞᆫ글",
    "Բոլոր մարդիկ ծնվում են ազատ, ყველა ადამიანი იბადება, ሁሉም ሰዎች",
    "👩‍👩‍👧 family, 🏳️‍🌈 flag, 👍🏽 thumb, 🇩🇪, ☃☃☃ ☃, 1️⃣",
    "e\u0301 a\u0308\u0304 o\u0308 \u0958 ﬁ Ａ ① \u212b \ufdfa",
    "zero\u200bwidth, soft\u00adhyphen, \u0000a\u0000 b\u2028c\u00a0d\u3000e\ufeff",
    "a" * 100 + " " + "9" * 49 + " " + "=" * 97,
    "    indented\n\t\tcode() { return x[0] != 'y'; }\r\n",
    "▁▁ low line ▁ Ġ ## ##ing </s> [SEP] x",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 \U0001f9d1\u200d\U0001f680",
    " ",
    "",
]

# What Llama 3 and GPT-4 cut by.
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def texts():
    prose = sorted(ROOT.glob("docs/**/*.md"))
    yield from (path.read_text() for path in prose if "reference" not in path.parts)
    yield from CORPUS * 3


def byte_level():
    """As GPT-2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.train_from_iterator(texts(), trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def byte_level_split():
    """As Llama 3: byte-level, cut by an expression that looks ahead; with tokens of white space added."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts(), trainers.BpeTrainer(
        vocab_size=500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens(["<|end_of_text|>"])
    tokenizer.add_tokens([AddedToken("    ", normalized=False), AddedToken("\t\t", normalized=False)])
    return tokenizer


def byte_fallback():
    """As Llama 2: characters that it lacks are bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>"]
    known = (line for text in texts() for line in text.splitlines() if line.isascii())
    tokenizer.train_from_iterator(known, trainers.BpeTrainer(
        vocab_size=600, show_progress=False, max_token_length=12,
        special_tokens=special + [f"<0x{byte:02X}>" for byte in range(256)]))
    # The bytes are no special tokens.
    file = json.loads(tokenizer.to_str())
    file["added_tokens"] = [token for token in file["added_tokens"] if token["content"] in special]
    return Tokenizer.from_str(json.dumps(file))


def unigram():
    """As T5, XLM-R and ALBERT, with a table of SentencePiece's in its normalizer."""
    rules = {"ﬁ": "fi", "Ａ": "A", "①": "1", "½": "1/2", "\u3000": " ", "\u00a0": " ", "\ufeff": "", "\u212b": "Å",
             "ｶ": "カ", "\ufdfa": "صلى الله عليه وسلم"}
    table = HERE / "rules.tsv"
    code = lambda text: " ".join(f"{ord(c):X}" for c in text)
    table.write_text("".join(f"{code(old)}\t{code(new)}\n" for old, new in rules.items()))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for text in texts() for line in text.splitlines() if "\0" not in line),
        model_writer=model, vocab_size=900, character_coverage=0.997, normalization_rule_tsv=str(table),
        minloglevel=2)
    table.unlink()
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    pieces = [("<unk>", 0.0), ("</s>", 0.0)]
    pieces += [(piece.piece, round(piece.score, 6)) for piece in proto.pieces if piece.type == 1]
    tokenizer = Tokenizer(models.Unigram(pieces + [("<mask>", 0.0)], unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
        normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "</s>", AddedToken("<mask>", lstrip=True, normalized=False)])
    return tokenizer


def word_piece():
    """As BERT."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(texts(), trainers.WordPieceTrainer(
        vocab_size=900, show_progress=False, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    return tokenizer


KINDS = {"byte-level": byte_level, "byte-level-split": byte_level_split, "byte-fallback": byte_fallback,
         "unigram": unigram, "word-piece": word_piece}

expected = {"texts": CORPUS, "kinds": {}}
for name, make in KINDS.items():
    file = make().to_str()
    (HERE / f"{name}.json").write_text(file)
    tokenizer = Tokenizer.from_str(file)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # What a text spells is text.
    tokenizer.encode_special_tokens = True
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in CORPUS]
    expected["kinds"][name] = {
        "size": max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
        "ids": ids,
        "decoded": [tokenizer.decode(row, skip_special_tokens=True) for row in ids],
    }
(HERE / "expected.json").write_text(json.dumps(expected, ensure_ascii=True, indent=None, separators=(",", ":")) + "\n")
