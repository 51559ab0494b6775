"""The sections of the configuration: every key with its default, its limits and its meaning.

    python run.py help
"""

from dataclasses import dataclass, field
from typing import Any

POOLINGS = ["auto", "cls", "cls_mlp", "mean", "first_last_mean", "pooler"]


def key(default: Any, help: str, **limits: Any) -> Any:
    """A configuration key: limits are choices=[…], at_least=, above=, at_most=.

    is_path=True: a leading ~ is the home folder.
    """
    metadata = {"help": help, **limits}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Data:
    """Where the competition's files are."""

    dir: str = key("data", "folder with train.csv, dev.csv, test.csv (and sample_submission.csv)",
                   is_path=True)
    nli_dir: str = key("data/nli", "folder with files of inference pairs for nli", is_path=True)
    extra: list[str] = key([], "more unlabelled sentences for simcse: .txt (one a line) or .csv",
                           is_path=True)
    positive_above: float = key(4.0, "pairs with a higher label are the positives of alignment; "
                                     "from this label on two sentences are duplicates (dynamics)",
                                at_least=0, at_most=5)


@dataclass
class Encoder:
    """The pretrained encoder that a chain starts from."""

    path: str = key("klue/roberta-large", "Hub id or folder of the pretrained encoder",
                    is_path=True)
    pooling: str = key("auto", "sentence vector; auto: as the model's folder records it, else mean",
                       choices=POOLINGS)
    max_length: int = key(128, "tokens kept of a sentence or a pair", at_least=8)
    prefix: str = key("auto", "text put before every sentence; auto: as the model's folder "
                              "records it, else none")
    special_tokens: list[str] = key([], "texts that become one token each, such as <PERSON>; "
                                        "saved with the model's tokenizer")


@dataclass
class Training:
    """What every training stage has."""

    epochs: float = key(1.0, "passes over the data", above=0)
    max_steps: int = key(0, "optimizer steps instead of epochs; 0: epochs count", at_least=0)
    batch_size: int = key(32, "rows in an optimizer step", at_least=2)
    learning_rate: float = key(3e-5, "peak of the linear schedule", above=0)
    warmup_ratio: float = key(0.1, "share of the steps with rising learning rate",
                              at_least=0, at_most=1)
    weight_decay: float = key(0.01, "AdamW's decay, not on biases and norms", at_least=0)
    max_grad_norm: float = key(1.0, "gradients are clipped to this norm", above=0)
    eval_every: float = key(0.25, "time between evaluations: below 1 in epochs, from 1 in steps",
                            above=0)
    patience: int = key(0, "evaluations without a better one before it stops; 0: never",
                        at_least=0)


@dataclass
class Simcse(Training):
    """Unsupervised contrastive training (Gao et al. 2021)."""

    batch_size: int = key(64, "sentences in a step; the others are the negatives", at_least=2)
    temperature: float = key(0.05, "the cosines are divided by it", above=0)
    dropout: float = key(0.1, "the only difference between the two views", at_least=0, at_most=0.9)
    micro_batch: int = key(0, "sequences encoded at a time, with the whole batch's gradients; "
                              "saves memory; 0: all", at_least=0)
    drop_last: bool = key(True, "leave out an epoch's last batch when it is not full")
    geometry_every: int = key(10, "steps between measurements of alignment and uniformity",
                              at_least=1)


@dataclass
class Nli(Training):
    """Training on inference pairs (supervised SimCSE, or three-way classification)."""

    batch_size: int = key(64, "triplets or pairs in a step", at_least=2)
    objective: str = key("contrastive", "contrastive: entailment against contradiction and the "
                                        "batch; classification: three classes",
                         choices=["contrastive", "classification"])
    head: str = key("cross", "of classification; cross reads the pair at once, bi [u, v, |u-v|]",
                    choices=["cross", "bi"])
    temperature: float = key(0.05, "of contrastive; the cosines are divided by it", above=0)
    hard_negative_weight: float = key(1.0, "of contrastive; a row's own contradiction counts so "
                                           "many times; 0: not at all", at_least=0)
    micro_batch: int = key(0, "of contrastive; sequences encoded at a time, with the whole "
                              "batch's gradients; saves memory; 0: all", at_least=0)
    geometry_every: int = key(10, "of contrastive; steps between measurements of alignment and "
                                  "uniformity", at_least=1)


