"""What users get wrong about payloads: each line with a mark is an error for both checkers, and no other line is."""

from __future__ import annotations

from dataclasses import dataclass

from slotwise import Client, OneTimeTask, TaskContext, task


@dataclass
class Mail:
    to: str


class SendMail(OneTimeTask[Mail]):
    name = "send-mail"

    def execute(self, ctx: TaskContext[str]) -> None: ...  # wrong


class Send(OneTimeTask[Mail]):
    name = "send"

    def execute(self, ctx: TaskContext[Mail]) -> None:
        print(ctx.data.subject)  # wrong


@task(name="remind")
def remind(ctx: TaskContext[Mail]) -> None: ...


def enqueue(client: Client) -> None:
    client.schedule(Send, {"to": "ann@example.com"})  # wrong
    client.schedule(remind, "ann@example.com")  # wrong
    client.schedule(Send(), Mail(7))  # wrong
