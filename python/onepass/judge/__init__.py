"""Is a kernel right, is it faster, how far is it from the limit, and what next?

`python -m onepass.judge REFERENCE.py [CANDIDATE.py]`, or `onepass-judge`. docs/judge.md says how it works.
"""
