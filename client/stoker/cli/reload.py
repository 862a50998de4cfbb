"""``stoker reload``: have stokerd read its configuration again."""

from __future__ import annotations

import click

from stoker.cli import exits
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.text import clean


@click.command("reload", epilog=exits.HELP, short_help="Have stokerd read its configuration again.")
@global_options
@pass_console
def reload(console: Console) -> int:
    """Have stokerd read its configuration file again, and say what holds now and what needs a restart.

    A file with errors changes nothing.
    """
    result = console.call(lambda client: client.reload())
    if console.json:
        console.document(result)
        return exits.OK
    style = console.style()
    for name in result.applied:
        console.say(f"{style.ok} {clean(name)}  holds now")
    for name in result.restart_needed:
        console.say(f"{style.warning} {clean(name)}  changed in the file; holds after: systemctl restart stokerd")
    if not result.applied and not result.restart_needed:
        console.say("nothing has changed")
    return exits.OK
