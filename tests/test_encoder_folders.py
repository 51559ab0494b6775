"""Encoders on the disk: what a saved folder keeps, and folders that are no encoder.

python -m pytest tests/test_encoder_folders.py
"""

import json
import logging
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM

from pipeline.encoder import embed, fingerprint, load_encoder
from pipeline.errors import UserError
from pipeline.reading import Reading

KINDS = ["bert", "roberta", "xlm-roberta", "electra", "deberta-v2"]
TEXTS = ["이 영화 진짜 재밌다", "가", "배우의 연기가 기대보다 훨씬 좋았어요"]
CPU = torch.device("cpu")


@pytest.fixture
def folder(make_encoder, tmp_path):
    """A copy of a BERT folder, to be spoilt."""
    return shutil.copytree(make_encoder("bert"), tmp_path / "encoder")


def refused(folder, **options):
    """The message with which a folder is refused: a single line."""
    with pytest.raises(UserError) as error:
        load_encoder(str(folder), **{"max_length": 32} | options)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
    return str(error.value)


def mean_vectors(encoder):
    """The texts' vectors."""
    return embed(encoder, encoder.tokens(TEXTS), CPU)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_folder_is_a_plain_one(kind, make_encoder, tmp_path):
    """transformers alone reads it: the same vectors, and the configuration it came with."""
    encoder = load_encoder(str(make_encoder(kind)), pooling="mean", max_length=32, dropout=0.3)
    encoder.save(tmp_path / "saved")
    model = AutoModel.from_pretrained(tmp_path / "saved").eval()
    padded = AutoTokenizer.from_pretrained(tmp_path / "saved")(TEXTS, padding=True,
                                                               return_tensors="pt")
    with torch.no_grad():
        states, mask = model(**padded).last_hidden_state, padded["attention_mask"][..., None]
    expected = ((states * mask).sum(1) / mask.sum(1)).numpy()
    np.testing.assert_allclose(mean_vectors(encoder), expected, rtol=1e-4, atol=1e-5)
    before, after = (json.loads((path / "config.json").read_text())
                     for path in (make_encoder(kind), tmp_path / "saved"))
    assert after == before
    assert after["hidden_dropout_prob"] == after["attention_probs_dropout_prob"] == 0.1


def test_saving_leaves_the_training_dropout(make_encoder, tmp_path):
    """A save in the middle of training does not change how the training goes on."""
    encoder = load_encoder(str(make_encoder("bert")), max_length=32, dropout=0.0).train()
    batch = encoder.tokens(TEXTS).batch(np.arange(3))
    before = encoder(batch)
    encoder.save(tmp_path / "saved")
    assert encoder.training
    assert torch.equal(encoder(batch), before)
    assert encoder.backbone.config.hidden_dropout_prob == 0.0


def test_reading_is_saved(make_encoder, tmp_path):
    """Pooling, prefix and length come back, unless the caller names others."""
    path = str(tmp_path / "saved")
    encoder = load_encoder(str(make_encoder("bert")), "first_last_mean", "query: ", 20)
    encoder.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "sentence_encoder.json").read_text()) == {
        "pooling": "first_last_mean", "prefix": "query: ", "max_length": 20}
    again = load_encoder(path)
    assert again.reading == Reading("first_last_mean", "query: ", 20)
    assert np.array_equal(mean_vectors(again), mean_vectors(encoder))
    assert load_encoder(path, "cls", "", 30).reading == Reading("cls", "", 30)


def test_prefix_is_read(make_encoder):
    """A prefix changes the vectors exactly as if it stood in the text."""
    path = str(make_encoder("bert"))
    plain, prefixed = (load_encoder(path, prefix=prefix, max_length=40) for prefix in ("", "나 "))
    with_it = embed(plain, plain.tokens(["나 " + text for text in TEXTS]), CPU)
    assert np.array_equal(mean_vectors(prefixed), with_it)
    assert not np.allclose(mean_vectors(plain), with_it)


def test_mlp_is_never_saved(make_encoder, tmp_path):
    """SimCSE's MLP belongs to training: the folder is one with pooling cls."""
    encoder = load_encoder(str(make_encoder("bert")), pooling="cls_mlp", max_length=32)
    encoder.save(tmp_path / "saved")
    again = load_encoder(str(tmp_path / "saved"))
    assert again.reading.pooling == "cls"
    assert not [name for name in load_file(tmp_path / "saved" / "model.safetensors")
                if "mlp" in name]
    assert np.array_equal(mean_vectors(again), mean_vectors(encoder))


