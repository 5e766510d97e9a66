#!/usr/bin/env python3
"""Writes qwen_cases.json: conversations and how Jinja renders them with qwen_style.jinja.

The template has the structure of Qwen3.8's, with other English texts. Needs jinja2 >= 3.1; the
environment is set up as the transformers library does it.
"""

import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    env.globals["raise_exception"] = refuse
    return env


TOOL = {"type": "function", "function": {
    "name": "weather", "description": "Wetter für <Städte> & \"Orte\"",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"},
                                                    "days": {"type": "integer", "minimum": 1}},
                   "required": ["city"], "x": [1.0, 2.5e-7, 1e16, True, None]}}}
CALL = {"id": "c1", "type": "function", "function": {
    "name": "weather", "arguments": {"city": "Köln\nSüd", "days": 3, "opts": {"a": [1, 2.0], "b": None}}}}
CALL2 = {"id": "c2", "type": "function", "function": {"name": "now", "arguments": {}}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, reasoning=None, calls=None):
    message = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def tool(text, call="c1"):
    return {"role": "tool", "content": text, "tool_call_id": call}


def system(text):
    return {"role": "system", "content": text}


CONVERSATIONS = {
    "user": [user("  Hi there \n")],
    "system": [system("Be brief. "), user("Hi")],
    "empty system": [system(" \u3000\n"), user("Hi")],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a "},
                                           {"type": "text", "text": " b"}]}],
    "history": [user("one"), assistant("1", " because\n"), user("two"), assistant("2"),
                user("three")],
    "calls": [system("S"), user("weather?"), assistant("", "need it", [CALL, CALL2]),
              tool("{\"t\": 3}"), tool(" 12:00 ", "c2"), assistant("Cold."), user("thanks")],
    "call behind text": [user("weather?"), assistant("Let me see.", None, [CALL]), tool("sunny")],
    "wrapped results": [user("q"), assistant("x", "r"), user("<tool_response>\n1\n</tool_response>")],
    "assistant last": [user("q"), assistant("a", "r")],
    "no query": [system("S"), assistant("a")],
    "late system": [user("q"), system("S")],
    "developer": [{"role": "developer", "content": "d"}, user("q")],
}
OPTIONS = [{"enable_thinking": False}, {"enable_thinking": True},
           {"enable_thinking": True, "reasoning_effort": "medium"},
           {"enable_thinking": True, "reasoning_effort": "low", "preserve_thinking": False},
           {"enable_thinking": False, "preserve_thinking": False}]


def main():
    template = environment().from_string((HERE / "qwen_style.jinja").read_text(encoding="utf-8"))
    cases = []
    for name, messages in CONVERSATIONS.items():
        for tools in ([], [TOOL, TOOL]):
            for options in OPTIONS:
                try:
                    text = template.render(messages=messages, tools=tools,
                                           add_generation_prompt=True, **options)
                except jinja2.exceptions.TemplateError:
                    text = None
                cases.append({"name": name, "messages": messages, "tools": tools,
                              "options": options, "text": text})
    (HERE / "qwen_cases.json").write_text(
        json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
