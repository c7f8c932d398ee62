"""A server of OpenAI's API that decodes a known text, with planted costs of a step and planted acceptance.

``python drafting_server.py PORT [--step MS] [--fixed MS] [--token MS] [--accept RATE ...] [--counters KIND] ...``. A
request's field ``speculative`` is its draft length. Token n of a text is the word ``n``, and whether a draft of it is
accepted depends on the prompt and n alone, so the output is the same at each length.
"""

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import ClassVar


class Handler(BaseHTTPRequestHandler):
    given: argparse.Namespace
    totals: ClassVar = [0, 0, 0]  # steps that draft, drafted tokens, accepted tokens
    at: ClassVar = [0] * 8  # steps that accepted each position
    answered: ClassVar = set[str]()  # prompts

    def log_message(self, *arguments) -> None: ...

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(200, b"{}")
            return
        if not self._authorised():
            return
        if self.path == "/metrics":
            if self.given.counters == "iterations":
                fields = "numRequestsWithDraftTokens", "numDraftTokens", "numAcceptedTokens"
                stats = {"iter": 1, "specDecodingStats": dict(zip(fields, self.totals, strict=True))}
                self.totals[:] = [0, 0, 0]  # sent once
                self._send(200, json.dumps([stats]).encode())
                return
            prometheus = self.given.counters == "prometheus"
            names = ("drafts", "draft_tokens", "accepted_tokens")
            lines = [
                f'vllm:spec_decode_num_{name}_total{{engine="0"}} {value}.0'
                for name, value in zip(names, self.totals, strict=True)
            ]
            lines += [
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{place}"}} {value}.0'
                for place, value in enumerate(self.at)
            ]
            self._send(200 if prometheus else 404, "\n".join(lines).encode())
            return
        owner = "sglang" if self.given.counters == "sglext" else "another"
        owner = "specexp" if self.given.chooses else owner
        self._send(200, json.dumps({"data": [{"id": "fake", "owned_by": owner}]}).encode())

    def do_POST(self) -> None:
        if not self._authorised():
            return
        given, body = self.given, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = "messages" in body
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        length = body.get("speculative", given.length)
        length = given.length if length is True or given.fixes_length else int(length)
        rates = given.chat_accept if chat and given.chat_accept else given.accept
        if given.limit and len(prompt) > given.limit:
            rates = [0.02]
        if given.learns and prompt in self.answered:
            rates = [1.0]
        self.answered.add(prompt)
        rates = [*rates, *[rates[-1]] * 8]
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        draws = Random(prompt)
        lucky = [draws.random() for _ in range(body["max_tokens"] + 16)]
        made, histogram, steps, drafted, begun, planned = 1, [0] * 9, 0, 0, time.perf_counter(), 0.0
        self._piece("0 ", chat)
        time.sleep(2.0 * given.slow)
        while made < body["max_tokens"]:
            planned += given.fixed + given.token * length if length else given.step
            if not given.virtual:  # late wake-ups do not add up
                time.sleep(max(0.0, begun + planned / 1e3 - time.perf_counter()))
            accepted = 0
            while accepted < length and lucky[made + accepted] < rates[accepted]:
                accepted += 1
            accepted = min(accepted, body["max_tokens"] - made - 1)
            if length:
                steps, drafted = steps + 1, drafted + length
                histogram[accepted] += 1
                for place in range(accepted):
                    self.at[place] += 1
            for _ in range(accepted + 1):
                self._piece(f"{made} ", chat, planned)
                made += 1
            if given.dies and made > given.dies:
                self.close_connection = True
                return
        total = sum(number * count for number, count in enumerate(histogram))
        self.totals[:] = [old + new for old, new in zip(self.totals, (steps, drafted, total), strict=True)]
        last = {"choices": [{"text": "", "finish_reason": "length"}]}
        last["usage"] = {"completion_tokens": made, "prompt_tokens": len(prompt) // 4}
        if given.counters == "request":
            counts = {"num_spec_steps": steps, "num_draft_tokens": drafted, "num_accepted_draft_tokens": total}
            by_length = {"acceptance_histogram_by_draft_length": {str(length): histogram[: length + 1]}}
            last["metrics"] = {"speculative_decoding": {**counts, **by_length}}
        if given.counters == "timings" or (given.virtual and given.times):
            last["timings"] = {"predicted_n": made}
            last["timings"] |= {"predicted_ms": planned} if given.virtual else {}
        if given.counters == "timings":
            last["timings"] |= {"draft_n": drafted, "draft_n_accepted": total}
        if given.counters == "sglext" and body.get("return_spec_tokens_details"):
            details = {"spec_num_correct_drafts": total, "spec_num_proposed_drafts": drafted}
            seen = max((number for number, count in enumerate(histogram) if count), default=0)
            details |= {"spec_verify_ct": steps, "spec_correct_drafts_histogram": histogram[: seen + 1]}
            last["sglext"] = {"spec_tokens_details": details}
        if given.counters == "usage":
            parts = {"accepted_prediction_tokens": total, "rejected_prediction_tokens": drafted - total}
            last["usage"]["completion_tokens_details"] = parts
        self._event(last)
        self.wfile.write(b"data: [DONE]\n\n")

    def _authorised(self) -> bool:
        key = self.given.key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self._send(401, b"{}")
            return False
        return True

    def _piece(self, text: str, chat: bool, planned: float = 0.0) -> None:
        choice = {"delta": {"content": text}} if chat else {"text": text}
        self._event({"choices": [choice], "planned_ms": planned})

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
    add = parser.add_argument
    add("port", type=int)
    add("--step", type=float, default=4.0)
    add("--fixed", type=float, default=6.0)
    add("--token", type=float, default=1.0)
    add("--accept", type=float, nargs="+", default=[0.7])
    add("--chat-accept", type=float, nargs="+")
    add("--limit", type=int, help="characters of a prompt beyond which nearly no draft is accepted")
    add("--length", type=int, default=4, help="draft length of requests that do not choose one")
    add("--chooses", action="store_true", help="say that the field 'speculative' chooses the length")
    add("--virtual", action="store_true", help="report the planted times as llama.cpp does, and never wait")
    add("--no-times", dest="times", action="store_false", help="do not report times")
    add("--slow", action="store_true", help="pause for two seconds in each answer")
    add("--fixes-length", action="store_true", help="ignore the field 'speculative'")
    add(
        "--counters",
        choices=("request", "timings", "usage", "sglext", "prometheus", "iterations", "none"),
        default="request",
    )
    add("--key")
    add("--learns", action="store_true", help="accept all drafts of a prompt that was answered before")
    add("--dies", type=int, help="tokens after which answers break off")
    Handler.given = given = parser.parse_args()
    ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
