"""All algorithms with their settings, as their authors have them unless the text says otherwise."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.rivals.anil import Anil
from benchmarks.rivals.cavia import Cavia, with_context
from benchmarks.rivals.comln import Comln, ComlnPrototypes
from benchmarks.rivals.imaml import IMaml
from benchmarks.rivals.maml import Maml, MetaSgd
from benchmarks.rivals.network_rival import Classifier
from benchmarks.rivals.protonet import ProtoNet
from benchmarks.rivals.r2d2 import R2D2
from benchmarks.rivals.ridge import Ridge
from benchmarks.rivals.rival import Rival
from benchmarks.rivals.svm import Svm
from benchmarks.rivals.tasks import Problem


@dataclass(frozen=True)
class Entry:
    """An algorithm as it is trained.

    Attributes:
        build: makes it for a problem and a number of ways. settings: in words.
    """

    build: Callable[[Problem, int], Rival]
    settings: str


RIVALS: Mapping[str, Entry] = {
    "COMLN": Entry(Comln, "learned W0 from 0, learned T from 1"),
    "COMLN, prototype start": Entry(ComlnPrototypes, "alpha times the class means, alpha and T learned from 1"),
    "ProtoNet": Entry(lambda problem, _: ProtoNet(problem), "squared Euclidean distance"),
    "ANIL": Entry(lambda problem, ways: Anil(problem, ways, steps=5, rate=0.1), "5 steps of 0.1, no bias"),
    "MetaOptNet, ridge": Entry(lambda problem, _: Ridge(problem, strength=50.0), "strength 50, learned scale"),
    "MetaOptNet, SVM": Entry(lambda problem, _: Svm(problem, C=0.1), "Crammer and Singer, C 0.1, learned scale"),
    "R2D2": Entry(lambda problem, _: R2D2(problem, strength=1.0), "learned strength from 1, scale and bias"),
    "MAML": Entry(lambda problem, ways: Maml(Classifier(problem, ways), steps=5, rate=0.01), "5 steps of 0.01"),
    "MAML, first order": Entry(
        lambda problem, ways: Maml(Classifier(problem, ways, twice=False), steps=5, rate=0.01, first_order=True),
        "5 steps of 0.01",
    ),
    "iMAML": Entry(
        lambda problem, ways: IMaml(Classifier(problem, ways), steps=16, rate=0.1, strength=2.0, cg_steps=5),
        "16 steps of 0.1, strength 2, 5 steps of conjugate gradients",
    ),
    "Meta-SGD": Entry(
        lambda problem, ways: MetaSgd(Classifier(problem, ways), steps=1, rate=0.01), "1 step, rates learned from 0.01"
    ),
    "CAVIA": Entry(
        lambda problem, ways: Cavia(with_context(problem, ways, 100), steps=2, rate=1.0),
        "100 context parameters at the third layer, 2 steps of 1",
    ),
}
