"""PyTorch on the models of this package: the encoder of `--bin models`, a step of the four networks of `--bin training`.

    RAYON_NUM_THREADS=1 NDGC_THREADS=1 taskset -c 1 python3 torch_models.py [--rounds N] [--threads N]

Needs torch. Times are of the wall, each work by itself: run the two programs before and after it on the same idle machine.
What a step holds is the most that its requests to PyTorch's allocator on the host had at once, beside parameters and state.
"""

import argparse
import math
import statistics
import time

import torch
from torch import nn

WIDTH, HEADS = 384, 12


class EncoderLayer(nn.Module):
    """As in `models/programs.rs`; attention by hand, as there, or by PyTorch's own function."""

    def __init__(self, fused):
        super().__init__()
        self.fused = fused
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, 1e-12) for _ in range(2))

    def forward(self, x, mask):
        batch, length, _ = x.shape
        q, k, v = (f(x).view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.fused:
            seen = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS) + mask
            seen = scores.softmax(-1) @ v
        x = self.norm1(self.out(seen.transpose(1, 2).flatten(2)) + x)
        return self.norm2(self.down(nn.functional.gelu(self.up(x))) + x)


def encoder(batch, length, fused):
    layers = [EncoderLayer(fused) for _ in range(6)]
    x, mask = torch.randn(batch, length, WIDTH), torch.zeros(batch, 1, 1, length)

    def forward():
        with torch.inference_mode():
            y = x
            for layer in layers:
                y = layer(y, mask)

    return forward


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.dense = nn.LSTM(50, 128, batch_first=True), nn.Linear(128, 50)

    def forward(self, x):
        return self.dense(self.lstm(x)[0]).flatten(0, 1)


def network(name):
    relu = nn.ReLU
    if name == "mlp":
        return (32, 784), 10, nn.Sequential(nn.Linear(784, 128), relu(), nn.Linear(128, 64), relu(), nn.Linear(64, 10))
    if name == "deep":
        hidden = [part for _ in range(20) for part in (nn.Linear(64, 64), relu())]
        return (32, 64), 10, nn.Sequential(*hidden, nn.Linear(64, 10))
    if name == "lenet":
        head = [nn.Flatten(), nn.Linear(800, 500), relu(), nn.Linear(500, 10)]
        body = [nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2)]
        return (32, 1, 28, 28), 10, nn.Sequential(*body, *head)
    return (16, 30, 50), 50, Lstm()


def training(name):
    shape, classes, model = network(name)
    rows = shape[0] * (shape[1] if name == "lstm" else 1)
    x, y = torch.rand(shape) * 2 - 1, torch.arange(rows) * 7 % classes
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step():
        loss = nn.functional.cross_entropy(model(x), y)
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss.item()

    return step


def held(step):
    """The most bytes that a step's requests had at once."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    live = most = 0
    memory = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(memory, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def firsts(name):
    """First steps of models that were just made."""
    taken = []
    for _ in range(9):
        once = training(name)
        start = time.perf_counter()
        once()
        taken.append((time.perf_counter() - start) * 1e6)
    median = statistics.median(taken)
    print(f"| first step of {name}, us | {median:.3g} ({min(taken):.3g}) | {held(training(name))} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} thread(s)\n\n| work | median (best) | bytes |\n|---|---|---|")
    works = [
        (f"encoder, 6 layers of width 384, {batch} x {length}{', fused attention' if fused else ''}, ms",
         encoder(batch, length, fused), 1, 1e3)
        for batch, length in ((4, 32), (1, 128)) for fused in (False, True)
    ]
    works += [(f"step of {name}, us", training(name), 20, 1e6) for name in ("mlp", "deep", "lenet", "lstm")]
    for name, once, times, unit in works:
        for _ in range(20):
            once()
        taken = []
        for _ in range(options.rounds):
            start = time.perf_counter()
            for _ in range(times):
                once()
            taken.append((time.perf_counter() - start) / times * unit)
        bytes_held = held(once) if name.startswith("step") else ""
        print(f"| {name} | {statistics.median(taken):.3g} ({min(taken):.3g}) | {bytes_held} |", flush=True)
        if name.startswith("step"):
            firsts(name.removeprefix("step of ").removesuffix(", us"))


main()
