#!/usr/bin/env python3
"""What benches/cuda.rs measures, measured with PyTorch, under the same names and in the same form.

    gpu_torch.py FILE

Writes the medians to FILE, one object a line. Ends with 3 and says why if there is no PyTorch or no GPU for it. PyTorch
gets what makes it fast: the fused Adam, gradients set to none, and for the captured step the whole step in one graph.
"""

import gc
import statistics
import sys
import time

try:
    import torch
    from torch import nn
except ImportError as error:
    print(f"no torch: {error}")
    sys.exit(3)
if not torch.cuda.is_available():
    print("no torch: it sees no GPU")
    sys.exit(3)

QUEUE = 400
IMAGES = 60_000
PIXELS = 784
BLOCKS = [4, 40, 512, 1200, 4000, 12_288]
SAMPLES = 10
SAMPLE_SECONDS = 0.1
WARM_UP_SECONDS = 0.3

device = torch.device("cuda", 0)
lines = []


def measure(name, unit, amount, run):
    """Notes the median of `run(n)`, which answers the seconds that n rounds took."""
    n, total, each = 1, 0.0, run(1)
    while total < WARM_UP_SECONDS:
        spent = run(n)
        total += spent
        each = spent / n
        if spent < SAMPLE_SECONDS / 2:
            n *= 2
    n = max(1, round(SAMPLE_SECONDS / each))
    # Of what takes seconds, few.
    samples = SAMPLES if each < 1 else 3
    median = statistics.median(run(n) / n for _ in range(samples)) * 1e9
    value = {"ns": median, "GB/s": amount / median, "TFLOP/s": amount / median / 1e3}[unit]
    lines.append(f'{{"name": "{name}", "median_ns": {median:.1f}, "value": {value:.3f}, "unit": "{unit}"}}')
    print(f"{name:28} {value:14.3f} {unit}", flush=True)
    with open(sys.argv[1], "w") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


