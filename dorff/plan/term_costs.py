"""What a manifold term's sums depend on, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self, final

from dorff.features import FeatureMap
from dorff.graphs import KNN, Graph, Identity, Manifold
from dorff.moments import UNIT, Moments
from dorff.passes.blocks import block_rows
from dorff.spec.registry import Config

Places = tuple[int, ...] | None
MiB: Final = 2**20
GROUP_ROWS: Final = 4096  # of a leaf, that are one graph where graphs are within leaves
TILE_BYTES: Final = 128 * MiB  # of features in memory at a time
_BESIDE: Final = 12 * MiB  # what the edges of a piece and the work space of the features take, beside them
#: Edges a row from which the difference form is cheaper: it costs two products a row, and a look at each neighbour.
CHEAPER_FROM: Final = 2.5
#: Undirected edges a row of the graph of k nearest neighbours, as a part of k: between 1/2 (all are mutual) and 1.
MUTUAL: Final = 0.7


class Form(StrEnum):
    """How T is summed: rows as they are; differences along edges; rows times what L makes of them; L^j of rows."""

    IDENTITY = "identity"
    EDGES = "edges"
    DIFFERENCE = "difference"
    POWER = "power"


@final
@dataclass(frozen=True)
class TermRecipe:
    """All that T depends on besides the features and the rows: neither weight nor outputs, so that terms which differ
    in these alone share their sums. `inputs` are the columns of X that distances are taken of, `columns` those of F
    that T is of; None for all."""

    graph: Graph
    normalised: bool
    power: int
    form: Form
    inputs: Places = None
    columns: Places = None

    @classmethod
    def of(cls, term: Manifold, *, inputs: Places = None, columns: Places = None) -> Self:
        """The recipe of a term, its form chosen where it is "auto": the cheaper one, by the graph's words alone."""
        if isinstance(term.graph, Identity):
            return cls(term.graph, False, 1, Form.IDENTITY)  # every column has its own outputs to go by
        normalised = term.normalised
        if term.power > 1:
            return cls(term.graph, normalised, term.power, Form.POWER, inputs, columns)
        few = isinstance(term.graph, KNN) and MUTUAL * term.graph.neighbours < CHEAPER_FROM
        auto = Form.EDGES if few else Form.DIFFERENCE
        form = auto if term.form == "auto" else Form(term.form)
        return cls(term.graph, normalised, 1, form, inputs, columns)

    @property
    def hops(self) -> int:
        """How often L is taken of the features: so far away are the rows that a row's part of T needs."""
        return 0 if self.form is Form.IDENTITY else max(1, self.power // 2)

    def width(self, features: FeatureMap) -> int:
        """Columns of [F | 1] that T is of."""
        return (features.m if self.columns is None else len(self.columns)) + 1

    def config(self) -> Config:
        """The recipe as JSON."""
        return {
            "graph": self.graph.config(),
            "normalised": self.normalised,
            "power": self.power,
            "form": str(self.form),
            "inputs": self.inputs,
            "columns": self.columns,
        }

    @classmethod
    def from_config(cls, config: Config) -> Self:
        inputs, columns = (None if one is None else tuple(one) for one in (config["inputs"], config["columns"]))
        graph = Graph.from_config(config["graph"])
        return cls(graph, config["normalised"], config["power"], Form(config["form"]), inputs, columns)


def term_flops(recipe: TermRecipe, m: int, edges: float | None = None, *, look: float = 3.0) -> float:
    """Flops a row of T's sums over m features, without those of the features and of the graph; `edges` are the
    undirected ones a row (default: what a graph of nearest neighbours may be expected to have, else 10), and `look`
    the flops for a number of a neighbour's features."""
    w = float(m + 1)
    if edges is None:
        edges = MUTUAL * recipe.graph.neighbours if isinstance(recipe.graph, KNN) else 10.0
    look *= 2.0 * edges * w * recipe.hops  # each edge is seen from both ends
    match recipe.form:
        case Form.EDGES:
            return edges * w * (w + 2.0)
        case Form.DIFFERENCE:
            return 2.0 * w * w + look
        case Form.POWER:
            return w * w + look
    return w * w


def tile_rows(width: int) -> int:
    """Rows whose features are in memory at a time."""
    return max(2, TILE_BYTES // (8 * _padded(width)))


def term_bytes(recipe: TermRecipe, m: int, rows: int) -> int:
    """Bytes of T's sums and features in a task whose pieces (a group, a shard with its halo) have so many rows,
    without their inputs and graph."""
    width = m + 1
    line, block = 8 * _padded(width), block_rows(width)
    square = 8 * width * width + _BESIDE
    if recipe.form is Form.IDENTITY:
        return square + block * line
    tiles = 2 if recipe.hops > 1 else 1
    blocks = 2 if recipe.form is Form.DIFFERENCE else 1
    return square + (tiles * min(rows, tile_rows(width)) + blocks * block) * line


def difference_shift(sums: Moments) -> float:
    """What makes T positive to rounding, relative to its largest diagonal entry: 0 but for the difference form.

    The products of that form cancel, so that rounding is of the size of what cancelled: `unit` of such sums is 2^-52
    times the summed |g_i| sum_j w_ij |g_i - g_j|, and |g_i| |sum_j w_ij (g_i - g_j)|, over T's largest diagonal entry.
    The norm of all rounding errors is at most the sum of their norms; measured it is 0.0004 to 0.1 of it.
    """
    return sums.unit if sums.unit > UNIT else 0.0


def _padded(width: int) -> int:
    return -(-width // 8) * 8
