"""Takes secrets out of texts that others wrote. Pure, cheap to import, the same for the daemon and the command line."""

from __future__ import annotations

import re

_FIELD = r"(?<![\w-])(?:[\w-]{0,40}(?:password|passwd|secret|token|credential|authorization)[\w-]{0,40}|auth)"
_HARMLESS_PARAMETERS = "scope|service|ns|digest|mount|from|n|last"  # of the registry API and of token servers

_REDACTIONS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern)
    for pattern in (
        # Fields, first of all, while they are whole: JSON, once more quoted or not, and a printed dict, cut off or not.
        rf"(?i)(\\*[\"']{_FIELD}\\*[\"']\s*:\s*)"
        r"(?:\"(?:[^\"\\]|\\.)*(?:\"|\\?$)|'(?:[^'\\]|\\.)*(?:'|\\?$)|(\\+)\".*?(?:(?<!\\)\2\"|$)|[^\s,}\]\[{\"']+)",
        # Headers. "authorization: " alone is also a piece of prose in containerd's messages.
        r"(?i)(\bauthorization\s*[:=]\s*\[?(?:basic|bearer)\s+)\[?[^\s\"',;\]]+\]?",
        r"(?i)(\bauthorization\s*[:=]\s*\[?(?:digest|negotiate|ntlm|token|apikey|aws4-[\w-]+)\s)[^\n]+",
        r"(?i)(\bauthorization\s*[:=]\s*)(?=\S{0,200}\d|\S{16})\[?[^\s\"',;\]]+\]?(?=[ \"',;\]]*(?:\n|$))",
        r"(?i)(\bx-[\w-]{0,40}(?:auth|token|secret|password|key|signature)[\w-]{0,40}\s*:\s*)\[?[^\s\"',;\]]+\]?",
        r"(?i)(\b(?:password|passwd)\s*:\s*)[^\s\"',;}]+(?=\s*(?:[,;}\n]|$))",
        # Parameters of URLs and of forms: signatures of presigned URLs come under many names.
        rf"(?i)([?&](?!(?:{_HARMLESS_PARAMETERS})=)[\w.%-]{{1,80}}=)[^&\s\"'<>#\\]+",
        rf"(?i)({_FIELD}=)(?:\"(?:[^\"\\]|\\.)*(?:\"|\\?$)|[^\s\"',;&}}]+)",
        # Credentials that stand alone; "basic authentication" is none.
        r"\b((?i:basic|bearer)\s+)(?=[\w+/.~-]*(?:\d|[a-z][A-Z]|=))[\w+/=.~-]{8,}",
        r"()\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*",
    )
)
_SECRET_NAME = re.compile(_FIELD, re.IGNORECASE)
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s\"<>]*@")


def redact(text: str) -> str:
    """Return *text* without the secrets that are known by their place: in URLs, headers, and fields named like one."""
    text = _URL_CREDENTIALS.sub("", text)
    for pattern in _REDACTIONS:
        text = pattern.sub(r"\1[redacted]", text)
    return text


def names_secret(name: str) -> bool:
    """Whether a field of this name holds a secret."""
    return _SECRET_NAME.fullmatch(name) is not None
