"""A server of OpenAI's completions API, as a program, with known text and every kind of failure.

``python fake_server.py PORT [--fault FAULT] [--after N] [--wrong N] [--logprobs]``: every answer repeats the
alphabet from the prompt's length on, a letter a token. With ``--wrong`` every N-th letter is a digit. With ``--pieces``
several letters arrive at once, and ``--usage`` is another count of tokens than that of the letters.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
FAULTS = ("crash", "hang", "error", "truncate", "garbage", "no-start", "deaf", "no-model")
FAULTS += ("no-finish", "no-done", "no-usage")


def text_of(prompt: str | list[int], tokens: int) -> str:
    return "".join(ALPHABET[(len(prompt) + number) % 26] for number in range(tokens))


def emoji_of(letter: str) -> str:
    """Return one of 64 emoji that share their first three bytes; ``7`` gives the last."""
    return chr(0x1F63F if letter == "7" else 0x1F600 + ALPHABET.index(letter))


def notation(raw: bytes) -> str:
    """Return OpenAI's name of a token that is only a part of a character."""
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    given: argparse.Namespace
    requests = 0
    letters = 0

    def log_message(self, *arguments) -> None: ...

    def do_GET(self) -> None:
        listed = [] if self.given.fault == "no-model" else [{"id": "fake"}]
        self._send(200, json.dumps({"data": listed}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Handler.requests += 1
        if self.given.log:
            with Path(self.given.log).open("a") as file:
                file.write(f"{len(body['prompt'])}\n")
        fault = self.given.fault if Handler.requests > self.given.after and body.get("speculative", True) else None
        if fault == "crash":
            print("the fake server crashed on purpose", flush=True)
            os._exit(3)
        if fault == "hang":
            time.sleep(600)
        if fault == "error":
            self._send(500, b'{"error": "out of memory"}')
            return
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        text = text_of(body["prompt"], body["max_tokens"])
        size = self.given.pieces
        for number, letter in enumerate(text[at : at + size] for at in range(0, len(text), size)):
            if fault == "truncate" and number == 3:
                return
            if fault == "garbage" and number == 3:
                self.wfile.write(b"data: {not json\n\n")
                return
            Handler.letters += 1
            wrong = self.given.wrong and body.get("speculative", True) and Handler.letters % self.given.wrong == 0
            choice = {"text": "7" if wrong else letter, "finish_reason": None}
            if self.given.emoji:
                choice = {"text": emoji_of(choice["text"]), "logprobs": self._emoji(letter, choice["text"])}
                self._event({"choices": [choice]})
                continue
            if self.path == "/completion":
                self._event({"content": choice["text"], "tokens": [ord(choice["text"])], "stop": False})
                continue
            if self.given.logprobs:
                best = {letter: -0.01, "z": -4.0, "7": -9.0}
                choice["logprobs"] = {"tokens": [choice["text"]], "top_logprobs": [best]}
                if self.given.timings:
                    top = [{"token": text, "logprob": value} for text, value in best.items()]
                    choice["logprobs"] = {"content": [{"token": choice["text"], "top_logprobs": top}]}
            self._event({"choices": [choice]})
        last = {
            "choices": [{"text": "", "finish_reason": "length"}],
            "usage": {"completion_tokens": self.given.usage if self.given.usage is not None else len(text)},
        }
        if self.given.fault in ("no-finish", "no-usage"):
            del last["choices" if self.given.fault == "no-finish" else "usage"]
        if self.path == "/completion":
            counts = {"predicted_n": len(text), "predicted_ms": 0.25, "draft_n": 6, "draft_n_accepted": 4}
            end = "eos" if self.given.ends else "limit"
            self._event({"content": "", "tokens": [], "stop": True, "stop_type": end, "timings": counts})
            return
        if self.given.timings:
            drafts = {"draft_n": 6, "draft_n_accepted": 4} if body.get("speculative", True) else {}
            last["timings"] = {"predicted_n": len(text), **drafts}
        if self.given.summary:  # vLLM leaves out steps without a draft
            counts = {"num_spec_steps": 2, "num_draft_tokens": 6, "num_accepted_draft_tokens": 4}
            last["metrics"] = {"speculative_decoding": counts}
        self._event(last)
        if fault != "no-done":
            self.wfile.write(b"data: [DONE]\n\n")

    def _emoji(self, letter: str, sent: str) -> dict:
        """Return the log-probabilities of an emoji of two tokens, of which neither is a whole character."""
        start = emoji_of(letter).encode()[:3]
        ends = {one: emoji_of(one).encode()[3:] for one in (letter, "7")}
        steps = [(start, {start: -0.01}), (ends[sent], {ends[letter]: -0.01, ends["7"]: -9.0})]
        if self.given.timings:
            content = [
                {"token": "\ufffd", "bytes": list(own), "top_logprobs": [
                    {"token": "\ufffd", "bytes": list(raw), "logprob": value} for raw, value in best.items()
                ]}
                for own, best in steps
            ]  # fmt: skip
            return {"content": content}
        names = [(notation(own), {notation(raw): value for raw, value in best.items()}) for own, best in steps]
        return {"tokens": [own for own, _ in names], "top_logprobs": [best for _, best in names]}

    def _event(self, content) -> None:
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")
        self.wfile.flush()

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--wrong", type=int, default=0)
    parser.add_argument("--logprobs", action="store_true")
    parser.add_argument("--emoji", action="store_true", help="an emoji for each letter, of two tokens")
    parser.add_argument("--timings", action="store_true", help="counts and logprobs in llama.cpp's form")
    parser.add_argument("--summary", action="store_true", help="counts in vLLM's form")
    parser.add_argument("--ends", action="store_true", help="answers end by EOS")
    parser.add_argument("--log", help="file that gets the length of every prompt")
    parser.add_argument("--child", help="file that gets the id of a process of the server's own")
    parser.add_argument("--pieces", type=int, default=1, help="letters in a piece")
    parser.add_argument("--usage", type=int, help="the server's own count of new tokens")
    parser.add_argument("--draft-tokens", type=int, default=0)
    Handler.given = given = parser.parse_args()
    if given.fault == "no-start":
        sys.exit("unknown flag --speculate")
    if given.child:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(given.child).write_text(f"{os.getpid()} {child.pid}")
    if given.fault == "deaf":
        time.sleep(600)
    ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
