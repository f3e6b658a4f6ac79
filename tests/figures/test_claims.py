"""Every claim of gallery, paper and tests, asked once of the committed data."""

import pytest

from figures import claims
from figures.claims import CLAIMS
from paper import sources


@pytest.mark.parametrize("name", CLAIMS)
def test_the_committed_data_bears_out(name: str) -> None:
    found = CLAIMS[name].judge(sources.load(CLAIMS[name].stem))
    assert found.parts, "a claim without parts can never fail"
    assert found.holds, f"{CLAIMS[name].sentence}: {found.now}, {found.parts}"


def test_a_trial_has_a_verdict_that_the_gallery_knows() -> None:
    verdicts = {claim.verdict for claim in CLAIMS.values()}
    assert verdicts <= {claims.REPRODUCED, claims.PARTLY, claims.CONTRADICTED}
    table = claims.table().splitlines()[6:]
    assert len(table) == sum(bool(claim.trial) for claim in CLAIMS.values())
    assert all(row.count("|") == 6 for row in table)


def test_a_name_is_given_once() -> None:
    with pytest.raises(ValueError, match=r"'gpt.mean': expected a name of its own, gpt_mean_loss has it"):
        claims.claim("gpt.mean", "gpt_fp16", "")(lambda _: claims.Finding(""))
