"""Implement `rollouts completion SHELL`."""

from __future__ import annotations

import argparse
import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress

from rollout_plugins.errors import SetupError

_BASH = """_rollouts() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words
  if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"
  else case "${{COMP_WORDS[1]}}" in
{cases}
  esac; fi
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
  [ "$COMP_CWORD" -eq 1 ] && COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o filenames -F _rollouts rollouts
"""
_WHERE = {
    "bash": 'eval "$(rollouts completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(rollouts completion zsh)" in ~/.zshrc',
    "fish": "rollouts completion fish > ~/.config/fish/completions/rollouts.fish",
}


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(_WHERE), help="; ".join(_WHERE.values()))


def run(options: Namespace) -> None:
    sys.stdout.write(_fish() if options.shell == "fish" else _bash(zsh=options.shell == "zsh"))


def _options() -> dict[str, list[tuple[str, str]]]:
    """Return the options of every command, with their help."""
    from rollout_plugins.cli.main import commands, loaded

    found = {}
    for name, entry in commands().items():
        parser = argparse.ArgumentParser()
        with suppress(SetupError):  # a broken command has no options, but the others do
            loaded(entry).configure(parser)
        actions = [(flag, action.help or "") for action in parser._actions for flag in action.option_strings]  # noqa: SLF001 - argparse has no public list of its options
        found[name] = [(flag, said) for flag, said in actions if flag.startswith("--")]
    return found


def _bash(*, zsh: bool) -> str:
    options = _options()
    cases = "\n".join(
        f'    {name}) words="{" ".join(flag for flag, _ in found)}" ;;' for name, found in options.items()
    )
    start = "autoload -U +X bashcompinit && bashcompinit\n" if zsh else ""
    return start + _BASH.format(commands=" ".join(options), cases=cases)


def _fish() -> str:
    from rollout_plugins.cli.main import about, commands

    lines = ["complete -c rollouts -n __fish_use_subcommand -f"]
    for name, entry in commands().items():
        lines.append(f"complete -c rollouts -n __fish_use_subcommand -a {name} -d {_quoted(about(entry))}")
    for name, options in _options().items():
        on = f"-n '__fish_seen_subcommand_from {name}'"
        lines += [
            f"complete -c rollouts {on} -l {flag.removeprefix('--')} -d {_quoted(said)}" for flag, said in options
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
