"""What ends a study."""


class StudyError(RuntimeError):
    """A study that cannot go on; the sentence says why and what to do."""
