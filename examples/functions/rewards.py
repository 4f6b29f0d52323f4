"""What a drawn function is worth: `--reward rewards.py:sound`."""

import ast
import builtins
import warnings

STATEMENTS = 4
warnings.simplefilter("ignore", SyntaxWarning)


def compiles(prompts, completions):
    """1 for one function that Python compiles."""
    return [float(_function(*pair) is not None) for pair in zip(prompts, completions, strict=True)]


def sound(prompts, completions):
    """Of a function that compiles, the product of three shares: names that exist, arguments in use, of four statements.

    Without the last two the shortest answers win: `pass` knows every name that it uses.
    """
    return [_sound(_function(*pair)) for pair in zip(prompts, completions, strict=True)]


def _function(prompt, completion):
    try:
        tree = ast.parse(prompt + completion)
        compile(tree, "answer", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree.body[0] if len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef) else None


def _sound(function):
    if function is None:
        return 0.0
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    arguments = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    made = {*dir(builtins), *arguments}
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                made.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                made.add(name)
            case ast.alias(name=name):
                made.add(name.partition(".")[0])
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    statements = {ast.unparse(node) for node in nodes if isinstance(node, ast.stmt) and not isinstance(node, ast.Pass)}
    return _share(used, made) * _share(arguments, used) * min(len(statements), STATEMENTS) / STATEMENTS


def _share(some, of):
    return len(some & of) / len(some) if some else 1.0
