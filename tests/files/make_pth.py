"""Makes `model.pth` and `checkpoint.pth`: what `torch.save` writes for a state_dict, and for a dict that has one under
a key, without PyTorch: the same names in the same pickle (protocol 2), the same entries in the same archive."""

import collections
import io
import pickle
import struct
import sys
import types
import zipfile


def module(name):
    made = types.ModuleType(name)
    sys.modules[name] = made
    return made


torch = module("torch")
utils = module("torch._utils")
torch._utils = utils
for name in "Float Double Half BFloat16 Long Int Short Char Byte Bool".split():
    storage = type(name + "Storage", (), {"__module__": "torch"})
    setattr(torch, name + "Storage", storage)


def _rebuild_tensor_v2(*args):
    raise NotImplementedError


def _rebuild_parameter(*args):
    raise NotImplementedError


for function in (_rebuild_tensor_v2, _rebuild_parameter):
    function.__module__ = "torch._utils"
    setattr(utils, function.__name__, function)


class Storage:
    def __init__(self, kind, data, count):
        self.kind, self.data, self.count = kind, data, count


class Tensor:
    def __init__(self, storage, offset, size, stride):
        self.args = (storage, offset, size, stride, False, collections.OrderedDict())

    def __reduce_ex__(self, protocol):
        return _rebuild_tensor_v2, self.args


class Parameter:
    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce_ex__(self, protocol):
        return _rebuild_parameter, (self.tensor, True, collections.OrderedDict())


def save(value, path, compression, folder):
    storages = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, it):
            if not isinstance(it, Storage):
                return None
            key = storages.setdefault(id(it), (str(len(storages)), it))[0]
            return ("storage", getattr(torch, it.kind + "Storage"), key, "cpu", it.count)

    out = io.BytesIO()
    Pickler(out, protocol=2).dump(value)
    with zipfile.ZipFile(path, "w", compression) as archive:
        put = lambda name, data: archive.writestr(zipfile.ZipInfo(f"{folder}/{name}"), data, compression)
        put("data.pkl", out.getvalue())
        put("byteorder", b"little")
        for key, storage in storages.values():
            put(f"data/{key}", storage.data)
        put("version", b"3\n")


def pack(letter, numbers):
    return struct.pack(f"<{len(numbers)}{letter}", *numbers)


def half(numbers):
    return pack("H", numbers)


floats = Storage("Float", pack("f", [i * 0.5 - 3 for i in range(12)]), 12)
state = collections.OrderedDict()
state["weight"] = Parameter(Tensor(floats, 0, (3, 4), (4, 1)))
state["transposed"] = Tensor(floats, 0, (4, 3), (1, 4))
state["part"] = Tensor(floats, 5, (2, 2), (4, 1))
state["row"] = Tensor(floats, 4, (4,), (1,))
state["scalar"] = Tensor(Storage("Double", pack("d", [2.5]), 1), 0, (), ())
state["half"] = Tensor(Storage("Half", half([0x3C00, 0xC000, 0x7C00]), 3), 0, (3,), (1,))
state["bfloat"] = Tensor(Storage("BFloat16", half([0x3F80, 0xC000]), 2), 0, (2,), (1,))
state["long"] = Tensor(Storage("Long", pack("q", [-1, 1 << 40]), 2), 0, (2,), (1,))
state["int"] = Tensor(Storage("Int", pack("i", [-7, 7]), 2), 0, (2,), (1,))
state["short"] = Tensor(Storage("Short", pack("h", [-300, 300]), 2), 0, (2,), (1,))
state["char"] = Tensor(Storage("Char", pack("b", [-100, 100]), 2), 0, (2,), (1,))
state["byte"] = Tensor(Storage("Byte", pack("B", [200, 3]), 2), 0, (2,), (1,))
state["bool"] = Tensor(Storage("Bool", bytes([1, 0, 1]), 3), 0, (3,), (1,))
state["empty"] = Tensor(Storage("Float", b"", 0), 0, (0, 5), (5, 1))
state["steps"] = 17
state._metadata = collections.OrderedDict({"": {"version": 1}})
save(state, "model.pth", zipfile.ZIP_STORED, "archive")
small = collections.OrderedDict(w=Tensor(Storage("Float", pack("f", [1, 2, 3, 4]), 4), 0, (2, 2), (2, 1)))
save({"epoch": 3, "loss": 0.25, "rates": [0.1, 2], "model": small}, "checkpoint.pth", zipfile.ZIP_DEFLATED, "checkpoint")
