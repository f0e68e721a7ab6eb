"""Constraints of definitions: a restricted expression evaluator over axes and named inputs. Never `eval`.

Allowed: number literals, + - * // % and small powers, chained comparisons, and / or / not, & | ~ on tensors,
subscripts with integers, slices, None (a new axis) and integer tensors (a gather), the calls of FUNCTIONS, and
the argument-less methods of METHODS on tensors.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

from inference_kernels.core.errors import ConstraintError

BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
COMPARE: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
METHODS = frozenset({"all", "any", "min", "max", "sum"})
# Bounds that keep a hostile expression from exhausting the machine: its text, its numbers, its powers, and the
# elements of a result that broadcasting makes larger than its operands.
LENGTH_LIMIT, NUMBER_LIMIT, EXPONENT_LIMIT, ELEMENT_LIMIT = 500, 2**63, 64, 2**27
# The longest axis that a rule counts along is a context of about a million tokens.
ARANGE_LIMIT = 2**24
REMEDY = "write it with what core/constraints.py allows"


class _Refused(Exception):
    """An expression outside the allowed language; turned into ConstraintError at the boundary."""


def check_constraint(expression: str, names: Mapping[str, Any], where: str) -> None:
    """Raise ConstraintError unless `expression` is allowed and true.

    names: axis values (int) and inputs (tensors or scalars); a value may be a function without arguments that
    loads the input when the expression first reads it.
    """
    if not evaluate(expression, names, where):
        values = {name: _resolve(names[name]) for name in sorted(names_in(expression) & set(names))}
        shown = ", ".join(f"{name} = {_short(value)}" for name, value in values.items())
        raise ConstraintError(
            expected=expression,
            found=shown or "false",
            where=where,
            remedy="correct the workload, or the definition if the rule is wrong",
        )


def evaluate(expression: str, names: Mapping[str, Any], where: str) -> bool:
    """Evaluate `expression` to a truth value; ConstraintError if it is not allowed or cannot be evaluated."""
    try:
        reason = refusal(expression)
        if reason:
            raise _Refused(reason)
        return bool(_value(_parse(expression), names))
    except (_Refused, ArithmeticError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise ConstraintError(
            expected="an expression over axes and inputs", found=f"{expression!r}: {error}", where=where, remedy=REMEDY
        ) from error


@cache
def refusal(expression: str) -> str | None:
    """Say why `expression` is outside the allowed language, without evaluating it; None if it is inside."""
    try:
        nodes = list(ast.walk(_parse(expression)))
        methods = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        for node in nodes:
            if isinstance(node, ast.Call):
                _require_known_call(node)
            elif isinstance(node, ast.Constant) and node.value is not None:
                _constant(node, {})
            elif not isinstance(node, PARTS) and id(node) not in methods:
                raise _Refused(f"{type(node).__name__} is not allowed")
    except _Refused as error:
        return str(error)
    return None


def value_of(expression: str, names: Mapping[str, Any], where: str) -> Any:
    """Evaluate `expression` to a number or a tensor; ConstraintError as in `evaluate`."""
    try:
        return _value(_parse(expression), names)
    except (_Refused, ArithmeticError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise ConstraintError(
            expected="an expression over axes and inputs", found=f"{expression!r}: {error}", where=where, remedy=REMEDY
        ) from error


def names_in(expression: str) -> set[str]:
    """List the axes and inputs that `expression` reads; none if it does not parse."""
    try:
        tree = _parse(expression)
    except _Refused:
        return set()
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called}


@cache
def _parse(expression: str) -> ast.expr:
    if len(expression) > LENGTH_LIMIT:
        raise _Refused(f"longer than {LENGTH_LIMIT} characters")
    try:
        return ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _Refused(f"not an expression ({error})") from error


def _resolve(value: Any) -> Any:
    return value() if callable(value) else value


def _short(value: Any) -> str:
    if not hasattr(value, "shape"):
        return str(value)
    if not value.numel():
        return f"tensor {list(value.shape)}"
    numbers = value.float() if value.is_floating_point() else value
    return f"tensor {list(value.shape)}, min {numbers.min().item()}, max {numbers.max().item()}"


def _require_bounded(*values: Any) -> None:
    """Refuse operands whose broadcast result would be much larger than they are."""
    shapes = [tuple(value.shape) for value in values if hasattr(value, "shape")]
    sizes = zip(*(((1,) * 8 + shape)[-8:] for shape in shapes))
    elements = math.prod(0 if 0 in column else max(column) for column in sizes)
    if elements > max([ELEMENT_LIMIT] + [math.prod(shape) for shape in shapes]):
        raise _Refused(f"a result of {elements:,} elements")


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    handler = HANDLERS.get(type(node))
    if handler is None:
        raise _Refused(f"{type(node).__name__} is not allowed")
    return handler(node, names)


def _constant(node: ast.Constant, names: Mapping[str, Any]) -> Any:
    if not isinstance(node.value, (int, float)):
        raise _Refused(f"{node.value!r} is not a number")
    if abs(node.value) >= NUMBER_LIMIT:
        raise _Refused("a number beyond 64 bits")
    return node.value


def _name(node: ast.Name, names: Mapping[str, Any]) -> Any:
    if node.id not in names:
        raise _Refused(f"unknown name {node.id}")
    return _resolve(names[node.id])


def _binary(node: ast.BinOp, names: Mapping[str, Any]) -> Any:
    left, right = _value(node.left, names), _value(node.right, names)
    if isinstance(node.op, ast.Pow):
        if not (type(left) is int and type(right) is int and abs(left) < 2**32 and 0 <= right <= EXPONENT_LIMIT):
            raise _Refused("only small integer powers are allowed")
        return left**right
    if type(node.op) not in BINARY:
        raise _Refused(f"operator {type(node.op).__name__} is not allowed")
    _require_bounded(left, right)
    result = BINARY[type(node.op)](left, right)
    if type(result) is int and abs(result) >= 2**128:
        raise _Refused("a number beyond 128 bits")
    return result


def _unary(node: ast.UnaryOp, names: Mapping[str, Any]) -> Any:
    return UNARY[type(node.op)](_value(node.operand, names))


def _boolean(node: ast.BoolOp, names: Mapping[str, Any]) -> bool:
    decide = all if isinstance(node.op, ast.And) else any
    return decide(bool(_value(value, names)) for value in node.values)


def _comparison(node: ast.Compare, names: Mapping[str, Any]) -> Any:
    left, result = _value(node.left, names), None
    for op, right_node in zip(node.ops, node.comparators):
        if type(op) not in COMPARE:
            raise _Refused(f"comparison {type(op).__name__} is not allowed")
        right = _value(right_node, names)
        _require_bounded(left, right)
        step = COMPARE[type(op)](left, right)
        if result is not None:
            _require_bounded(result, step)  # two small steps may broadcast against each other
        result = step if result is None else result & step
        left = right
    return result


def _subscript(node: ast.Subscript, names: Mapping[str, Any]) -> Any:
    value = _value(node.value, names)
    if not hasattr(value, "shape"):
        raise _Refused("only inputs can be subscripted")
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    indices = [_index(item, names) for item in items]
    _require_bounded(*indices)
    return value[tuple(indices)]


def _index(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Slice):
        return slice(*(None if part is None else _integer(part, names) for part in (node.lower, node.upper, node.step)))
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    value = _value(node, names)
    return value.long() if _is_integer_tensor(value) else _require_integer(value)


def _is_integer_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and str(value.dtype).startswith("torch.int")


def _integer(node: ast.expr, names: Mapping[str, Any]) -> int:
    return _require_integer(_value(node, names))


def _require_integer(value: Any) -> int:
    if type(value) is not int:
        raise _Refused("an index must be an integer")
    return value


def _require_known_call(node: ast.Call) -> None:
    if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
        raise _Refused("keyword and starred arguments are not allowed")
    if isinstance(node.func, ast.Attribute):
        if node.func.attr not in METHODS or node.args:
            raise _Refused(f"method {node.func.attr} is not allowed")
    elif not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
        raise _Refused(f"call of {ast.unparse(node.func)} is not allowed")


def _call(node: ast.Call, names: Mapping[str, Any]) -> Any:
    _require_known_call(node)
    if isinstance(node.func, ast.Attribute):
        owner = _value(node.func.value, names)
        if not hasattr(owner, "shape"):
            raise _Refused(f"method {node.func.attr} of a number")
        return _scalar(getattr(owner, node.func.attr)())
    return FUNCTIONS[cast(ast.Name, node.func).id](*(_value(argument, names) for argument in node.args))


def _scalar(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and value.numel() == 1 else value


def _reduction(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(*arguments: Any) -> Any:
        if len(arguments) == 1 and hasattr(arguments[0], "shape"):
            return _scalar(getattr(arguments[0], name)())
        if len(arguments) == 1:
            raise _Refused(f"{name} of one number")
        return plain(*arguments) if name in ("min", "max") else plain(arguments)

    return reduce


def _arange(stop: Any) -> Any:
    if type(stop) is not int or not 0 <= stop <= ARANGE_LIMIT:
        raise _Refused(f"arange needs one axis of at most {ARANGE_LIMIT:,}")
    import torch

    return torch.arange(stop)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len,
    "abs": abs,
    "arange": _arange,
    "all": _reduction("all", all),
    "any": _reduction("any", any),
    "sum": _reduction("sum", sum),
    "min": _reduction("min", min),
    "max": _reduction("max", max),
}
HANDLERS: dict[type, Callable[..., Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _boolean,
    ast.Compare: _comparison,
    ast.Subscript: _subscript,
    ast.Call: _call,
}
# Every kind of node in an allowed expression; calls and methods are checked one by one.
PARTS = (*HANDLERS, *BINARY, *UNARY, *COMPARE, ast.Pow, ast.And, ast.Or, ast.Slice, ast.Tuple, ast.Load)
