"""What was typed, checked and refused in the words of the command line.

Every command of `kg` is a `Command`. An argument that is empty is refused before anything is done: it comes from a
variable of a script that has no value, and for a path it would mean the directory one happens to be in. What the server
can't take is said of the argument or option that it came from, and not of the field of the request.
"""

from typing import Any

import typer
from typer.core import TyperCommand

MAY_BE_EMPTY = frozenset({"--kinds", "--description"})
"""Options whose emptiness means something: none, and nothing to say."""

NOT_UNDERSTOOD = "not_understood"
"""The name of the server's refusal of a request in which a value has the wrong form."""


class Command(TyperCommand):
    """A command whose errors speak of what was typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = list(args)
        rest = super().parse_args(ctx, args)
        # What comes behind the command's own arguments is another program's, which may well take empty ones.
        if not (ctx.resilient_parsing or ctx.ignore_unknown_options):
            self._refuse_empty(ctx, typed)
        return rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            # The class of the error is in a module that commands without a server never load.
            if getattr(error, "code", None) != NOT_UNDERSTOOD or not hasattr(error, "problem"):
                raise
            raise self._in_its_words(ctx, error) from None

    def _refuse_empty(self, ctx: Any, typed: list[str]) -> None:
        # Once more, for the words themselves: an empty path has become the directory "." by now.
        given, _, _ = self.make_parser(ctx).parse_args(args=typed)
        params: list[Any] = list(self.params)
        for param in params:
            value: Any = given.get(param.name)
            several: bool = isinstance(value, (list, tuple))
            if "" in (value if several else (value,)) and not MAY_BE_EMPTY.intersection(param.opts):
                raise typer.BadParameter("it is empty", ctx=ctx, param=param)

    def _in_its_words(self, ctx: Any, error: Any) -> typer.BadParameter:
        fault = next(iter(error.problem.get("errors") or ()), {"where": "", "what": str(error)})
        # As in body.where.ontologies.0: where in the request, the fields from the outside in, places in a list.
        place, *fields = [name for name in str(fault["where"]).split(".") if not name.isdigit()]
        params: list[Any] = list(self.params)
        for field in reversed(fields):
            fits = [param for param in params if any(_same(field, name) for name in _names(param))]
            if place == "body":
                # Where something gets another name, the path has the old one and the body the new one.
                fits = [param for param in params if param.name == f"new_{field}"] or fits
            if fits:
                return typer.BadParameter(fault["what"], ctx=ctx, param=fits[0])
        about = f"{fields[-1].replace('_', ' ')}: " if fields else ""
        return typer.BadParameter(f"{about}{fault['what']}", ctx=ctx)


def _names(param: Any) -> set[str]:
    words = (param.name, param.metavar or param.name, *param.opts)
    return {word.strip("-[]…").replace("-", "_").lower() for word in words}


def _same(field: str, name: str) -> bool:
    """Whether a field of a request is what people call so: `relation_types` is `--type`, `max_hops` is `--hops`."""
    spoken = (name, f"{name}s", f"{name.removesuffix('y')}ies")
    return any(field == one or field.endswith(f"_{one}") or field.startswith(f"{one}_") for one in spoken)
