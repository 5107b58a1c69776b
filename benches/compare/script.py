"""NumPy and PyTorch beside ndgc, on the workloads of this package: the same numbers, one run, interleaved, one thread.

    cargo build --release && python3 script.py [--rounds N] [--out FILE.md] target/release/ndgc-compare

Needs numpy, and torch for its column. The program is started as ndgc's worker, so that each round has all of them; times
are CPU time of the process, and each worker's values are compared with NumPy's before anything is timed.
"""

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NDGC_THREADS", "RAYON_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import resource
import statistics
import subprocess
import time

import numpy as np

try:
    import torch

    torch.set_num_threads(1)
except ImportError:
    torch = None

SLOT_SECONDS = 0.05
TOLERANCE = 1e-4
LARGE = 1 << 24
INPUTS, TURNS = 50, 64
WIDTHS = [784, 128, 64, 10]
BATCH, N_BATCHES, RATE, CHECKED = 32, 128, 0.1, 20
SCORES = (64, 12, 128, 64)


class SplitMix64:
    """The generator of work.rs, many numbers at a time."""

    def __init__(self, seed):
        self.state = np.uint64(seed)

    def next(self, count):
        gamma = np.uint64(0x9E3779B97F4A7C15)
        with np.errstate(over="ignore"):
            z = self.state + gamma * np.arange(1, count + 1, dtype=np.uint64)
            self.state = z[-1]
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    def unit(self, count):
        return ((self.next(count) >> np.uint64(41)).astype(np.float32) + np.float32(0.5)) / np.float32(1 << 23)

    def uniform(self, count, limit):
        return (np.float32(2) * self.unit(count) - np.float32(1)) * np.float32(limit)

    def normal(self, count):
        pairs = self.unit(2 * count).reshape(count, 2)
        return np.sqrt(np.float32(-2) * np.log(pairs[:, 0])) * np.cos(np.float32(2 * np.pi) * pairs[:, 1])


def operands(shape):
    random, count = SplitMix64(1), int(np.prod(shape))
    return [random.uniform(count, 1.0).reshape(shape) for _ in range(2)]


def network():
    random = SplitMix64(42)
    centres = np.float32(0.1) * random.normal(WIDTHS[-1] * WIDTHS[0]).reshape(WIDTHS[-1], WIDTHS[0])
    labels = (random.next(BATCH * N_BATCHES) % np.uint64(WIDTHS[-1])).astype(np.int64)
    images = centres[labels] + random.normal(BATCH * N_BATCHES * WIDTHS[0]).reshape(-1, WIDTHS[0])
    weights = SplitMix64(7)
    layers = []
    for n_in, n_out in zip(WIDTHS, WIDTHS[1:]):
        limit = 1 / np.sqrt(np.float32(n_in))
        weight = weights.uniform(n_in * n_out, limit).reshape(n_in, n_out)
        layers.append([weight, weights.uniform(n_out, limit)])
    return images, labels, layers


def cycle():
    doublings = np.float32(12)
    sizes = (np.float32(16) * np.exp2(doublings * SplitMix64(3).unit(TURNS * INPUTS))).astype(np.int64)
    return sizes.reshape(TURNS, INPUTS), SplitMix64(4).uniform(65536, 1.0)


def turns(values, copy, relu):
    """A function that runs the next turn, and returns the sum of its last array."""
    sizes, count = cycle()[0].tolist(), 0

    def turn():
        nonlocal count
        arrays = []
        for size in sizes[count % TURNS]:
            x = copy(values[:size])
            square = x * x
            total = square + x
            arrays += [x, square, total, relu(total)]
        count += 1
        return arrays[-1].sum().item()

    return turn


def chain(a, b, relu):
    t = relu((a + b) * b)
    t = relu((t - a) * a + b)
    return (t - b) * b + a


# ---- NumPy: by hand, without gradients ----


def numpy_relu(x):
    return np.maximum(x, 0)


