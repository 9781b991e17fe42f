import numpy as np
import pytest

from fulcrum.simulation.torch.tensor_draws import TensorDraws, stream_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

DRAWS = TensorDraws(torch=torch, device="cpu", seed=7)


def noise(first, last, *, width=5, round_number=3, dtype=torch.float32, draws=DRAWS):
    return draws.standard_normal(round_number=round_number, first=first, last=last, width=width, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 5, 4_810, 300_000])
@pytest.mark.parametrize("first", [0, 47, 10_000_019])
def test_what_a_silo_draws_does_not_depend_on_its_chunk(width, dtype, first):
    silos = 110 if width < 1_000 else 4
    whole = noise(first, first + silos, width=width, dtype=dtype)
    assert whole.shape == (silos, width)
    assert whole.dtype == dtype
    for chunk in (1, 3, 48, 50):
        parts = [
            noise(begin, min(begin + chunk, first + silos), width=width, dtype=dtype)
            for begin in range(first, first + silos, chunk)
        ]
        assert torch.equal(torch.cat(parts), whole)


def test_batches_do_not_depend_on_the_chunk_either():
    def drawn(first, last):
        return DRAWS.integers(round_number=2, first=first, last=last, width=6, bits=31)

    whole = drawn(0, 130)
    assert torch.equal(torch.cat([drawn(0, 40), drawn(40, 41), drawn(41, 130)]), whole)
    assert 0 <= int(whole.min()) < int(whole.max()) < 1 << 31


def test_silos_rounds_and_seeds_draw_for_themselves():
    other = TensorDraws(torch=torch, device="cpu", seed=8)
    found = [noise(0, 100), noise(0, 100, round_number=4), noise(0, 100, draws=other)]
    rows = torch.cat(found)
    assert len(torch.unique(rows, dim=0)) == len(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_noise_is_standard_normal(dtype):
    values = noise(0, 2_000, width=100, dtype=dtype).double().numpy()
    assert abs(values.mean()) < 5 / np.sqrt(values.size)
    assert abs(values.var() - 1) < 5 * np.sqrt(2 / values.size)
    assert abs((values**4).mean() - 3) < 5 * np.sqrt(96 / values.size)
    between = np.corrcoef(values[:, :20].T) - np.eye(20)
    assert np.abs(between).max() < 6 / np.sqrt(len(values))


def test_torch_looks_at_32_bits_of_a_seed_on_the_processor():
    one, other = (torch.rand(4, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5 + (1 << 32)))
    assert torch.equal(one, other)


def test_no_two_streams_of_a_seed_are_the_same():
    streams = [
        stream_of(1, use, round_number, run)
        for use in ("batch", "noise")
        for round_number in (1, 2, 50, 2_047)
        for run in (*range(20_000), *range((1 << 20) - 20_000, 1 << 20))
    ]
    assert len(set(streams)) == len(streams)  # of 320,000 numbers of 32 bits drawn at random 12 pairs would be the same
    assert all(0 <= each < 1 << 32 for each in streams)
    shared = len({*streams, *(stream_of(2, "noise", 1, run) for run in range(20_000))}) - len(streams)
    assert shared > 20_000 - 30  # those of another seed stand elsewhere
