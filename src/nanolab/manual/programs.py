"""The command reference: each click program of `scripts/`, read from the program itself.

A program is imported under a private name; what it prints for `--help` is what the page shows. A script without a
decorated `main` is one to be run as it stands: it has no options and is not imported, since that would run it or ask
for another environment (vLLM's).
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from html import escape
from pathlib import Path

import click

from nanolab.manual.errors import ManualError
from nanolab.manual.texts import Language, text


def load(root: Path, file: str) -> click.Command | None:
    """The click command called `main` in `file`, or None for a script whose `main`, if any, is not decorated."""
    path = root / file
    if not path.is_file():
        raise ManualError(f"no program {file!r}")
    functions = (node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.FunctionDef))
    if not any(function.name == "main" and function.decorator_list for function in functions):
        return None
    name = "nanolab_program_" + file.replace("/", "_").removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ManualError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    command = getattr(module, "main", None)
    if not isinstance(command, click.Command):
        raise ManualError(f"{file}: main is not a click command")
    return command


def unlisted(root: Path, language: Language) -> list[str]:
    """The programs under scripts/ that the command reference of this language leaves out."""
    path = root / "docs" / language / "commands.md"
    page = path.read_text(encoding="utf-8") if path.is_file() else ""
    programs = sorted(file.relative_to(root).as_posix() for file in (root / "scripts").rglob("*.py"))
    return [file for file in programs if f'```program file="{file}"' not in page]


def render(command: click.Command | None, file: str, language: Language) -> str:
    """Usage and options of a program, and of each of its subcommands."""
    if command is None:
        usage = f'<p class="nl-program__usage"><code>python {escape(file)}</code></p>'
        return f'<div class="nl-program">{usage}<p>{text(language, "program.none")}</p></div>'
    context = click.Context(command, info_name=f"python {file}")
    parts = [_command(command, context, language)]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            sub = command.get_command(context, name)
            if sub is not None and not sub.hidden:
                parts.append(_command(sub, click.Context(sub, info_name=name, parent=context), language))
    return f'<div class="nl-program">{"".join(parts)}</div>'


def _command(command: click.Command, context: click.Context, language: Language) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    head = f'<p class="nl-program__usage"><code>{escape(usage)}</code></p>'
    about = inspect.cleandoc(command.help or "").split("\n\n")[0].replace("\b", "").strip() if context.parent else ""
    said = f'<p lang="en">{escape(about)}</p>' if about else ""
    rows = [_row(param, context) for param in command.get_params(context) if not _is_help(param)]
    return head + said + (_table("".join(rows), language) if any(rows) else "")


def _is_help(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and "--help" in param.opts


def _row(param: click.Parameter, context: click.Context) -> str:
    record = param.get_help_record(context)
    if record is None:
        return ""  # an argument: the usage line names it
    return f'<tr><td><code>{escape(record[0])}</code></td><td lang="en">{escape(record[1])}</td></tr>'


def _table(rows: str, language: Language) -> str:
    head = f"<th>{text(language, 'program.option')}</th><th>{text(language, 'program.meaning')}</th>"
    table = f'<table class="nl-table"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="nl-scroll">{table}</div>'
