"""What all tests share: nothing is read from or left in the user's cache."""

import os
import tempfile

os.environ["LANTERNE_CACHE"] = tempfile.mkdtemp(prefix="lanterne-test-cache-")