def numpy_training():
    images, labels, layers = network()
    count = 0

    def step():
        nonlocal count
        rows = slice(count % N_BATCHES * BATCH, count % N_BATCHES * BATCH + BATCH)
        count += 1
        x, y = images[rows], labels[rows]
        outputs = [x]
        for i, (weight, bias) in enumerate(layers):
            z = outputs[-1] @ weight + bias
            outputs.append(numpy_relu(z) if i < 2 else z)
        shifted = outputs[-1] - outputs[-1].max(1, keepdims=True)
        exps = np.exp(shifted)
        sums = exps.sum(1)
        loss = np.mean(np.log(sums) - shifted[np.arange(BATCH), y])
        grad = exps / sums[:, None]
        grad[np.arange(BATCH), y] -= 1
        grad /= np.float32(BATCH)
        for i in (2, 1, 0):
            weight, bias = layers[i]
            before = (grad @ weight.T) * (outputs[i] > 0) if i else None
            weight -= np.float32(RATE) * (outputs[i].T @ grad)
            bias -= np.float32(RATE) * grad.sum(0)
            grad = before
        return loss

    return step


def numpy_inference(batch):
    images, _, layers = network()
    x = images[:batch]

    def forward():
        t = x
        for i, (weight, bias) in enumerate(layers):
            t = t @ weight + bias
            t = numpy_relu(t) if i < 2 else t
        return t

    return forward


# ---- PyTorch ----


def torch_network():
    images, labels, layers = network()
    model = []
    for weight, bias in layers:
        layer = torch.nn.Linear(*weight.shape)
        layer.weight.data = torch.from_numpy(weight.T.copy())
        layer.bias.data = torch.from_numpy(bias)
        model += [layer, torch.nn.ReLU()]
    return torch.from_numpy(images), torch.from_numpy(labels), torch.nn.Sequential(*model[:-1])


def torch_training():
    images, labels, model = torch_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    count = 0

    def step():
        nonlocal count
        rows = slice(count % N_BATCHES * BATCH, count % N_BATCHES * BATCH + BATCH)
        count += 1
        loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def torch_inference(batch):
    images, _, model = torch_network()
    x = images[:batch]

    def forward():
        with torch.inference_mode():
            return model(x)

    return forward


# ---- the workloads: name, operations an iteration, shape of the operands, NumPy's form, PyTorch's form ----


def works():
    relu = (lambda t: t.relu()) if torch else None
    for n in (1, 4, 16, 256, 4096):
        yield f"add_{n}", 1, (n,), lambda a, b: a + b, lambda a, b: a + b
    yield "chain10_4096", 10, (4096,), lambda a, b: chain(a, b, numpy_relu), lambda a, b: chain(a, b, relu)
    yield f"add_{LARGE}", 1, (LARGE,), lambda a, b: a + b, lambda a, b: a + b
    yield f"exp_{LARGE}", 1, (LARGE,), lambda a, b: np.exp(a), lambda a, b: a.exp()
    for axis in (0, 1):
        yield f"sum{axis}_4096x4096", 1, (4096, 4096), lambda a, b, d=axis: a.sum(d), lambda a, b, d=axis: a.sum(d)
    for n in (8, 64, 256, 1024):
        yield f"matmul_{n}", 1, (n, n), lambda a, b: a @ b, lambda a, b: a @ b
    yield "scores", 1, SCORES, lambda a, b: a @ b.swapaxes(2, 3), lambda a, b: a @ b.transpose(2, 3)
    for n in (1, 32):
        yield f"infer_{n}", 1, None, numpy_inference(n), torch and torch_inference(n)
    of_numpy = turns(cycle()[1], np.copy, numpy_relu)
    of_torch = turns(torch.from_numpy(cycle()[1]), torch.clone, relu) if torch else None
    yield "cycle_200", 4 * INPUTS, None, of_numpy, of_torch
    yield "mlp_step", 1, None, numpy_training(), torch and torch_training()


