"""Shows a demo while it runs: a screen on a terminal, lines in a pipe. Its job writes records to a file."""

import json
import os
import shutil
import signal
import threading
import time

from lanterne.bench.demo.screen import BLOCKS, plain_line, screen

# Between looks at the file.
LOOK_S = 0.1
EVERY = 10
# Another screen, no cursor; and back.
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


class View:
    """Follows a feed in a thread of its own, as a context.

    Args:
        path: the file with the records; it exists.
        about: as `screen` takes it.
        file: where to show.
    """

    def __init__(self, path, about, file):
        self.about, self.file, self.records = about, file, []
        self.is_screen = file.isatty() and os.environ.get("TERM") != "dumb" and _can_show(BLOCKS, file.encoding)
        self.colour = self.is_screen and not os.environ.get("NO_COLOR")
        self._feed = open(path, encoding="utf-8")
        self._began_s, self._rest = time.monotonic(), ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self):
        if self.is_screen:
            self.file.write(ENTER)
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._ended.set()
        self._thread.join()
        self._feed.close()
        if self.is_screen:
            self.file.write(LEAVE)
            if self.records:
                # What was on the screen stays above the summary.
                self.file.write("\n".join(self._lines()) + "\n\n")
        self.file.flush()

    def _follow(self):
        ended = False
        try:
            while not ended:
                ended = self._ended.wait(LOOK_S)
                self._show(self._read())
        except BrokenPipeError:
            # Nobody looks any more: the job ends as `kill` would end it.
            os.kill(os.getpid(), signal.SIGTERM)

    def _read(self):
        """The records that have come."""
        *lines, self._rest = (self._rest + self._feed.read()).split("\n")
        return [json.loads(line) for line in lines]

    def _show(self, came):
        self.records += came
        if self.is_screen:
            # Every line to its end, and what is below: no flicker, nothing left of the screen before.
            self.file.write("\x1b[H" + "\n".join(line + "\x1b[K" for line in self._lines()) + "\x1b[J")
        else:
            for record in came:
                if line := plain_line(record, EVERY):
                    self.file.write(line + "\n")
        self.file.flush()

    def _lines(self):
        width, height = shutil.get_terminal_size()
        elapsed_s = time.monotonic() - self._began_s
        return screen(self.about, self.records, width, height - 1, self.colour, elapsed_s)


def _can_show(text, encoding):
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
