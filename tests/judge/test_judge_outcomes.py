"""Which of several failed calls on the same inputs names the verdict."""

import pytest

from inference_kernels.judge.checks import require_right
from inference_kernels.judge.verdicts import Rejected


@pytest.mark.parametrize(
    "statuses, named",
    [
        (["unwritten", "non_finite", None], "nondeterministic"),
        (["unwritten", "non_finite"], "non_finite"),
        (["unwritten", "mismatch", "unwritten"], "mismatch"),
        (["non_finite", "unwritten"], "non_finite"),
        (["unwritten", "unwritten"], "unwritten"),
        (["unwritten", "stale"], "stale"),
    ],
)
def test_what_a_solution_wrote_is_not_called_unwritten(statuses, named):
    """A poison of 0xFF is also -1 and a NaN: only what holds the bytes of every poison was left unwritten."""
    found = [status and Rejected(status, "y") for status in statuses]
    with pytest.raises(Rejected) as caught:
        require_right({"input set 0": found, "input set 1": [Rejected("unwritten", "y")]})
    assert caught.value.status == named


def test_right_calls_on_any_input_set_make_it_nondeterministic():
    """A solution whose every second call is wrong may fail each call on the first set and one on the next."""
    wrong = Rejected("mismatch", "y")
    with pytest.raises(Rejected) as caught:
        require_right({"input set 0": [wrong, wrong], "input set 1": [None, wrong]})
    assert caught.value.status == "nondeterministic"