@dataclass
class Distill(Training):
    """Regression on pairs without labels, which finished runs label."""

    teachers: list[str] = key([], "finished sts runs' folders, whose mean is the label; one of "
                                  "them with a bi head, whose vectors find neighbours",
                              is_path=True)
    pairs: int = key(24_000, "pairs put together of the competition's sentences, beside its own "
                             "pairs", at_least=2)
    head: str = key("cross", "as sts.head; sts goes on with a cross head as it left it",
                    choices=["cross", "bi"])


@dataclass
class Sts(Training):
    """Regression on the labelled pairs."""

    epochs: float = key(3.0, "passes over the data", above=0)
    head: str = key("cross", "cross: reads the pair at once; bi: cosine of two sentence vectors",
                    choices=["cross", "bi"])
    loss: str = key("auto", "auto: mse for cross, cosent for bi",
                    choices=["auto", "mse", "l1", "huber", "cosent", "pearson", "mse+pearson",
                             "mse+cosent", "cosent+pearson"])
    dropout: float = key(-1.0, "dropout in training; -1: the model's own", at_least=-1,
                         at_most=0.9)
    folds: int = key(0, "so many models, each trained without its share of the pairs, which it "
                        "then predicts; test is their mean; 0: one model", at_least=0, at_most=50)
    use_dev: bool = key(False, "with folds: dev's pairs are trained on too, and dev's score is "
                               "that of the models that did not see the pair")
    held: str = key("all", "with use_dev: the pairs that folds hold out; dev: dev's alone, and "
                           "every model is trained on all of train", choices=["all", "dev"])
    calibrate: str = key("none", "how predictions become labels, fitted on dev's pairs, which no "
                                 "model that predicts them has seen: monotone bends the scale, "
                                 "surface also looks at shared characters, length and negation",
                         choices=["none", "monotone", "surface"])
    keep: str = key("best", "the weights kept: of the best evaluation or of the last one",
                    choices=["best", "last"])
    ema: float = key(0.0, "decay of the moving average of the weights that is evaluated and kept, "
                          "such as 0.99; 0: the weights themselves", at_least=0, at_most=0.99999)
    interpolate: float = key(1.0, "how far the kept weights go from the stage's first (0) to the "
                                  "trained ones (1); less forgets less (WiSE-FT)",
                             above=0, at_most=1)
    layer_decay: float = key(1.0, "each layer's learning rate is this share of the one above it",
                             above=0, at_most=1)
    fgm: float = key(0.0, "size of the adversarial shift of the word embeddings (FGM), such as "
                          "0.5; doubles the time; 0: none", at_least=0)
    awp: float = key(0.0, "size of the adversarial shift of every weight matrix (AWP), as a share "
                          "of its norm, such as 0.0002; doubles the time; 0: none", at_least=0)
    r_drop: float = key(0.0, "weight of the squared difference of two passes with other dropout "
                             "masks (R-Drop); doubles the time; 0: one pass", at_least=0)
    dropout_samples: int = key(1, "of a cross head; dropout masks of each pair's vector, whose "
                                  "losses are averaged", at_least=1, at_most=16)
    binary_weight: float = key(0.0, "weight of an auxiliary loss: the score must tell binary-label "
                                    "by a logistic link; 0: none", at_least=0)
    swap: bool = key(False, "of a cross head; train on every pair in both orders")
    both_orders: bool = key(False, "of a cross head; a prediction is the mean of both orders")
    copies: float = key(0.0, "pairs of a sentence with itself and label 5 that are added, as a "
                             "share of the pairs; drawn from the sentences of pairs with label 0",
                        at_least=0, at_most=1)
    zeros: float = key(1.0, "share of the pairs with label 0 that are trained on", at_least=0,
                       at_most=1)
    flatten: float = key(0.0, "rarer labels are drawn more often: 0 as they are, 1 until all are "
                              "as frequent", at_least=0, at_most=1)
    label_noise: float = key(0.0, "standard deviation of the noise on labels in training",
                             at_least=0, at_most=2)
    source_token: bool = key(False, "a token for its source before every sentence; sources that "
                                    "train does not have get none")


@dataclass
class Fetch:
    """Public data in the competition's layout."""

    name: str = key("klue-sts", "the data set",
                    choices=["klue-sts", "korsts", "klue-nli", "kornli"])
    files: list[str] = key([], "local copies of its original files; empty: from the Hub",
                           is_path=True)
    dir: str = key("", "where it is written; empty: data/NAME", is_path=True)


