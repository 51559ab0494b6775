"""Do the vectors' clusters agree with the groups of sentences that mean the same?"""

import numpy as np


def agreement(vectors: np.ndarray, groups: np.ndarray, seed: int) -> dict[str, float]:
    """Adjusted Rand index and adjusted mutual information of k-means clusters with the groups.

    vectors (n, d) of length one; groups (n,). Only sentences of groups of two or more are
    clustered, k is the number of those groups; NaN with fewer than two. 0 is chance, 1 agreement
    (Hubert & Arabie 1985; Vinh et al. 2010).
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

    _, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    grouped = sizes[place] > 1
    truth = groups[grouped]
    k = len(np.unique(truth))
    if k < 2:
        return dict.fromkeys(("adjusted_rand", "adjusted_mutual_information"), float("nan"))
    # A collapsed space has fewer distinct vectors than clusters; k-means would only warn of it.
    points = vectors[grouped]
    k = min(k, len(np.unique(points, axis=0)))
    found = KMeans(k, n_init=1, random_state=seed % 2**32).fit_predict(points)
    return {"adjusted_rand": float(adjusted_rand_score(truth, found)),
            "adjusted_mutual_information": float(adjusted_mutual_info_score(truth, found))}
