"""The devices of this machine, and what is said where one is asked for that isn't among them."""

import torch


def lacking(name: str, needed: int = 1) -> str | None:
    """What to say where this machine lacks a device, or as many GPUs as its ranks need; None if all are here."""
    count = torch.cuda.device_count()
    gpus = [f"cuda:{i}" for i in range(count)]
    if name in ("cpu", *gpus) or (name == "cuda" and count >= needed):
        return None
    here = f"{count} GPU{'s' if count > 1 else ''} ({', '.join(gpus)})" if count else "no GPU"
    if name == "cuda" and count:
        return f"--device cuda takes a GPU for each rank of a node, here at least {needed}; this machine has {here}"
    return f"--device {name} isn't here; this machine has cpu and {here}"
