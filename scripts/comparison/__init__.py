"""Parts of scripts/compare_transformers.py, which says what is compared and how."""


class ComparisonError(Exception):
    """What the user can mend; shown without a stack of calls."""
