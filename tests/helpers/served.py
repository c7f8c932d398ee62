"""A decoding thread, driven by rounds, with random arrivals, cancellations and deadlines, and the expected outputs."""

from random import Random
from time import monotonic

import torch

from specexp.core.loop import Decoder
from specexp.core.parts import Parts
from specexp.deploy.server.decoding_thread import DecodingThread, Ended, Output
from specexp.deploy.server.texts import OutputText
from specexp.verifiers import KeyedSampling


def text_of(tokens):
    """Return one letter a token."""
    return "".join(chr(97 + token % 26) for token in tokens)


class Client:
    """A client that keeps the updates of an output."""

    def __init__(self, prompt, *, seed=0, sequence=0, most=20, temperature=0.0, stop=(), eos=(), **others):
        self.updates = []
        self.output = Output(
            prompt=tuple(prompt),
            seed=seed,
            sequence=sequence,
            max_new_tokens=most,
            verifier=KeyedSampling(temperature),
            text=OutputText(text_of, stop),
            notify=self.updates.append,
            eos_token_ids=frozenset(eos),
            **others,
        )

    @property
    def tokens(self):
        return [token for update in self.updates for token in update.tokens]

    @property
    def text(self):
        return "".join(update.text for update in self.updates)

    @property
    def end(self):
        """The end of the output; None while it is under way."""
        return self.updates[-1].end if self.updates else None


def alone(target, client, eos):
    """Return the request's expected output: that of plain decoding without other requests."""
    output = client.output
    decoder = Decoder(target, *Parts(verifier=output.verifier))
    return decoder.generate(
        list(output.prompt),
        max_new_tokens=output.max_new_tokens,
        seed=output.seed,
        sequence=output.sequence,
        eos_token_id=eos,
    ).token_ids


def go_through(thread, clients, seed, most_rounds=400):
    """Submit clients and cancel some at random times, until all have ended."""
    random, waiting, gone = Random(seed), list(clients), []
    with torch.inference_mode():
        for _ in range(most_rounds):
            while waiting and random.random() < 0.4:
                thread.submit([waiting[0].output])
                gone.append(waiting.pop(0))
            under_way = [client for client in gone if client.end is None and not client.output.cancelled]
            if under_way and random.random() < 0.05:
                random.choice(under_way).output.cancelled = True
            if under_way and random.random() < 0.02:
                random.choice(under_way).output.deadline = monotonic() - 1
            thread.round()
            if not waiting and not thread.running and not thread.waiting:
                return
    raise AssertionError("requests are left over")


def check_schedule(target, reference, parts, seed, vocabulary, eos):
    """Run a random schedule of 1 to 8 requests: each output is plain decoding's, and every lane is freed."""
    random = Random(seed)
    common = [random.randrange(vocabulary) for _ in range(random.randrange(6))]
    clients = [
        Client(
            [*common, *(random.randrange(vocabulary) for _ in range(random.randrange(1, 8)))],
            seed=random.randrange(100),
            sequence=random.randrange(3),
            most=random.randrange(1, 24),
            temperature=random.choice([0.0, 0.7, 1.0]),
            eos=eos,
            speculative=random.random() < 0.8,
            log_probs=random.choice([None, None, 0, 2]),
        )
        for _ in range(random.randrange(1, 9))
    ]
    thread = DecodingThread(target, parts, lanes=random.choice([1, 2, 3, 8]), eos_token_ids=eos)
    go_through(thread, clients, seed)
    for client in clients:
        expected = alone(reference, client, eos)
        if isinstance(client.end, Ended):
            assert client.tokens == expected
            assert client.text == text_of(expected[:-1] if client.end.result.finish_reason == "eos" else expected)
        else:
            assert client.tokens == expected[: len(client.tokens)]
            assert client.output.cancelled or client.end.why == "deadline"
    assert thread.running == thread.waiting == 0
    return thread
