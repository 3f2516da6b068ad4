"""Datasets of conversations: ShareGPT, and OpenAI's `messages`.

A document or JSON lines; an item is one conversation, `{"id": ..., "conversations": [{"from":
"human", "value": "text"}, ...]}` or `{"messages": [{"role": "user", "content": "text"}, ...]}`.
`from` and `role`, and `value` and `content`, mean the same. `content` may be null, or a list of
parts of which those with `text` count. There are no times: a turn is asked when the one before it
is answered.

A row is one turn: all messages since the last answer, and then the answer. The rules:
 - The tokens of texts are counted each by itself (`Reading.tokens`), without a chat template. A
   prompt has at least 1; a text that is empty has 0, as have tool calls and pictures.
 - What is before the first message of a person belongs to the first prompt, also the messages of
   a model (a good third of ShareGPT begins so, cut out of longer conversations). A system message
   belongs to the prompt behind it.
 - An answer that follows an answer belongs to the next prompt.
 - The last messages of a person, if they have no answer, are left out (`Note.UNANSWERED`, one for
   each conversation).
 - An answer is at most `Reading.max_generation_tokens` long and is cut to that (`Note.CUT`).
 - If a prompt with its history is longer than `Reading.max_context_tokens`, the
   conversation ends before it; each turn from there on is a `Note.TOO_LONG`.
 - A conversation of which no turn is left, for whatever reason, is a `Note.EMPTY`.
 - A session is called `<id>#<item>`, as ids may be missing or repeat (`Note.DUPLICATE`); two
   conversations are never taken for one.
 - A role that is none of those below makes the item bad.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct, field

from kv_cache.workload.formats.base import Bad, Note, Noted, Reading, RowError, ignore
from kv_cache.workload.formats.ids import SeenIds
from kv_cache.workload.formats.json_items import Cursor, items, key_paths
from kv_cache.workload.formats.jsonlines import read_object
from kv_cache.workload.formats.row import TraceRow
from kv_cache.workload.formats.values import identifier, misfit, shown

PEOPLE = frozenset(("human", "user", "tool", "function", "observation"))
MODELS = frozenset(("gpt", "assistant", "chatgpt", "bing", "bard", "claude", "palm", "model"))
SYSTEM = frozenset(("system", "developer"))
LISTS = ("conversations", "messages")
ROLES = ("from", "role")
TEXTS = ("value", "content")


class ShareGpt(Struct, frozen=True):
    reading: Reading = field(default_factory=Reading)

    name = "sharegpt"
    document = True
    timed = False
    grouped = True
    description = (
        "ShareGPT JSON: a list, or one a line, of {id, conversations: [{from, value}]}, or of "
        "OpenAI's {messages: [{role, content}]}"
    )

    def configured(self, reading: Reading) -> "ShareGpt":
        return ShareGpt(reading)

    def matches(self, head: str) -> bool:
        paths = key_paths(head)
        wanted = {(name, key) for name in LISTS for key in (*ROLES, *TEXTS)}
        return bool(paths & wanted) and ("requests",) not in paths

    def rows(
        self, lines: Iterable[tuple[int, str]], bad: Bad, note: Noted = ignore
    ) -> Iterator[TraceRow]:
        seen = SeenIds()
        for item, text in items(Cursor(lines)):
            try:
                talk = read_object(text)
                session = _session(talk, item, seen, note)
                turns = list(_turns(talk, self.reading))
            except RowError as problem:
                bad(item, str(problem))
                continue
            yield from self._kept(item, session, turns, note)

    def _kept(
        self, item: int, session: str, turns: list["_Turn"], note: Noted
    ) -> Iterator[TraceRow]:
        context = 0
        left = True
        for turn in turns:
            if turn.answer is None:
                note(item, Note.UNANSWERED)
                break
            prompt = max(1, turn.prompt)
            if context < 0 or context + prompt > self.reading.max_context_tokens:
                context = -1  # nothing can stand behind a turn that is left out
                note(item, Note.TOO_LONG)
                continue
            answer = min(turn.answer, self.reading.max_generation_tokens)
            if answer < turn.answer:
                note(item, Note.CUT)
            left = False
            context += prompt + answer
            yield TraceRow(item, 0, prompt, answer, session=session, adds=True)
        if left:
            note(item, Note.EMPTY)


class _Turn(Struct):
    """Tokens of all messages since the last answer, and of the answer; None = there is none."""

    prompt: int = 0
    has_question: bool = False
    answer: int | None = None


def _session(talk: dict[str, Any], item: int, seen: SeenIds, note: Noted) -> str:
    if talk.get("id") is None:
        return f"#{item}"
    name = identifier("id", talk["id"])
    if seen.before(name):
        note(item, Note.DUPLICATE)
    return f"{name}#{item}"


def _turns(talk: dict[str, Any], reading: Reading) -> Iterator[_Turn]:
    """Yield the turns of a conversation; the last may have no answer. Raises `RowError`."""
    turn = _Turn()
    for number, message in enumerate(_messages(talk), 1):
        role, text = _message(message, number)
        tokens = reading.tokens.count(text)
        if role in MODELS and turn.has_question:
            turn.answer = tokens
            yield turn
            turn = _Turn()
            continue
        turn.prompt += tokens
        turn.has_question = turn.has_question or role in PEOPLE
    if turn.has_question:
        yield turn


def _messages(talk: dict[str, Any]) -> list[Any]:
    lists = [talk[name] for name in LISTS if name in talk]
    if len(lists) != 1 or not isinstance(lists[0], list):
        what = "none of them" if not lists else shown(lists[0] if len(lists) == 1 else "both")
        raise RowError(f"expected a list named {' or '.join(LISTS)}, found {what}")
    return lists[0]


def _message(message: object, number: int) -> tuple[str, str]:
    """Return role and text of one message."""
    if not isinstance(message, dict):
        raise misfit("an object", message, f"message {number}")
    role = next((message[key] for key in ROLES if key in message), None)
    if not isinstance(role, str) or role.lower() not in PEOPLE | MODELS | SYSTEM:
        known = ", ".join(sorted(PEOPLE | MODELS | SYSTEM))
        raise misfit(f"a role ({' or '.join(ROLES)}) of {known}", role, f"message {number}")
    present = [key for key in TEXTS if key in message]
    if not present and "tool_calls" not in message:
        raise RowError(f"message {number}: expected {' or '.join(TEXTS)}, found neither")
    return role.lower(), "".join(_texts(message[present[0]], number)) if present else ""


def _texts(content: object, number: int) -> Iterator[str]:
    if content is None:
        return
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text", "") if isinstance(part, dict) else part
        if not isinstance(text, str) or (isinstance(part, dict) and not isinstance(content, list)):
            raise RowError(
                f"message {number}: expected text, null or a list of parts with text, found "
                f"{shown(part)}"
            )
        yield text
