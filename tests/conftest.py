"""Small things made in-process: a tokenizer from the sample's characters, tiny encoders, CSVs."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that asks the network is a wrong test

from pathlib import Path

import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    CamembertConfig,
    CamembertModel,
    DebertaV2Config,
    DebertaV2Model,
    ElectraConfig,
    ElectraModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

SAMPLE = Path(__file__).resolve().parent.parent / "data" / "sample"
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]  # ids 0 to 4


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, `<s> A </s>` and `<s> A </s> B </s>` with token types."""
    texts = pd.read_csv(SAMPLE / "train.csv")[["sentence_1", "sentence_2"]].to_numpy().ravel()
    letters = sorted({letter for text in texts for letter in text if not letter.isspace()})
    vocabulary = {piece: place for place, piece in enumerate(SPECIALS + letters)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("", "isolated")])
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 1), ("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", cls_token="<s>",
        eos_token="</s>", sep_token="</s>", unk_token="<unk>", mask_token="<mask>")


ARCHITECTURES = {
    "bert": (BertConfig, BertModel, {"max_position_embeddings": 64, "type_vocab_size": 2}),
    "roberta": (RobertaConfig, RobertaModel, {"max_position_embeddings": 66, "type_vocab_size": 1,
                                              "pad_token_id": 0}),
    "xlm-roberta": (XLMRobertaConfig, XLMRobertaModel,
                    {"max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 0}),
    "camembert": (CamembertConfig, CamembertModel,
                  {"max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 0}),
    "electra": (ElectraConfig, ElectraModel, {"max_position_embeddings": 64, "type_vocab_size": 2,
                                              "embedding_size": 32}),
    "deberta-v2": (DebertaV2Config, DebertaV2Model,
                   {"max_position_embeddings": 64, "type_vocab_size": 0,
                    "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
}


@pytest.fixture(scope="session")
def make_encoder(tokenizer, tmp_path_factory):
    """`make_encoder("bert")`: the folder of a two-layer encoder with random weights, width 32."""
    made: dict[str, Path] = {}

    def make(kind: str = "bert") -> Path:
        if kind not in made:
            config_class, model_class, options = ARCHITECTURES[kind]
            torch.manual_seed(0)
            config = config_class(**({"vocab_size": len(tokenizer), "hidden_size": 32,
                                      "num_hidden_layers": 2, "num_attention_heads": 2,
                                      "intermediate_size": 64, "pad_token_id": 0} | options))
            made[kind] = tmp_path_factory.mktemp("encoder") / kind
            model_class(config).save_pretrained(made[kind])
            tokenizer.save_pretrained(made[kind])
        return made[kind]

    return make


@pytest.fixture
def competition(tmp_path) -> Path:
    """A folder with a small competition: the sample's first rows, to be spoilt by a test."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name, rows in (("train", 48), ("dev", 24), ("test", 16)):
        table = pd.read_csv(SAMPLE / f"{name}.csv", dtype=str, keep_default_na=False)
        table.head(rows).to_csv(folder / f"{name}.csv", index=False)
    sample = pd.read_csv(SAMPLE / "sample_submission.csv", dtype=str)
    sample.head(16).to_csv(folder / "sample_submission.csv", index=False)
    return folder


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    """`command("stage=check", …)` runs the real entry point: (exit code, stdout, stderr)."""
    import run

    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run.main(list(words))
        out, err = capfd.readouterr()
        return code, out, err

    return call
