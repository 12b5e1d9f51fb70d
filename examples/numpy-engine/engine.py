"""A complete engine in NumPy: the model of examples/custom-task, with its gradient by hand.

    cargo run --release -p custom-task -- train examples/custom-task/curve.toml \\
        --set 'run.devices="cpu:1,exec:python3 examples/numpy-engine/engine.py"'

Trains on both devices together. docs/engine-protocol.md explains the protocol.
"""
import json, mmap, os, socket, struct, time
import numpy as np

host = socket.socket(fileno=os.dup(0))

def receive():
    head, descriptors, _, _ = socket.recv_fds(host, 4, 2, socket.MSG_WAITALL)
    if not head:
        raise SystemExit  # HetSeq has closed the channel
    files = [np.frombuffer(mmap.mmap(descriptor, 0), np.float32) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    return json.loads(host.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL)), files

def send(message):
    body = json.dumps(message).encode()
    host.sendall(struct.pack("<I", len(body)) + body)

def mix(x, steps):  # the hashes of the protocol: of 64 bits for keys, of 32 bits for elements
    for shift, factor in steps:
        x = (x ^ (x >> x.dtype.type(shift))) * x.dtype.type(factor)
    return x

WIDE, NARROW = ((30, 0xbf58476d1ce4e5b9), (27, 0x94d049bb133111eb), (31, 1)), ((16, 0x7feb352d), (15, 0x846ca68b), (16, 1))

def dropout_mask(samples, width, update_key):
    rotated = np.uint64((update_key << 23 | update_key >> 41) & (1 << 64) - 1)
    keys = mix(rotated ^ mix(np.array(samples, np.uint64) + np.uint64(0x9e3779b97f4a7c15), WIDE), WIDE)[:, None]
    low, high = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
    keep = mix(mix(np.arange(width, dtype=np.uint32) ^ low, NARROW) ^ high, NARROW) >= int(float(rate) * 2**32)
    return keep * (np.float32(1) / (np.float32(1) - rate))

def run(micro, memory, compute):  # the loss sum of a micro-batch; adds to the gradients if it has a `compute` request
    x, y = (memory[a["offset"] // 4:][:a["shape"][0]].reshape(-1, 1) for a in sorted(micro["arrays"], key=lambda a: a["name"]))
    first = np.tanh(x @ weights["first.weight"].T + weights["first.bias"])
    second = np.tanh(first @ weights["second.weight"].T + weights["second.bias"])
    mask = dropout_mask(micro["samples"], second.shape[1], compute["update_key"]) if compute else np.float32(1)
    error = (second * mask) @ weights["last.weight"].T + weights["last.bias"] - y
    if compute:
        above = 2 * error * np.float32(compute["scales"][0])
        for layer, below, slope in (("last", second * mask, mask * (1 - second**2)), ("second", first, 1 - first**2), ("first", x, 0)):
            sums[layer + ".weight"] += above.T @ below
            sums[layer + ".bias"] += above.sum(0)
            above = above @ weights[layer + ".weight"] * slope
    return float((error.astype(np.float64)**2).sum())

do = None
while do != "stop":
    (request, files), answer, loss, seconds = receive(), {}, 0.0, 0.0
    do = request["do"]
    if do == "hello":
        answer = {"protocol": 1, "engine": "numpy", "versions": {"numpy": np.__version__}}
    elif do == "open":
        rate = np.float32(request["config"].get("dropout", 0.0))
    elif do == "layout":
        view = lambda file, entry: file[entry["offset"]:][:int(np.prod(entry["shape"]))].reshape(entry["shape"])
        layout, (parameters, gradients) = request["parameters"], files
    if do in ("layout", "load"):
        weights = {entry["name"]: view(parameters, entry).copy() for entry in layout}
    if do in ("compute", "evaluate"):
        sums = {name: np.zeros_like(weight) for name, weight in weights.items()}
        for number in range(request["micro"]):
            micro, files = receive()
            start = time.perf_counter()
            loss += run(micro, files[0], request if do == "compute" else None)
            seconds += time.perf_counter() - start
            send({"done": number + 1})
        for entry in layout:
            if do == "compute" and entry["trainable"]:
                view(gradients, entry)[:] = sums[entry["name"]]
        loss = struct.unpack("<Q", struct.pack("<d", loss))[0]
        answer = {"losses": [loss], "scores": [loss] * (do == "evaluate"), "seconds": seconds, "overflow": False}
    send({"ok": answer})