def contenders(name, shape, of_numpy, of_torch):
    """Values, and a function that runs some iterations, of NumPy and PyTorch."""
    if shape is not None:
        a, b = operands(shape)
        numpy_once, torch_once = lambda: of_numpy(a, b), None
        if torch:
            ta, tb = torch.from_numpy(a), torch.from_numpy(b)
            torch_once = lambda: of_torch(ta, tb)
    else:
        numpy_once, torch_once = of_numpy, of_torch
    for once in filter(None, (numpy_once, torch_once)):
        times = {"mlp_step": CHECKED, "cycle_200": TURNS}.get(name)
        values = [once() for _ in range(times)] if times else once()
        values = np.asarray(values, dtype=np.float32).reshape(-1)

        def run(count, once=once):
            start = time.process_time_ns()
            for _ in range(count):
                once()
            return time.process_time_ns() - start

        yield values[:: max(1, -(-values.size // 4096))], run


def worker(program, name):
    child = subprocess.Popen([program, "--worker", "ndgc", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    values = np.array(child.stdout.readline().split(), dtype=np.float32)

    def run(count):
        child.stdin.write(f"{count}\n")
        child.stdin.flush()
        return int(child.stdout.readline().split()[1])

    return child, values, run


def count_of(run):
    count = 1
    while (spent := run(count)) < SLOT_SECONDS * 2e8:
        count *= 2
    return max(1, int(count * SLOT_SECONDS * 1e9 / spent))


def faults_of(run, count):
    """Page faults of an iteration that needed no disk."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    run(count)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out")
    parser.add_argument("--workloads", help="names, separated by commas; all if not given")
    options = parser.parse_args()
    libraries = [f"numpy {np.__version__}"] + ([f"torch {torch.__version__}"] if torch else [])
    text = f"ndgc, {', '.join(libraries)}. One thread, CPU time; {options.rounds} rounds of {SLOT_SECONDS * 1000:.0f} ms.\n\n"
    text += "Nanoseconds per operation (median), and time relative to ndgc: median of the ratios paired by round.\n\n"
    names = ["ndgc", "numpy"] + (["torch"] if torch else [])
    text += "Page faults per operation of those in this process; those of ndgc are in the other table.\n\n"
    heads = [f"{n} / ndgc" for n in names[1:]] + [f"{n}'s faults" for n in names[1:]]
    text += f"| workload | {' | '.join(names + heads)} |\n"
    text += "|---" * (1 + len(names) + len(heads)) + "|\n"
    for name, n_ops, shape, of_numpy, of_torch in works():
        if options.workloads and name not in options.workloads.split(","):
            continue
        child, values, run = worker(options.program, name)
        runs = [run]
        for other, run in contenders(name, shape, of_numpy, of_torch):
            # Sums of 4,096 numbers around 0 differ by what their order loses.
            tolerance = 10 * TOLERANCE if name.startswith(("sum", "cycle")) else TOLERANCE
            close = np.abs(other - values) <= tolerance * np.maximum(1, np.abs(other))
            assert values.size == other.size and close.all(), f"{name}: other values"
            runs.append(run)
        counts = [count_of(run) for run in runs]
        rounds = []
        for i in range(options.rounds):
            slots = [0.0] * len(runs)
            for turn in sorted(range(len(runs)), key=lambda turn: (turn + i) % len(runs)):
                slots[turn] = runs[turn](counts[turn]) / counts[turn] / n_ops
            rounds.append(slots)
        child.stdin.close()
        child.wait()
        faults = [faults_of(run, count) / n_ops for run, count in zip(runs[1:], counts[1:])]
        times = [statistics.median(column) for column in zip(*rounds)]
        ratios = [statistics.median(slots[i] / slots[0] for slots in rounds) for i in range(1, len(runs))]
        cells = [f"{t:.1f}" if t < 100 else f"{t:.0f}" for t in times] + [f"{r:.2f}" for r in ratios + faults]
        text += f"| {name} | {' | '.join(cells)} |\n"
        print(text.splitlines()[-1], flush=True)
    if options.out:
        with open(options.out, "w") as file:
            file.write(text)


main()
