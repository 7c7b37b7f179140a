"""A model of Hugging Face's transformers, made from its configuration, trained through the tape step by step as PyTorch trains it."""

import jax
import numpy as np
import optax
import pytest

import interop
import tape

torch = pytest.importorskip("torch", reason="the bridge to PyTorch needs it: pip install torch, the build for CPUs")
transformers = pytest.importorskip("transformers", reason="pip install transformers")

STEPS = 20


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def _gpt2(dropout):
    torch.manual_seed(0)
    names = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, n_positions=12, vocab_size=23, bos_token_id=0, eos_token_id=0, **dict.fromkeys(names, dropout)
    )
    return transformers.GPT2LMHeadModel(config).double()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_model_made_from_its_configuration_trains_as_in_torch(dropout):
    native = _gpt2(dropout).train()
    module = interop.torch.from_torch(native)
    module.train()
    adam = torch.optim.AdamW(native.parameters(), lr=1e-2, weight_decay=0.01)
    optimizer = interop.optax.Optimizer(module.parameters(), optax.adamw(1e-2, weight_decay=0.01))
    tokens = np.random.default_rng(0).integers(0, 23, (3, 12))
    before = native(input_ids=torch.from_numpy(tokens), labels=torch.from_numpy(tokens)).loss.item()
    for step in range(STEPS):
        torch.manual_seed(step)  # the same masks
        theirs = native(input_ids=torch.from_numpy(tokens), labels=torch.from_numpy(tokens)).loss
        adam.zero_grad()
        theirs.backward()
        adam.step()
        torch.manual_seed(step)
        result = module(input_ids=tokens, labels=tokens)
        assert isinstance(result.loss, tape.Variable)  # in transformers' own ModelOutput
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        np.testing.assert_allclose(float(result.loss), theirs.item(), rtol=1e-9)
    assert theirs.item() < before / 2  # it learns
    for name, value in native.named_parameters():
        np.testing.assert_allclose(module.state_dict()[name], value.detach().numpy(), rtol=1e-7, atol=1e-10)
