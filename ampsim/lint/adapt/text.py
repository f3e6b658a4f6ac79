"""Small things about expressions, statements and lines of text."""

import ast
import builtins
import keyword
import re
from collections.abc import Iterator, Sequence

from ampsim.lint.names import leaf, name_of, words_in

OWN = {"step", "make", "net", "batch", "batches", "draw", "loss_of", "iterate", "save", "load", "checkpoint", "Loop"}
LOSS = re.compile(r"loss(?!.*(scale|weight|coef|lambda|lim|thresh|fn$|func|norm|meter|avg|log|dict))|cost|^err", re.I)


def lossy(node: ast.AST) -> bool:
    """Return whether an expression may be a loss, and no setting."""
    if isinstance(node, ast.Constant):
        return False
    if isinstance(node, ast.Name | ast.Attribute):
        return bool(LOSS.search(leaf(name_of(node)))) and not re.search("weight|coef|scale|lambda", leaf(name_of(node)))
    return any(LOSS.search(each) for each in words_in(node)) or isinstance(node, ast.Call)


def does(lines: Sequence[str]) -> bool:
    """Return whether more than leaving happens in some lines."""
    return any(not re.match(r"(return|continue|break|pass)\b", each.strip()) for each in lines)


def indented(lines: Sequence[str]) -> Iterator[str]:
    """Return lines one level deeper."""
    return (f"    {each}" for line in lines for each in line.split("\n"))


def short(text: str) -> str:
    """Return a text in one line of at most 60 characters."""
    text = re.sub(r"\s+", " ", text)
    return text if len(text) <= 60 else text[:57] + "..."


def read(text: str) -> ast.expr:
    """Return the expression that a text is."""
    return ast.parse(text, mode="eval").body


def identifier(name: str) -> str:
    """Return a name for a dotted name: its last part, with a key or number that follows."""
    parts = re.findall(r"\w+", re.sub(r"\[\]|\(\)", "", name)) or ["it"]
    made = "_".join(parts[-2:]) if parts[-1].isdigit() else parts[-1]
    return f"{made}_" if keyword.iskeyword(made) or hasattr(builtins, made) or made in OWN else made


def lasting(text: str) -> set[str]:
    """Return the names that statements set, and may read before: they outlive an iteration."""
    found: set[str] = set()
    body = ast.parse(text).body
    _flow(body, set(), found)
    return found & names(body, ast.Store)


def _flow(body: Sequence[ast.stmt], surely: set[str], found: set[str]) -> set[str] | None:
    """Add to `found` the names that are read before they are surely set; return those that are set; None: it leaves."""
    surely = {*surely}
    for part in body:
        match part:
            case ast.If(test=test, body=yes, orelse=no):
                found |= names([test], ast.Load) - surely
                ends = [end for end in (_flow(yes, surely, found), _flow(no, surely, found)) if end is not None]
                surely = set.intersection(*ends) if ends else surely
            case ast.For(target=target, iter=iterated, body=inner):
                found |= names([iterated], ast.Load) - surely
                surely |= names([target], ast.Store)
                surely |= _flow(inner, surely, found) or set()
            case ast.With(body=inner):
                surely |= _flow(inner, surely, found) or set()
            case ast.Return() | ast.Continue() | ast.Break():
                return None
            case _:
                added = names([part], ast.Store) if isinstance(part, ast.AugAssign) else set()
                found |= (names([part], ast.Load) | added) - surely
                surely |= names([part], ast.Store)
    return surely


def names(body: Sequence[ast.AST], context: type[ast.expr_context]) -> set[str]:
    """Return the names that trees read, or set."""
    inside = (each for part in body for each in ast.walk(part))
    return {
        each.id
        for each in inside
        if isinstance(each, ast.Name) and isinstance(getattr(each, "ctx", ast.Load()), context)
    }
