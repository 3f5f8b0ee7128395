"""Columns of another table by the names that a model has for them: `--rename longitude=lon`."""

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dorff.data import Dataset
from dorff.data.encoding import Encoding, from_attributes, to_attributes
from dorff.data.layout import Attributes
from dorff.errors import InputError
from dorff.predict.columns import duplicates


@dataclass(frozen=True)
class Renaming:
    """`names` has the model's name of each column of a table that is called otherwise there."""

    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, pairs: Sequence[str]) -> "Renaming":
        """Return the renaming that pairs `OLD=NEW` say; InputError for what is no pair, or a name given twice."""
        split = [(old.strip(), new.strip()) for old, _, new in (pair.rpartition("=") for pair in pairs)]
        for pair, (old, new) in zip(pairs, split, strict=True):
            if not old or not new:
                raise InputError(f"--rename {pair}: wanted OLD=NEW, a column of the table and its name in the model")
        for place, what in enumerate(("column", "name")):
            if twice := duplicates([names[place] for names in split]):
                raise InputError(f"--rename: the {what} {twice[0]!r} is given twice; give each once")
        return cls(dict(split))

    def __bool__(self) -> bool:
        return bool(self.names)

    def check(self, columns: Sequence[str], known: Collection[str], where: Path | str) -> None:
        """Raise InputError unless all are columns of the table, new names the model's, and none comes twice."""
        for old, new in self.names.items():
            if old not in columns:
                raise InputError(f"{where}: --rename {old}={new}: has no column {old!r}{_nearest(old, columns)}")
            if new not in known:
                problem = f"the model has no input or target {new!r}{_nearest(new, known)}"
                raise InputError(f"{where}: --rename {old}={new}: {problem}")
            if new in columns and new not in self.names:
                problem = f"there is a column {new!r} already, so that two would have this name"
                raise InputError(f"{where}: --rename {old}={new}: {problem}; rename that one too, or leave this out")

    def only(self, names: Collection[str]) -> "Renaming":
        """Return what is said of these columns of the model."""
        return Renaming({old: new for old, new in self.names.items() if new in names})

    def to_model(self, column: str) -> str:
        return self.names.get(column, column)

    def to_table(self, name: str) -> str:
        """Return what a table calls the model's column; of a cycle, when:day, the column's part is renamed."""
        back = {new: old for old, new in self.names.items()}
        column, colon, cycle = name.rpartition(":")
        return f"{back[column]}{colon}{cycle}" if name not in back and column in back else back.get(name, name)

    def encoding_to_table(self, encoding: Attributes, where: Path) -> Attributes:
        """Return the encodings of a model by the names that the table has for its inputs."""
        encodings = from_attributes(encoding, where)
        return to_attributes(_by_name(replace(one, name=self.to_table(one.name)) for one in encodings.values()))

    def dataset(self, dataset: Dataset, known: Collection[str]) -> Dataset:
        """Return a data set whose columns, and their encodings, have the model's names; see `check`."""
        if not self:
            return dataset
        before = list(from_attributes(dataset.encoding, dataset.path).values())
        after = [self._encoding_to_model(one) for one in before]
        names = {
            old: new
            for one, other in zip(before, after, strict=True)
            for old, new in zip(one.columns, other.columns, strict=True)
        }
        given = [column for column in (*dataset.input_columns, *dataset.target_columns) if column not in names]
        self.check(list(dict.fromkeys([*given, *(one.column for one in before)])), known, dataset.path)
        return replace(
            dataset,
            input_columns=tuple(names.get(one, self.to_model(one)) for one in dataset.input_columns),
            target_columns=tuple(self.to_model(one) for one in dataset.target_columns),
            encoding=to_attributes(_by_name(after)),
            column_attributes={
                names.get(one, self.to_model(one)): attributes for one, attributes in dataset.column_attributes.items()
            },
        )

    def _encoding_to_model(self, encoding: Encoding) -> Encoding:
        cycle = encoding.name.removeprefix(encoding.column)
        return replace(encoding, name=f"{self.to_model(encoding.column)}{cycle}")


def _by_name(encodings: Iterable[Encoding]) -> dict[str, Encoding]:
    return {one.name: one for one in encodings}


def _nearest(name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(list(dict.fromkeys(names))[:20])}"
