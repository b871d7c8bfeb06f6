"""Texts are submitted one by one and embedded in batches.

Run it: python examples/batch_embed.py
"""

import asyncio
import hashlib

from treadle import Retry, Treadle, WorkFailed, work
from treadle.doers import balanced

CALLS: list[int] = []


# At most 16 texts in a call. A text waits at most 50 ms for others. At most 2 calls at once.
@work.batch(size=16, max_wait=0.05, doer=balanced(2), retry=Retry(attempts=2, base=0.05))
async def embed(texts: list[str]) -> list[list[float] | Exception]:
    CALLS.append(len(texts))
    await asyncio.sleep(0.05)  # stands for the model
    return [vector(text) for text in texts]


def vector(text: str) -> list[float] | Exception:
    """An exception in the list fails only its own item."""
    if not text.strip():
        return ValueError("nothing to embed")
    return [byte / 255 for byte in hashlib.sha256(text.encode()).digest()[:3]]


async def main() -> None:
    texts = [f"paragraph {n}" for n in range(49)] + ["   "]
    async with Treadle(work=[embed]) as app:
        handles = await app.enqueue_many([embed(text) for text in texts])
        vectors: list[list[float]] = []
        for text, handle in zip(texts, handles, strict=True):
            try:
                vectors.append(await handle.result())
            except WorkFailed as error:
                print(f"{text!r} failed: {error.error} (after {error.attempts} attempts)")
    print(f"{len(vectors)} vectors; the first: {[round(number, 2) for number in vectors[0]]}")
    print(f"calls of the model, by number of texts: {CALLS}")


if __name__ == "__main__":
    asyncio.run(main())