def host(name, launches, run):
    """The host's time to submit `run`; the device catches up outside the timing."""
    batch = max(1, QUEUE // launches)

    def rounds(n):
        spent = 0.0
        while n > 0:
            now = min(n, batch)
            begun = time.perf_counter()
            for _ in range(now):
                run()
            spent += time.perf_counter() - begun
            torch.cuda.synchronize()
            n -= now
        return spent

    measure(name, "ns", 0, rounds)


def whole(name, unit, amount, run):
    """The time of `run` until the device is done, many after one another."""

    def rounds(n):
        begun = time.perf_counter()
        for _ in range(n):
            run()
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    measure(name, unit, amount, rounds)


def uniform(*shape):
    return torch.rand(*shape, device=device) * 2 - 1


def small_operations():
    a, b = torch.full((4,), 1.0, device=device), torch.full((4,), 2.0, device=device)

    def chain():
        x = a + b
        for _ in range(3):
            # An affine operation in one launch is a sum that carries the factor.
            x = torch.add(one, (x * b).exp(), alpha=0.5)
        return x

    one = torch.ones(4, device=device)
    m, n = uniform(64, 64), uniform(64, 64)
    with torch.no_grad():
        host("host/add_4", 1, lambda: a + b)
        host("host/chain_of_10", 10, chain)
        host("host/matmul_64", 1, lambda: m @ n)
        host("host/softmax_64", 1, lambda: torch.softmax(m, 1))


def pool():
    for live in (100, 10_000, 100_000):
        blocks = [torch.empty(BLOCKS[i % len(BLOCKS)], dtype=torch.uint8, device=device) for i in range(live)]
        at = 0

        def rounds(n):
            nonlocal at
            begun = time.perf_counter()
            for _ in range(n):
                at = (at * 5 + 7_919) % live
                blocks[at] = None
                blocks[at] = torch.empty(BLOCKS[at % len(BLOCKS)], dtype=torch.uint8, device=device)
            return time.perf_counter() - begun

        measure(f"pool/alloc_free_{live}", "ns", 0, rounds)
        del blocks


def last_drop():
    for name, where in (("drop/cuda", device), ("drop/cpu", torch.device("cpu"))):

        def rounds(n):
            spent = 0.0
            while n > 0:
                now = min(n, 256)
                every = [torch.zeros(4, device=where) for _ in range(now)]
                torch.cuda.synchronize()
                begun = time.perf_counter()
                every.clear()
                spent += time.perf_counter() - begun
                n -= now
            return spent

        measure(name, "ns", 0, rounds)


def copies():
    for name, kib in (("1KiB", 1), ("64KiB", 64), ("1MiB", 1 << 10), ("16MiB", 16 << 10), ("256MiB", 256 << 10)):
        data = torch.arange(kib << 8, dtype=torch.float32)
        there = data.to(device)

        def up():
            data.to(device)
            torch.cuda.synchronize()

        whole(f"upload/{name}", "GB/s", kib << 10, up)
        whole(f"download/{name}", "GB/s", kib << 10, lambda: there.cpu())


def bandwidth():
    size = 1 << 30
    if torch.cuda.mem_get_info()[0] < 4 * size:
        print("the device has too little free memory for arrays of 1 GiB")
        return
    a = uniform(size // 4096, 1024)
    b = a * 0.5
    whole("bandwidth/affine_1GiB", "GB/s", 2 * size, lambda: a * 1.5)
    # The driver's own copy.
    whole("bandwidth/copy_1GiB", "GB/s", 2 * size, lambda: a.clone())
    whole("bandwidth/add_1GiB", "GB/s", 3 * size, lambda: a + b)
    whole("bandwidth/sum_1GiB", "GB/s", size, lambda: a.sum())
    whole("bandwidth/sum_rows_1GiB", "GB/s", size, lambda: a.sum(1))
    whole("bandwidth/sum_columns_1GiB", "GB/s", size, lambda: a.sum(0))
    whole("bandwidth/softmax_1GiB", "GB/s", 2 * size, lambda: torch.softmax(a, 1))
    whole("bandwidth/transposed_1GiB", "GB/s", 2 * size, lambda: a.t().contiguous())


def products():
    a, b = uniform(8192, 8192), uniform(8192, 8192)
    for name, tf32 in (("matmul/f32_8192", False), ("matmul/tf32_8192", True)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        whole(name, "TFLOP/s", 2 * 8192**3, lambda: a @ b)
    torch.backends.cuda.matmul.allow_tf32 = False


class Training:
    def __init__(self, batch):
        torch.manual_seed(7)
        layers = [nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)]
        self.model = nn.Sequential(*layers).to(device)
        self.adam = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True, capturable=True)
        self.images = torch.rand(IMAGES, PIXELS, device=device)
        self.labels = torch.arange(IMAGES, device=device) % 10
        self.x, self.y = self.images[:batch].clone(), self.labels[:batch].clone()
        self.batch = batch

    def step(self, x, y):
        self.adam.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.adam.step()
        return loss

    def step_again(self):
        return self.step(self.x, self.y)

    def epoch(self, step):
        for i in range(IMAGES // self.batch):
            begin = i * self.batch
            step(self.images[begin : begin + self.batch], self.labels[begin : begin + self.batch])

    def captured(self):
        # As PyTorch's manual asks: some steps on another stream, then the capture.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step_again()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.adam.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.loss = self.step_again()
        return graph


def training():
    for batch in (32, 1024):
        run = Training(batch)
        host(f"mlp_{batch}/step_host", 60, run.step_again)
        whole(f"mlp_{batch}/step", "ns", 0, run.step_again)
        whole(f"mlp_{batch}/epoch", "ns", 0, lambda: run.epoch(run.step))
        graph = run.captured()

        def replay(x, y):
            run.x.copy_(x)
            run.y.copy_(y)
            graph.replay()

        host(f"mlp_{batch}/replay_host", 60, graph.replay)
        whole(f"mlp_{batch}/replay", "ns", 0, graph.replay)
        whole(f"mlp_{batch}/epoch_replay", "ns", 0, lambda: run.epoch(replay))


print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(0)}")
gc.disable()  # a collection in a timing is no part of what is measured
for part in (small_operations, pool, last_drop, copies, bandwidth, products, training):
    part()
    torch.cuda.empty_cache()
