"""How many tokens a text has: by a tokenizer that the person gives, or four characters a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvplan.errors import InputError, KvplanError
from kvplan.trace.long_json import is_list

CHARACTERS_PER_TOKEN = 4
"""OpenAI's and everybody's rule of thumb for English text."""


class TokenCounter:
    """Counts tokens. ``note`` says how, for the person.

    Args:
        tokenizer: a ``tokenizer.json`` or a folder that holds one; None: four characters a token.

    Raises:
        KvplanError: there is no such tokenizer, or the package that reads it is not installed.
    """

    def __init__(self, tokenizer: str | None = None) -> None:
        self._encode: Any = None
        if tokenizer is None:
            self.note = f"the file holds text: {CHARACTERS_PER_TOKEN} characters a token assumed (or --tokenizer)"
            return
        path = Path(tokenizer)
        path = path / "tokenizer.json" if path.is_dir() else path
        if not path.is_file():
            raise InputError("is no tokenizer.json nor a folder with one", field="tokenizer", value=tokenizer)
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise KvplanError(
                "needs the package tokenizers", field="tokenizer", hint="pip install tokenizers"
            ) from None
        try:
            self._encode = Tokenizer.from_file(str(path)).encode
        except Exception as error:  # the package raises bare Exception for a file that is no tokenizer
            raise InputError(f"is no tokenizer: {error}", field="tokenizer", value=tokenizer) from None
        self.note = f"the file holds text: tokens counted by {path}"

    def __call__(self, text: str) -> int:
        """Tokens of ``text``; 0 for the empty text. Special tokens and chat templates are not counted."""
        if self._encode is not None:
            return len(self._encode(text, add_special_tokens=False).ids)
        return -(-len(text) // CHARACTERS_PER_TOKEN)


def message_text(content: Any) -> str:
    """The text of a chat message's content: a string, or OpenAI's list of parts."""
    if isinstance(content, str):
        return content
    if is_list(content):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""
