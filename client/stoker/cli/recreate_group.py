"""A word such as ``recreate``: an action, and the name of some commands about such actions."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from stoker.cli.completion import known_pods

_ACTION = ""
"""Name that the action has among the commands; nobody can type it by accident."""
_WITH_VALUE = {"--socket"}
_GLOBAL = {"--json", "--no-color", *_WITH_VALUE}


class _UnderTheGroupsName(click.Context):
    """The context of the action: people know it by the name of the group."""

    @property
    def command_path(self) -> str:
        assert self.parent is not None
        return self.parent.command_path


class Action(click.Command):
    """The command that runs when the group's name is followed by something else than the name of a command."""

    context_class = _UnderTheGroupsName

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Name the commands beside the action."""
        if ctx.parent is not None and isinstance(ctx.parent.command, ActionGroup):
            ctx.parent.command.format_commands(ctx.parent, formatter)
        super().format_epilog(ctx, formatter)


class ActionGroup(click.Group):
    """A group with a default: the first word is the name of a command, or the action's first argument.

    What has the name of a command is reached behind ``--``, or by a longer name: ``default/ls``.
    """

    def known(self, context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        """Return what the action's first argument may be."""
        return known_pods(context, parameter, incomplete)

    def set_action(self, action: Action) -> None:
        """Make *action* the default."""
        self.commands[_ACTION] = action

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [name for name in self.commands if name != _ACTION]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = _first_own_word(args)
        if place < len(args) and args[place] not in self.list_commands(ctx):
            args = [*args[:place], _ACTION, *args[place:]]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the help of the action; it names the commands, too."""
        action = self.commands[_ACTION]
        with action.make_context(_ACTION, [], parent=ctx, resilient_parsing=True) as inner:
            action.format_help(inner, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands, options and what the action is for."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            with self.commands[_ACTION].make_context(_ACTION, [], parent=ctx, resilient_parsing=True) as inner:
                known = {item.value for item in found}
                more = self.commands[_ACTION].shell_complete(inner, incomplete)
                return found + [item for item in more if item.value not in known]
        names = self.known(ctx, click.Argument(["first"]), incomplete)
        return [item for item in found if item.value] + [CompletionItem(name) for name in names]


def _first_own_word(args: list[str]) -> int:
    """Return the place of the first argument that is not one of the global options."""
    place = 0
    while place < len(args):
        word = args[place]
        if word in _WITH_VALUE:
            place += 2
        elif word in _GLOBAL or word.partition("=")[0] in _WITH_VALUE:
            place += 1
        else:
            break
    return place
