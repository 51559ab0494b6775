"""Whether test differs from dev: a classifier that tries to tell their pairs apart.

Adversarial validation: no labels are used, only the text. What the classifier holds for typical of
test also gives every dev row a weight, by which dev's score and labels are turned to test's mix.
"""

import numpy as np
import pandas as pd
from scipy import sparse, stats
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.preprocessing import StandardScaler

from pipeline.features import features
from pipeline.metrics import interval
from pipeline.splits import groups

FOLDS = 5
MOST = 20_000  # rows of either set that the classifier sees
LARGEST_WEIGHT = 20.0
SHOWN = 12
MARKS = {"numbers": "none", "negation": "in none", "English": "in none",
         "emoji and ㅋㅋ": "in none"}
COUNTS = ["length of the pair", "overlap of the pair", "difference of the lengths"]


def auc(scores: np.ndarray, is_test: np.ndarray, axis: int = -1) -> np.ndarray | float:
    """The chance that a random test row scores above a random dev row: the area under ROC."""
    positive = is_test.sum(axis=axis)
    negative = is_test.shape[axis] - positive
    ranks = (stats.rankdata(scores, axis=axis) * is_test).sum(axis=axis)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (ranks - positive * (positive + 1) / 2) / (positive * negative)


def simple(frame: pd.DataFrame) -> pd.DataFrame:
    """Features in numbers: lengths, overlap, and whether there are numbers, negation and so on."""
    table = features(frame)
    return pd.DataFrame({
        "length of the pair": table["length"], "overlap of the pair": table["overlap"],
        "difference of the lengths": (frame["sentence_1"].str.len()
                                      - frame["sentence_2"].str.len()).abs().to_numpy(),
        **{f"has {name}": (table[name] != none).astype(float) for name, none in MARKS.items()}})


def tell_apart(dev: pd.DataFrame, test: pd.DataFrame, seed: int = 0) -> dict:
    """Cross-validated AUC with interval, the features that give test away, weights of dev's rows.

    Pairs that share a sentence stay in one fold. Of larger sets MOST rows each are drawn; rows of
    dev that were not drawn have the weight NaN.
    """
    random = np.random.default_rng(seed)
    parts = [np.sort(random.permutation(len(frame))[:MOST]) for frame in (dev, test)]
    frame = pd.concat([dev.iloc[parts[0]], test.iloc[parts[1]]], ignore_index=True)
    is_test = np.repeat([0, 1], [len(part) for part in parts])
    texts = (frame["sentence_1"] + "\n" + frame["sentence_2"]).tolist()
    numbers = simple(frame)
    grams = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 3), max_features=20_000,
                            sublinear_tf=True, min_df=2 if len(frame) > 100 else 1)
    # Neither the n-grams' frequencies nor the scaling know the sets: no leak over the folds.
    marks = numbers.drop(columns=COUNTS)
    columns = sparse.hstack([grams.fit_transform(texts),
                             StandardScaler().fit_transform(numbers[COUNTS]), marks]).tocsr()
    chances = out_of_fold(columns, is_test, groups(frame), seed)
    if chances is None:
        return {"n": [len(part) for part in parts], "auc": None, "features": [], "weights": None}
    # With balanced classes the odds are test's density over dev's, whatever the sets' sizes.
    odds = (chances / (1 - chances))[is_test == 0]
    weights = np.full(len(dev), np.nan)
    weights[parts[0]] = np.clip(odds, 1 / LARGEST_WEIGHT, LARGEST_WEIGHT)
    names = [*grams.get_feature_names_out(), *numbers.columns]
    return {"n": [len(part) for part in parts],
            "auc": interval(auc, chances, is_test.astype(float)),
            "features": telling(columns, is_test, names, grams, texts, numbers),
            "weights": weights}


def classifier() -> LogisticRegression:
    """The judge of both sets: balanced, so that 0.5 means undecided."""
    return LogisticRegression(class_weight="balanced", max_iter=500)


def out_of_fold(columns: sparse.csr_array, is_test: np.ndarray, group: np.ndarray,
                seed: int) -> np.ndarray | None:
    """The chance (n,) that a row is of test, by a classifier that did not see its group.

    None where there are too few groups.
    """
    folds = min(FOLDS, *(len(np.unique(group[is_test == side])) for side in (0, 1)))
    if folds < 2:
        return None
    chances = np.full(len(is_test), np.nan)
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    for fitted, held in splitter.split(columns, is_test, group):
        if len(np.unique(is_test[fitted])) < 2:
            return None
        chances[held] = classifier().fit(columns[fitted], is_test[fitted]).predict_proba(
            columns[held])[:, 1]
    return chances.clip(1e-6, 1 - 1e-6)


def telling(columns: sparse.csr_array, is_test: np.ndarray, names: list[str],
            grams: TfidfVectorizer, texts: list[str], numbers: pd.DataFrame) -> list[dict]:
    """The features that part the sets most, with their mean or share in dev and in test.

    effect: by how much a feature parts the sets' mean log-odds, its weight times the difference of
    its means; over all features it adds up to the whole distance.
    """
    weights = classifier().fit(columns, is_test).coef_[0]
    dev, test = (np.asarray(columns[is_test == side].mean(axis=0)).ravel() for side in (0, 1))
    effect = weights * (test - dev)
    order = np.argsort(-effect, kind="stable")[:SHOWN]
    found = []
    for place in order:
        is_gram = place < len(names) - numbers.shape[1]
        values = (np.asarray((columns[:, [place]] != 0).todense()).ravel() if is_gram
                  else numbers[names[place]].to_numpy())
        found.append({"feature": names[place], "kind": "characters" if is_gram else "count",
                      "points_to": "test" if weights[place] > 0 else "dev",
                      "effect": float(effect[place]),
                      "dev": float(values[is_test == 0].mean()),
                      "test": float(values[is_test == 1].mean())})
    return found


def by_source(dev: pd.DataFrame, test: pd.DataFrame) -> dict:
    """Every source's share of dev and of test, and weights (n,) of dev's rows by them.

    weights is None where dev has no row of any source of test; unseen is the share of test whose
    source dev lacks.
    """
    shares = [frame["source"].value_counts(normalize=True) for frame in (dev, test)]
    table = pd.concat(shares, axis=1, keys=["dev", "test"]).fillna(0).sort_index()
    seen = table["dev"] > 0
    ratio = (table["test"] / table["dev"]).where(seen)
    weights = dev["source"].map(ratio).to_numpy()
    return {"shares": [{"source": name, **row} for name, row in table.to_dict("index").items()],
            "unseen": float(table.loc[~seen, "test"].sum()),
            "weights": weights if weights.sum() > 0 else None}
