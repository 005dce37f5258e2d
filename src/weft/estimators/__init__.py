"""Networks as scikit-learn's estimators: in pipelines, grid searches and cross-validation.

    from weft.estimators import WeftClassifier
    search = GridSearchCV(make_pipeline(StandardScaler(), WeftClassifier()), {...})

They need scikit-learn (`pip install "weft[sklearn]"`), and pass its `check_estimator`.

>>> from weft.estimators import WeftRegressor
>>> WeftRegressor.__name__
'WeftRegressor'
"""

from weft.estimators.estimator import WeftClassifier, WeftRegressor

__all__ = ["WeftClassifier", "WeftRegressor"]
