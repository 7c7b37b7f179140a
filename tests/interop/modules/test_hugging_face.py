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


def test_a_cache_of_keys_and_values_carries_gradients_from_call_to_call():
    native = _gpt2(0.0).eval()
    module = interop.torch.from_torch(native)
    tokens = np.random.default_rng(1).integers(0, 23, (2, 9))
    given = torch.from_numpy(tokens)
    begun = native(input_ids=given[:, :5])
    native(given[:, 5:], begun.past_key_values).logits.sin().sum().backward()
    begun = module(input_ids=tokens[:, :5])
    continued = module(tokens[:, 5:], begun.past_key_values)
    np.testing.assert_allclose(continued.logits.numpy(), native(input_ids=given).logits[:, 5:].detach().numpy(), rtol=1e-9, atol=1e-12)
    tape.numpy.sin(continued.logits).sum().backward()
    gradients = {name: p.grad.numpy() for name, p in native.named_parameters()}
    for name, p in module.named_parameters():
        np.testing.assert_allclose(p.grad, gradients[name], rtol=1e-7, atol=1e-10, err_msg=name)
