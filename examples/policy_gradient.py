"""Policy gradients on a pole
==========================

Balance a pole by REINFORCE (Williams 1992): the environment is plain Python, and so is the loop that is differentiated.

The policy is asked at every step of an episode and its log-probabilities stay on the tape while physics, random numbers and the decision to
stop are Python's.  After the episode one sweep goes through all of it.  Episodes are of any length: 10 steps in the beginning, 200 when the
pole stays up.

With ``jax.jit`` the environment has to be rewritten in JAX, or episodes are padded to one length; PyTorch runs this code as it is.

Run it with ``python examples/policy_gradient.py``.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import optax
from experiment import Array, options, picture, progress

import interop.optax
import tape
import tape.numpy as tnp

LONGEST, DISCOUNT, EPISODES = 200, 0.98, 4  # of an episode; of later rewards; per step of the optimizer


class CartPole:
    """A cart of 1 kg on rails with a pole of 0.1 kg and 1 m on it (Barto, Sutton and Anderson 1983), in steps of 20 ms."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Start near the middle, nearly upright."""
        self.state = rng.uniform(-0.05, 0.05, 4)

    def push(self, force: float) -> bool:
        """Push the cart for one step (in newtons); tell whether the pole is still up and the cart on its rails."""
        x, speed, angle, turn = self.state
        sine, cosine = math.sin(angle), math.cos(angle)
        pushed = (force + 0.05 * turn**2 * sine) / 1.1
        angular = (9.8 * sine - cosine * pushed) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        linear = pushed - 0.05 * angular * cosine / 1.1
        self.state = np.array([x, speed, angle, turn]) + 0.02 * np.array([speed, linear, turn, angular])
        return bool(abs(self.state[0]) < 2.4 and abs(self.state[2]) < 0.21)


def policy(p: dict[str, Any], state: Array) -> Any:
    """Log-probabilities of pushing to the left and to the right."""
    return tape.nn.log_softmax(tnp.tanh(state.astype("float32") @ p["w1"] + p["b1"]) @ p["w2"])


def episode(p: dict[str, Any], rng: np.random.Generator) -> list[Any]:
    """Play until the pole falls; the log-probability of each decision, on the tape."""
    world, said = CartPole(rng), []
    for _ in range(LONGEST):
        scores = policy(p, world.state)
        action = int(rng.random() < math.exp(float(scores[1])))  # this looks
        said.append(scores[action])
        if not world.push(10.0 if action else -10.0):
            break
    return said


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Learn, assert that the pole stays up for longer, and draw it."""
    chosen = options(__doc__, arguments, "policy_gradient.png")
    rng = np.random.default_rng(chosen.seed)
    p = {
        "w1": tape.Variable((rng.normal(size=(4, 24)) * 0.5).astype("float32")),
        "b1": tape.Variable(np.zeros(24, "float32")),
        "w2": tape.Variable((rng.normal(size=(24, 2)) * 0.1).astype("float32")),
    }
    optimizer = interop.optax.Optimizer(p, optax.adam(2e-2))
    lengths: list[int] = []
    for _ in progress(range(3 if chosen.quick else 60), "playing"):
        played = [episode(p, rng) for _ in range(EPISODES)]
        lengths += map(len, played)
        returns = [(1 - DISCOUNT ** np.arange(len(said), 0, -1)) / (1 - DISCOUNT) for said in played]  # one per step that it stands
        all_returns = np.concatenate(returns)
        advantage = ((all_returns - all_returns.mean()) / (all_returns.std() + 1e-6)).astype("float32")
        loss = -(tnp.stack([log for said in played for log in said]) * advantage).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    first, last = (float(np.mean(part)) for part in (lengths[:12], lengths[-12:]))
    print(f"{len(lengths)} episodes, {sum(lengths)} decisions: the pole stands for {first:.0f} steps at first, {last:.0f} at last")
    assert chosen.quick or last > 3 * first
    with picture(chosen.output, 1, "Balancing a pole by policy gradient") as (axes,):
        axes.plot(lengths, ".", label="episodes")
        axes.plot(np.arange(7, len(lengths)), np.convolve(lengths, np.ones(8) / 8, "valid"), label="mean of the last 8")
        axes.set(xlabel="episode", ylabel="steps until it falls")
    return {"first": first, "last": last}


if __name__ == "__main__":
    main()
