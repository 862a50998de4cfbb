"""``stoker completion``: scripts for shells, and what they complete beside options."""

from __future__ import annotations

import click

from stoker.cli import exits
from stoker.cli.console import Console, pass_console

_INSTALL = {
    "bash": "stoker completion bash > /etc/bash_completion.d/stoker",
    "zsh": "stoker completion zsh > /usr/local/share/zsh/site-functions/_stoker",
    "fish": "stoker completion fish > ~/.config/fish/completions/stoker.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(sorted(_INSTALL)))
@pass_console
def completion(console: Console, shell: str) -> int:
    """Print the completion script of a shell.

    \b
    bash:  stoker completion bash > /etc/bash_completion.d/stoker
    zsh:   stoker completion zsh > /usr/local/share/zsh/site-functions/_stoker
    fish:  stoker completion fish > ~/.config/fish/completions/stoker.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root()
    script = kind(root.command, {}, "stoker", "_STOKER_COMPLETE")
    console.say(script.source_template % script.source_vars())
    return exits.OK
