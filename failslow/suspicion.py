"""Who has been slow for how many iterations in a row, and who has been well for how many: nothing is judged by one."""

from collections import deque
from statistics import median

# Iterations whose severities are kept of each.
RECENT = 5


class Suspicion:
    """Counts of what Evidence said.

    Args:
        settings: Settings.
    """

    def __init__(self, settings):
        self._settings = settings
        self._slow, self._well, self._recent, self._acquitted = {}, {}, {}, {}

    def __bool__(self):
        """Whether the latest iteration showed anything that may become a suspect."""
        return bool(self._slow)

    def count(self, evidence, blamed):
        """Take the Evidence of one more iteration; `blamed`: the names of what is blamed by now."""
        self._slow = {name: self._slow.get(name, 0) + 1 for name, (_, slow) in evidence.found.items() if slow}
        for name in self._slow:
            self._recent.setdefault(name, deque(maxlen=RECENT)).append(evidence.found[name][0])
        for name in self._recent.keys() - self._slow.keys() - set(blamed):
            del self._recent[name]
        # Who was not seen is where he was.
        self._well = {
            name: 0 if name in evidence.found else self._well.get(name, 0) + (name in evidence.well) for name in blamed
        }

    def suspects(self, evidence, iteration, blamed, alarmed):
        """The names that are to be examined now.

        Args:
            blamed: name -> severity, of what is blamed by now.
            alarmed: whether iterations are known to be slow.
        """
        enough = self._settings.onset if alarmed else self._settings.persistent
        return tuple(
            name
            for name in evidence.found
            if iteration >= self._acquitted.get(name, -1)
            and (self._is_other(name, blamed[name]) if name in blamed else self._slow.get(name, 0) >= enough)
        )

    def _is_other(self, name, blamed):
        """Whether a blamed rank is slow, but not as slow as was planned for. Of links only an examination knows."""
        return (
            name.startswith("rank")
            and self._slow.get(name, 0) >= RECENT
            and not 0.7 < median(self._recent[name]) / blamed < 1.4
        )

    def severity(self, name):
        """Of a suspect, the median of the latest iterations."""
        return median(self._recent[name])

    def since(self, name, iteration):
        """The iteration since which a suspect of `iteration` has been slow."""
        return iteration - self._slow.get(name, 1) + 1

    def acquit(self, name, iteration):
        """An examination in `iteration` found `name` well."""
        self._acquitted[name] = iteration + self._settings.acquitted

    def measured(self, name, severity):
        """An examination knows the severity of `name` better."""
        self._recent[name] = deque([severity], maxlen=RECENT)

    def take_relieved(self):
        """The blamed names that have been well for long enough; they are forgotten."""
        over = [name for name, count in self._well.items() if count >= self._settings.relief]
        for name in over:
            del self._well[name]
            self._recent.pop(name, None)
        return over
