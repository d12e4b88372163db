"""Members of a JSON body, read with their types and bounds; what is wrong is refused with the member's name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from pytriton_lite.openai.errors import ApiError

_KINDS = {
    bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array", dict: "an object",
    type(None): "null",
}  # fmt: skip
_INT64 = 1 << 63


def kind_of(value: object) -> str:
    """The JSON type of *value*, with its article."""
    return _KINDS.get(type(value), "something else")


def refuse_type(param: str, expected: str, value: object) -> NoReturn:
    raise ApiError(
        f"Invalid type for '{param}': expected {expected}, but got {kind_of(value)} instead.",
        param=param,
        code="invalid_type",
    )


def refuse_value(param: str, text: str, code: str = "invalid_value") -> NoReturn:
    raise ApiError(f"Invalid '{param}': {text}", param=param, code=code)


def refuse_unsupported(param: str, text: str) -> NoReturn:
    """Of what this API has, and this model or server has not."""
    raise ApiError(text, param=param, code="unsupported_parameter")


class Members:
    """The members of an object. A null one is as good as none. *path* is where the object is, ``messages[0].`` say.

    Who reads a member takes it; `rest` has those that nobody took.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._path = path
        self._taken: set[str] = set()

    @classmethod
    def of(cls, value: object, path: str) -> Members:
        """*value*, which has to be an object; *path* is its own name."""
        if not isinstance(value, dict):
            refuse_type(path, "an object", value)
        return cls(value, f"{path}.")

    def param(self, name: str) -> str:
        """The whole name of a member."""
        return self._path + name

    def take(self, name: str) -> Any:
        """The member as it is; None where there is none."""
        self._taken.add(name)
        return self._values.get(name)

    def rest(self) -> Iterator[tuple[str, Any]]:
        """The members that were not taken."""
        return ((name, value) for name, value in self._values.items() if name not in self._taken)

    def required(self, name: str) -> Any:
        """As `take`. Raises ApiError where there is none."""
        value = self.take(name)
        if value is None:
            param = self.param(name)
            raise ApiError(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
        return value

    def text(self, name: str) -> str | None:
        value = self.take(name)
        if value is not None and type(value) is not str:
            refuse_type(self.param(name), "a string", value)
        return value

    def needed_text(self, name: str) -> str:
        self.required(name)
        found = self.text(name)
        assert found is not None
        return found

    def truth(self, name: str) -> bool | None:
        value = self.take(name)
        if value is not None and type(value) is not bool:
            refuse_type(self.param(name), "a boolean", value)
        return value

    def integer(self, name: str, low: int = -_INT64, high: int = _INT64 - 1) -> int | None:
        value = self.take(name)
        if value is None:
            return None
        if type(value) is float and value.is_integer() and abs(value) < 1 << 53:
            value = int(value)  # to JSON 5.0 is the same number as 5
        if type(value) is not int:
            refuse_type(self.param(name), "an integer", value)
        self._check_range(name, value, low, high, "integer")
        return int(value)

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self.take(name)
        if value is None:
            return None
        if type(value) is not int and type(value) is not float:
            refuse_type(self.param(name), "a number", value)
        self._check_range(name, value, low, high, "decimal")
        return float(value)

    def _check_range(self, name: str, value: float, low: float, high: float, kind: str) -> None:
        if value < low:
            text = f"expected a value >= {low}, but got {value} instead."
            refuse_value(self.param(name), text, f"{kind}_below_min_value")
        if value > high:
            text = f"expected a value <= {high}, but got {value} instead."
            refuse_value(self.param(name), text, f"{kind}_above_max_value")

    def choice(self, name: str, *known: str) -> str | None:
        value = self.text(name)
        if value is not None and value not in known:
            expected = ", ".join(f"'{one}'" for one in known)
            refuse_value(self.param(name), f"expected one of {expected}, but got '{value}' instead.")
        return value

    def array(self, name: str, most: int) -> list[Any] | None:
        value = self.take(name)
        if value is None:
            return None
        if type(value) is not list:
            refuse_type(self.param(name), "an array", value)
        if len(value) > most:
            text = f"array too long. Expected at most {most} elements, but got {len(value)} instead."
            refuse_value(self.param(name), text, "array_above_max_length")
        return value

    def mapping(self, name: str) -> dict[str, Any] | None:
        value = self.take(name)
        if value is not None and type(value) is not dict:
            refuse_type(self.param(name), "an object", value)
        return value
