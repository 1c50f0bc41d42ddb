"""``slotwise completion``: the script that teaches a shell our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from slotwise.cli.shared.command import Command


@click.command(
    cls=Command,
    examples="""
    eval "$(slotwise completion bash)"                                       in ~/.bashrc
    eval "$(slotwise completion zsh)"                                        in ~/.zshrc
    slotwise completion fish > ~/.config/fish/completions/slotwise.fish
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes our commands in SHELL."""
    complete = get_completion_class(shell)
    assert complete is not None  # the three that click knows
    click.echo(complete(ctx.find_root().command, {}, "slotwise", "_SLOTWISE_COMPLETE").source())
