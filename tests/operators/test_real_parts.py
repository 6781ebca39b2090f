"""The real Prometheus, Redis, Chromium and OpenTelemetry Collector beside a job's status; `./run setup operators`.

What is not installed is skipped by its name. All listen on loopback, and end with their test.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from processes import free_port
from statuses import ledger_of

from lanterne.failslow.mitigate.loop_state import RedisState
from lanterne.failslow.operate.history import job_entry, open_history
from lanterne.failslow.operate.status_server import Address, StatusServer

pytestmark = pytest.mark.operators
WAIT_S = 40.0
# Where the page's picture is kept to be looked at; None: nowhere.
KEPT = os.environ.get("LANTERNE_PICTURES")


@contextmanager
def running(*names, words=(), log):
    """The program of the first of `names` that is installed, with `words`, until the block ends."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"{' or '.join(names)} is not installed (./run setup operators)")
    with open(log, "w") as out:
        process = subprocess.Popen([found, *words], stdout=out, stderr=out, start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(ask, log):
    """What `ask` gives once it gives something."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        try:
            if (found := ask()) is not None:
                return found
        except OSError:
            pass
        time.sleep(0.2)
    pytest.fail(f"nothing in {WAIT_S} s; {Path(log).read_text()[-2000:]}")


@pytest.fixture(scope="module")
def status(tmp_path_factory):
    return ledger_of(tmp_path_factory.mktemp("job"), begun_early=lambda: 5).status()


@pytest.mark.parametrize("token", [None, "a token"])
def test_prometheus_scrapes(tmp_path, status, token):
    port, log = free_port(), tmp_path / "log"
    server = StatusServer(lambda: [status], Address("127.0.0.1", 0, token is None), token=token)
    secret = {"authorization": {"credentials": token}} if token else {}
    job = {"job_name": "lanterne", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}], **secret}
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [job]}
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    words = (f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data")

    def asked(query):
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}", timeout=5
        ) as answer:
            return json.load(answer)["data"]["result"] or None

    with closing(server), running("prometheus", words=(*words, f"--web.listen-address=127.0.0.1:{port}"), log=log):
        (ratio,) = until(lambda: asked("lanterne_slow_ratio"), log)
        assert float(ratio["value"][1]) == status["iterations"]["ratio"]
        (late,) = until(lambda: asked("topk(1, lanterne_rank_late_seconds)"), log)
        assert late["metric"]["rank"] == "3"
        (took,) = until(lambda: asked("scrape_duration_seconds"), log)
        (up,) = asked("up")
        assert up["value"][1] == "1" and float(took["value"][1]) < 1.0
        # Labels that must be escaped come back as they were.
        (info,) = asked("lanterne_job_info")
        assert info["metric"]["program"] == status["program"]


def test_promtool_finds_nothing_to_mend(status):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (./run setup operators)")
    with closing(StatusServer(lambda: [status], Address("127.0.0.1", 0, True))) as server:
        text = urllib.request.urlopen(f"{server.url}metrics", timeout=10).read()
    result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (result.returncode, result.stdout + result.stderr) == (0, b"")


def test_redis_keeps_history_and_state(tmp_path, caplog):
    pytest.importorskip("redis")
    port, log = free_port(), tmp_path / "log"
    words = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(tmp_path))
    with running("redis-server", words=words, log=log) as process:
        url = f"redis://127.0.0.1:{port}/jobs"

        def opened():
            try:
                return open_history(url)
            except Exception:
                return None

        history = until(opened, log)
        ledger = ledger_of(tmp_path / "job", history=history)
        ledger.finish(ledger._job.report())
        entries, unused = open_history(url).read()
        assert unused == 0 and [one["what"] for one in entries] == ["incident", "job"]
        state = RedisState(f"redis://127.0.0.1:{port}/state")
        state.set(b"{}")
        command = [sys.executable, "-m", "lanterne", "history", url]
        assert "h     once" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
        process.kill()
        process.wait()
        began_s = time.monotonic()
        for _ in range(3):
            history.add([job_entry("x", ["h"], 0.0)])
            state.set(b"[]")
        assert time.monotonic() - began_s < 20
    assert caplog.text.count("does not take") == 2


CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


def browse(tmp_path, *words):
    """(standard output, standard error) of the browser."""
    found = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("chromium is not installed (./run setup operators)")
    options = (f"--user-data-dir={tmp_path}/profile", "--enable-logging=stderr", "--virtual-time-budget=6000")
    result = subprocess.run(
        [found, *FLAGS, *options, *words], capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path
    )
    return result.stdout, result.stderr


def test_the_page_in_a_browser(tmp_path, status):
    asked = []

    def look():
        asked.append(None)
        return [status | {"notes": [f"look {len(asked)}"]}]

    entries = [{"host": "h", "pattern": "chronic", "incidents": 4, "named_in": 3, "jobs": 5, "first_s": 0.0}]
    patterns = [entries[0] | {"last_s": 1e6, "gpus": ["2"], "nics": ["eth0"]}]
    with closing(StatusServer(look, Address("127.0.0.1", 0, True), history=lambda: patterns)) as server:
        shown, said = browse(tmp_path, "--dump-dom", server.url)
        assert 'data-live="yes"' in shown and "rank 3" in shown and "What to do:" in shown
        # It has asked for itself again, and shows what it got last.
        assert len(asked) > 1 and f"look {len(asked)}" in shown and "look 1<" not in shown
        assert not re.search(r"CONSOLE|Content.Security.Policy|Refused", said), said
        for name, width in (("wide", 1100), ("narrow", 500)):
            browse(tmp_path, f"--screenshot={tmp_path}/{name}.png", f"--window-size={width},1500", server.url)
            data = (tmp_path / f"{name}.png").read_bytes()
            assert data.startswith(b"\x89PNG") and len(data) > 10_000, (name, width)
            if KEPT:
                shutil.copy(tmp_path / f"{name}.png", KEPT)


def test_a_browser_is_asked_for_the_token(tmp_path, status):
    with closing(StatusServer(lambda: [status], Address("127.0.0.1", 0, False), token="secret")) as server:
        shown, _ = browse(tmp_path, "--dump-dom", server.url)
    assert 'type="password"' in shown and "rank 3" not in shown
