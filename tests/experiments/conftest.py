from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def torch_settings_back() -> Iterator[None]:
    """Experiments make torch deterministic for the whole process; the next test file did not ask for that."""
    before, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    onednn = torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()
    yield
    torch.backends.mkldnn.set_flags(onednn)
    torch.use_deterministic_algorithms(before)
    torch.set_num_threads(threads)
