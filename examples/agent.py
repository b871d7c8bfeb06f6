"""An agent: it asks a model, calls tools, asks a person before it does harm, and streams what it says.

Each answer of the model and each call of a tool is a step: what was paid for is not paid for again after a
crash. The model is made up, so that the program needs no network. It calls itself here. For a server, with a
page at http://127.0.0.1:8000: uvicorn examples.agent:app

Run it: python examples/agent.py
"""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel

from treadle import Context, Treadle, work
from treadle.contrib.fastapi import lifespan


class Answer(BaseModel):
    text: str
    tool: str | None = None
    argument: str = ""


SCRIPT = [
    Answer(text="I look for old files.", tool="find", argument="*.tmp"),
    Answer(text="I delete them.", tool="delete", argument="a.tmp b.tmp"),
    Answer(text="Done: two files are gone."),
]
CALLS: list[str] = []


async def ask_model(ctx: Context, turn: int, history: list[str]) -> Answer:
    """A fake model. It emits its words one by one, as a real one streams its tokens."""
    CALLS.append(f"model {turn}")
    for word in SCRIPT[turn].text.split():
        await ctx.emit({"word": word})
    return SCRIPT[turn]


async def call_tool(name: str, argument: str) -> str:
    CALLS.append(name)
    return {"find": "a.tmp b.tmp", "delete": "ok"}[name]


@work(name="agent.run")
async def agent(ctx: Context, task: str) -> str:
    history = [task]
    for turn in range(10):
        answer = await ctx.step(f"model:{turn}", ask_model, ctx, turn, history)
        history.append(answer.text)
        if answer.tool is None:
            return answer.text
        if answer.tool == "delete" and not await ctx.signal("approval", bool, timeout=3600):
            return "I was not allowed to do that."
        history.append(await ctx.step(f"tool:{turn}", call_tool, answer.tool, answer.argument))
    return "I gave up."


treadle = Treadle("sqlite:///agent.db", work=[agent])
app = FastAPI(lifespan=lifespan(treadle, worker=True))


@app.post("/runs")
async def start(task: str) -> dict[str, str]:
    return {"id": (await treadle.enqueue(agent(task))).id}


@app.post("/runs/{id}/approval")
async def approve(id: str, ok: bool) -> dict[str, bool]:
    return {"sent": await treadle.signal(id, "approval", ok, key="approval")}


@app.get("/runs/{id}/stream")
async def stream(id: str, since: int = 0) -> StreamingResponse:
    async def lines() -> AsyncIterator[str]:
        async for chunk in treadle.handle(id).stream(since):
            yield f"id: {chunk.number}\ndata: {json.dumps(chunk.value)}\n\n"
        yield "event: end\ndata: {}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


@app.get("/")
async def page() -> HTMLResponse:
    return HTMLResponse(PAGE)


PAGE = """<!doctype html><title>agent</title>
<button id=go>tidy up</button> <button id=ok>approve</button><pre id=out></pre>
<script>
let run
go.onclick = async () => {
  run = (await (await fetch("/runs?task=tidy", {method: "POST"})).json()).id
  const events = new EventSource(`/runs/${run}/stream`)
  events.onmessage = event => { out.textContent += JSON.parse(event.data).word + " " }
  events.addEventListener("end", () => events.close())
}
ok.onclick = () => fetch(`/runs/${run}/approval?ok=true`, {method: "POST"})
</script>"""


async def main() -> None:
    web = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent")
    async with app.router.lifespan_context(app), web:
        id: str = (await web.post("/runs", params={"task": "tidy up"})).json()["id"]
        # It is taken when the agent asks for it.
        print("approved:", (await web.post(f"/runs/{id}/approval", params={"ok": True})).json())
        answer = await web.get(f"/runs/{id}/stream", timeout=20)
        data = [line.removeprefix("data: ") for line in answer.text.splitlines() if '"word"' in line]
        print("streamed:", " ".join(json.loads(each)["word"] for each in data))
        print("result:", await treadle.handle(id).result(10))
        print("called once each:", CALLS)


if __name__ == "__main__":
    asyncio.run(main())
