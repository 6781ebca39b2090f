"""What NCCL logs of its connections: lines as NCCL 2.18 to 2.30 write them."""

import os
import socket
from pathlib import Path

import pytest

from lanterne.transport.nccl.connection_log import FILE, LEVEL, PARTS, ConnectionLog, logged

LINES = """\
box:77:90 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
box:77:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
box:77:90 [0] NCCL INFO Channel 00 : 0[4000] -> 2[b000] via P2P/direct pointer
box:77:90 [0] NCCL INFO Channel 01/1 : 0[0] -> 3[3] via SHM/direct/direct
box:77:90 [0] NCCL INFO Channel 03/1 : 0[0] -> 4[0] [send] via NET/IB/2(1)/GDRDMA/Shared
box:77:90 [0] NCCL INFO Channel 03/1 : 5[1] -> 0[0] [receive] via NET/IB/2/GDRDMA
box:77:90 [0] NCCL INFO Channel 01/1 : 0[0] -> 5[1] [send] via NET/AWS Libfabric/0/GDRDMA
box:77:91 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM comm 0x55d0 nRanks 06
"""


def test_what_a_rank_sends_by(tmp_path):
    path = tmp_path / "log"
    path.write_text("box:77:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 9[9] via SHM\n")
    log = ConnectionLog(path)
    assert log.taken(0) == {}
    with path.open("a") as file:
        file.write(LINES)
    expected = {1: "P2P/CUMEM/read", 2: "P2P/direct pointer", 3: "SHM/direct/direct", 4: "NET/IB/2(1)/GDRDMA/Shared"}
    assert log.taken(0) == expected | {5: "NET/AWS Libfabric/0/GDRDMA"}
    assert log.taken(1) == {0: "P2P/CUMEM"} and log.taken(5) == {}


def test_a_file_that_never_comes(tmp_path):
    assert ConnectionLog(tmp_path / "none").taken(0) == {}


def test_the_file_that_nccl_was_told(tmp_path, monkeypatch):
    monkeypatch.setenv(LEVEL, "info")
    monkeypatch.setenv(FILE, str(tmp_path / "nccl.%h.%p"))
    host = socket.gethostname().partition(".")[0]
    (tmp_path / f"nccl.{host}.{os.getpid()}").write_text(LINES)
    log = ConnectionLog.here()
    assert log is not None and log.taken(1) == {}
    monkeypatch.setattr(log, "_begin", 0)
    assert log.taken(1) == {0: "P2P/CUMEM"}


@pytest.mark.parametrize("values", [{}, {LEVEL: "INFO"}, {LEVEL: "WARN", FILE: "/tmp/x"}, {FILE: "/tmp/x"}])
def test_nobody_asked_nccl(values, monkeypatch):
    for name in (LEVEL, FILE):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert ConnectionLog.here() is None


def test_nccl_is_asked_meanwhile():
    environment = {PARTS: "NET"}
    with logged(environment):
        assert environment[LEVEL] == "INFO" and "P2P" in environment[PARTS]
        memory = Path(environment[FILE])
        memory.write_text("x")
        assert (memory.read_text(), memory.resolve().exists()) == ("x", False)  # nothing is left by any end
    assert environment == {PARTS: "NET"} and not memory.exists()


@pytest.mark.parametrize("own", [{LEVEL: "WARN"}, {FILE: "/tmp/own"}])
def test_what_somebody_asked_for_stays(own):
    environment = dict(own)
    with logged(environment):
        assert environment == own
