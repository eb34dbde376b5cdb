"""Verdicts: the words, the numbers behind them, and the exit statuses."""

from typing import Any, Dict, List, NamedTuple, Optional

from .stats import Estimate

__all__ = ["EXIT_STATUS", "FORMAT", "Judgement", "grade", "worst_status"]

FORMAT = 1  # of the JSON
# From the worst to the best.
EXIT_STATUS: Dict[str, int] = {
    "cheating": 22, "broken": 21, "wrong": 20, "slower": 12, "rethink": 11, "good": 10, "accepted": 0,
    "at the limit": 0, "skipped": 0,
}
FAILED = ("cheating", "broken", "wrong")
BAD_USAGE, CANNOT_JUDGE = 2, 3
RETHINK, GOOD, ACCEPTED, AT_THE_LIMIT = 1.0, 1.5, 2.0, 0.95


class Judgement(NamedTuple):
    """All that is known of a candidate in the end. `details` is as docs/judge.md has it."""
    reference: str
    candidate: str
    verdict: str
    reason: str
    details: Dict[str, Any]

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.verdict]

    def to_json(self) -> Dict[str, Any]:
        return {"format": FORMAT, "reference": self.reference, "candidate": self.candidate,
                "verdict": self.verdict, "reason": self.reason, "exit_status": self.exit_status,
                **self.details}


def grade(speedup: Estimate, of_copy: Optional[Estimate]) -> str:
    if of_copy and of_copy.median >= AT_THE_LIMIT:
        return "at the limit"
    if speedup.median < RETHINK:
        return "slower"
    if speedup.median < GOOD:
        return "rethink"
    return "good" if speedup.median < ACCEPTED else "accepted"


def near_thresholds(speedup: Estimate, of_copy: Optional[Estimate]) -> List[str]:
    """Where another run may say another word."""
    notes = [f"near a threshold: the speedup is between {speedup.low:.3g} and {speedup.high:.3g}, "
             f"on both sides of {threshold:g}"
             for threshold in (RETHINK, GOOD, ACCEPTED) if speedup.straddles(threshold)]
    if of_copy and of_copy.straddles(AT_THE_LIMIT):
        notes.append(f"near a threshold: {of_copy.low:.3g} to {of_copy.high:.3g} of the copy's speed, "
                     f"on both sides of {AT_THE_LIMIT:g}")
    return notes


def worst_status(judgements: List[Judgement]) -> int:
    """Of a suite: that of the worst candidate that failed, or 0."""
    failed = [j.exit_status for j in judgements if j.verdict in FAILED]
    return max(failed, default=0)
