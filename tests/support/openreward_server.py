"""The same game served by openreward's own server, for those who have it installed."""

import threading
import time
from contextlib import contextmanager

import uvicorn
from openreward.environments import Environment, Server, TextBlock, ToolOutput, tool
from openreward_stand_in import NUMBERS
from pydantic import BaseModel


class Guess(BaseModel):
    number: int


class Game(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"number": number, "level": "easy"} for number in NUMBERS]

    async def get_prompt(self):
        return [TextBlock(text=f"Guess a number, not above {2 * self.task_spec['number']}.")]

    @tool
    async def guess(self, guess: Guess) -> ToolOutput:
        """Guess the number."""
        right = guess.number == self.task_spec["number"]
        text = TextBlock(text="right" if right else "wrong")
        return ToolOutput(blocks=[text], reward=float(right), finished=right)

    @tool
    async def cheat(self) -> ToolOutput:
        """Look at the number."""
        raise RuntimeError("no cheating")


@contextmanager
def serving():
    server = uvicorn.Server(uvicorn.Config(Server([Game]).app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
