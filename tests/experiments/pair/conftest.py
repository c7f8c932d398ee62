from helpers.small_library import cache, library

__all__ = ["cache", "library"]