@dataclass
class Ablate:
    """A comparison of chains."""

    arms: list[str] = key(["sts", "simcse>sts", "nli>sts", "simcse>nli>sts"],
                          "chains, their stages joined by '>'; the first is the one that the "
                          "others are compared with")
    seeds: list[str] = key(["42", "43"], "every arm is trained with each of these seeds")


@dataclass
class Ensemble:
    """A blend of finished sts runs."""

    method: str = key("auto", "mean of the predictions; rank: mean of their ranks; weights: "
                              "non-negative, by least squares; greedy: forward selection; auto: "
                              "mean, unless another is better beyond its interval",
                      choices=["auto", "mean", "rank", "weights", "greedy"])
    calibrate: str = key("none", "how the blend becomes labels, as sts.calibrate",
                         choices=["none", "monotone", "surface"])


@dataclass
class Compare:
    """Encoders without fine-tuning on the same pairs."""

    encoders: list[str] = key(
        ["encoder", "klue/roberta-base:mean", "klue/roberta-large:mean",
         "BM-K/KoSimCSE-roberta:cls", "BM-K/KoSimCSE-roberta-multitask:cls"],
        "runs, folders or Hub ids, each with :POOLING where it is not to be as recorded (else "
        "mean); encoder: the configured one; a Hub model that cannot be had is named and left out")


@dataclass
class Dynamics:
    """A grid of simcse runs whose geometry is followed; an empty list: as simcse has it."""

    temperatures: list[str] = key(["0.02", "0.05", "0.2"], "values of simcse.temperature")
    dropouts: list[str] = key(["0.05", "0.1", "0.2"], "values of simcse.dropout")
    batch_sizes: list[str] = key([], "values of simcse.batch_size")
    learning_rates: list[str] = key([], "values of simcse.learning_rate")


@dataclass
class Board:
    """The list of runs and submissions."""

    public: float = key(-9.0, "a submission's public score, to be recorded; -9: none")
    private: float = key(-9.0, "a submission's private score, to be recorded; -9: none")
    format: str = key("table", "how the list is printed", choices=["table", "csv", "json"])


@dataclass
class Tune:
    """A search for a training stage's best settings."""

    stage: str = key("sts", "the training stage whose dev score is raised",
                     choices=["simcse", "nli", "distill", "sts"])
    space: str = key("", "YAML file with the keys that vary and their ranges; empty: "
                         "configs/spaces/STAGE.yaml",
                     is_path=True)
    trials: int = key(20, "trials of the study, over all workers and commands; the first is the "
                          "untuned configuration", at_least=1)
    study: str = key("", "its name; the same name goes on with it; empty: NAME-STAGE")
    storage: str = key("", "URL of a database for the trials, such as sqlite:///tune.db; empty: a "
                           "journal file in the study's folder")
    metric: str = key("pearson", "the dev score", choices=["pearson", "spearman"])
    pruner: str = key("median", "which trials are ended at an evaluation: those below the median "
                                "of the others, or by hyperband's brackets",
                      choices=["none", "median", "hyperband"])
    startup: int = key(8, "trials drawn at random, none of them pruned by the median, before the "
                          "search learns from them", at_least=1)
    finalists: int = key(3, "so many of the best configurations, and the untuned one, are trained "
                            "with more seeds; the best mean wins", at_least=2)
    finalist_seeds: list[str] = key(["43", "44"], "those seeds, beside seed itself; []: none, the "
                                                  "best single run wins")


@dataclass
class Export:
    """A finished run as a folder of sentence-transformers."""

    dir: str = key("", "the new folder", is_path=True)
    format: str = key("auto", "auto: cross-encoder for a cross head, else sentence-transformers, "
                              "which of a cross head takes the encoder alone",
                      choices=["auto", "sentence-transformers", "cross-encoder"])
    fold: int = key(0, "of a run with folds, the fold whose model is exported, from 1",
                    at_least=0)
    repo: str = key("", "USER/NAME on the Hub to push the folder to; empty: not pushed")
    private: bool = key(True, "a repository made for it is private")
    onnx: bool = key(False, "adds onnx/model.onnx, an ONNX graph of the same model; needs the "
                            "packages onnx, onnxscript, onnxruntime")
