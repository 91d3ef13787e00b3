"""Reads the words of a command line as numbers, choices and paths by hand.

Typer hands each word to a schema library whose import costs more than the rest of a verb together. `Verbs` gives every
parameter of a command that runs a reader of its own instead; where Typer has no place for one, it goes on as before.
An option that takes one value is given once: of two Typer would silently take the last.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, get_args

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)")


class Verbs(typer.Typer):
    """A group of verbs whose words are read plainly, and whose help needs no rendering library."""

    def __init__(self, about: str) -> None:
        super().__init__(
            help=about, cls=PlainGroup, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Register a verb, as Typer does."""
        return super().command(name, **{"cls": PlainCommand, **options})


class PlainCommand(TyperCommand):
    """A command whose parameters have plain readers."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, `--help` among them, as they are about to be read."""
        return _read_plainly(super().get_params(ctx))

    def make_parser(self, ctx: Any) -> Any:
        """The parser of its words; it refuses what is given twice, and names what a missing value may be."""
        parser = super().make_parser(ctx)
        parser.parse_args = _strictly(parser.parse_args, ctx)  # type: ignore[method-assign]
        return parser


class PlainGroup(TyperGroup):
    """A group whose own parameters have plain readers."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, `--help` among them, as they are about to be read."""
        return _read_plainly(super().get_params(ctx))


class PlainReader:
    """Turns one parameter's words into its values; answers to the one call Typer makes."""

    def __init__(self, described: Any) -> None:
        info = described.parameter_info
        kind = get_args(described.annotation)[0] if described.is_list else described.annotation
        self._read: Callable[[str], Any] = info.parser or _reader(kind, described.choices)

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of a word, a tuple for many, None for none. Raises BadParameter naming the option."""
        if param.multiple or param.nargs == -1:
            return tuple(self._one(word, param, ctx) for word in value or ())
        return self._one(value, param, ctx)

    def _one(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None


def _read_plainly(params: Any) -> Any:
    for param in params:
        if getattr(param, "_runtime_param", True) is None:
            param._runtime_param = PlainReader(param.type_descriptor)
    return params


def _strictly(parse: Callable[..., Any], ctx: Any) -> Callable[..., Any]:
    def parsed(args: list[str]) -> Any:
        try:
            opts, left, order = parse(args=args)
        except TyperException as error:
            # Of an option that is known and takes a value, nothing else is wrong here than that there is none.
            named = getattr(error, "option_name", None)
            param = next((param for param in ctx.command.get_params(ctx) if named in param.opts), None)
            if param is None or param.is_flag:
                raise
            raise typer.BadParameter(f"a value is missing: {_values(param)}", ctx=ctx, param=param) from None
        for param, times in Counter(order).items():
            single = param.param_type_name == "option" and not (param.is_flag or param.multiple or param.count)
            if times > 1 and single and not ctx.resilient_parsing:
                raise typer.BadParameter(f"given {times} times; expected once", ctx=ctx, param=param)
        return opts, left, order

    return parsed


def _values(param: Any) -> str:
    described = getattr(param, "type_descriptor", None)
    choices = getattr(described, "choices", None)
    return f"expected one of {', '.join(map(str, choices))}" if choices else f"expected {param.metavar or 'a text'}"


def seconds(text: str) -> float | int:
    """A duration in seconds from `90`, `90s`, `1.5m`, `2h` or `1d`. Raises ValueError."""
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is no duration; expected seconds, or a number with s, m, h or d as in 15m")
    value = float(found[1]) * _UNITS[found[2]]
    return int(value) if value.is_integer() else value


def _reader(kind: Any, choices: tuple[Any, ...] | None) -> Callable[[str], Any]:
    if choices is not None:
        return lambda word: _choice(word, choices)
    if kind is int:
        return _whole
    if kind is Path:
        return Path
    if kind in {str, bool}:  # a flag's value is no word and passes as it is
        return str
    raise TypeError(f"no plain reader for {kind!r}")


def _choice(word: str, choices: tuple[Any, ...]) -> Any:
    if word not in choices:
        raise ValueError(f"{word!r} is none of {', '.join(map(str, choices))}")
    return word


def _whole(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ValueError(f"{word!r} is no whole number") from None