def test_language_model_as_encoder(tokenizer, tmp_path, caplog):
    """A masked language model is an encoder; its pooler would be random, which is said."""
    torch.manual_seed(1)
    model = BertForMaskedLM(BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64)).eval()
    model.save_pretrained(tmp_path / "mlm")
    tokenizer.save_pretrained(tmp_path / "mlm")
    encoder = load_encoder(str(tmp_path / "mlm"), pooling="cls", max_length=32)
    with torch.no_grad():
        padded = tokenizer(TEXTS, padding=True, return_tensors="pt")
        expected = model.bert(**padded).last_hidden_state[:, 0].numpy()
    np.testing.assert_allclose(mean_vectors(encoder), expected, rtol=1e-4, atol=1e-5)
    assert "pooler" not in caplog.text
    with caplog.at_level(logging.WARNING):
        load_encoder(str(tmp_path / "mlm"), pooling="pooler", max_length=32)
    assert "no trained pooler" in caplog.text


def test_weights_in_half_precision_train_in_full(make_encoder, tmp_path):
    """A checkpoint in fp16 is loaded as fp32."""
    model = AutoModel.from_pretrained(make_encoder("bert")).half()
    model.save_pretrained(tmp_path / "half")
    AutoTokenizer.from_pretrained(make_encoder("bert")).save_pretrained(tmp_path / "half")
    encoder = load_encoder(str(tmp_path / "half"), max_length=32)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}


def test_no_such_folder(tmp_path):
    """A path that looks like a folder is one, and is named."""
    assert f"no folder {tmp_path}/none" in refused(tmp_path / "none")
    assert "no folder ./none" in refused("./none")


@pytest.mark.parametrize("path", ["no/such/folder", "nobody/no-such-model"])
def test_hub_out_of_reach(path):
    """Without the Hub the line names the model and the ways out."""
    message = refused(path)
    assert path in message
    assert all(way in message for way in ("encoder.path=FOLDER", "HF_HOME", "preset=offline"))


@pytest.mark.parametrize("content", [None, "{", "{}", '{"model_type": "no-such-type"}'])
def test_folder_without_config(folder, content):
    """No configuration, or one of no known model."""
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_text(content)
    assert refused(folder).startswith(f"encoder.path={folder}: expected a Hugging Face encoder's")


@pytest.mark.parametrize("kept", [None, 0, 5000])
def test_folder_without_whole_weights(folder, kept):
    """No weights, an empty file, a file cut short as by a broken download."""
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    if kept is not None:
        weights.write_bytes(content[:kept])
    assert str(folder) in refused(folder)


def test_weights_of_another_size(folder):
    """Weights that do not fit the configuration."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    assert str(folder) in refused(folder)


def test_weights_that_miss_a_layer(folder):
    """An encoder is never completed with random weights in silence."""
    weights = load_file(folder / "model.safetensors")
    some = {name: tensor for name, tensor in weights.items() if ".layer.1." not in name}
    assert 0 < len(some) < len(weights)
    save_file(some, folder / "model.safetensors", metadata={"format": "pt"})
    message = refused(folder)
    assert str(folder) in message
    assert "encoder.layer.1." in message


@pytest.mark.parametrize("kind", KINDS)
def test_folder_without_tokenizer(kind, make_encoder, tmp_path):
    """A folder that holds only a model would read every word as unknown."""
    folder = shutil.copytree(make_encoder(kind), tmp_path / kind)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert str(folder) in refused(folder)


def test_dropout_without_effect_is_refused(folder, monkeypatch):
    """An encoder that knows no such probabilities: two views could not differ."""
    monkeypatch.setattr("pipeline.encoder.DROPOUTS", ("no_such_dropout",))
    assert "expected an encoder with no_such_dropout" in refused(folder, dropout=0.1)
    assert load_encoder(str(folder), max_length=32).own_dropout == {}


@pytest.mark.parametrize("content", ["{", "[1]", '{"poling": "mean"}', '{"pooling": "max"}',
                                     '{"prefix": 3}', '{"max_length": "long"}'])
def test_broken_record(folder, content):
    """A record of the reading that cannot be read is named."""
    (folder / "sentence_encoder.json").write_text(content)
    assert str(folder / "sentence_encoder.json") in refused(folder)


def test_fingerprint(folder, make_encoder):
    """Follows the content of weights and tokenizer, not the place or other files."""
    original = fingerprint(str(make_encoder("bert")))
    (folder / "notes.md").write_text("a note")
    assert fingerprint(str(folder)) == original
    for file in ("model.safetensors", "tokenizer.json"):
        (folder / file).write_bytes((folder / file).read_bytes() + b" ")
        changed = fingerprint(str(folder))
        assert {name for name in changed if changed[name] != original[name]} == {file}
        shutil.copy(make_encoder("bert") / file, folder / file)
