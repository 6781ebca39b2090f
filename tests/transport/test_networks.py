"""Which transport a job without MPI takes: what strangers can reach decides."""

from types import SimpleNamespace

import pytest

from lanterne.errors import InputError
from lanterne.transport import networks, registry


@pytest.mark.parametrize(
    ("hosts", "ucxx", "rdma", "expected"),
    [
        ("aa", (True, True), (False, False), "ucx"),
        ("aa", (True, False), (False, False), "tcp"),
        ("ab", (True, True), (False, False), "tcp"),
        ("ab", (True, True), (True, True), "ucx"),
        ("ab", (True, True), (True, False), "tcp"),
        ("ab", (False, True), (True, True), "tcp"),
    ],
)
@pytest.mark.parametrize("trusted", ["0", "1"])
def test_without_mpi(monkeypatch, hosts, ucxx, rdma, trusted, expected):
    several = len(set(hosts)) > 1
    told = [bytes([has and (not several or by_rdma)]) for has, by_rdma in zip(ucxx, rdma, strict=True)]
    for rank in range(2):

        def exchange(_name, mine, _timeout_s, rank=rank):
            assert mine == told[rank], rank
            return told

        monkeypatch.setattr(registry, "has_ucx", lambda rank=rank: ucxx[rank])
        monkeypatch.setattr(registry, "is_started_by_mpi", lambda: False)
        monkeypatch.setattr(registry, "has_rdma", lambda rank=rank: rdma[rank])
        monkeypatch.setenv(networks.VARIABLE, trusted)
        assert registry.host_transport(SimpleNamespace(hosts=tuple(hosts), exchange=exchange)) == expected, rank


@pytest.mark.parametrize("by_mpi", [True, False])
def test_whoever_asks_for_encryption_between_hosts_gets_tcp(monkeypatch, by_mpi):
    monkeypatch.setenv(networks.ENCRYPT, "1")
    monkeypatch.setattr(registry, "is_started_by_mpi", lambda: by_mpi)
    group = SimpleNamespace(hosts=("a", "b"), exchange=lambda _name, mine, _timeout_s: [mine, bytes([1])])
    assert registry.host_transport(group) == "tcp"
    refused = r"LANTERNE_ENCRYPT=1: got transport ucx between hosts.* expected transport tcp"
    with pytest.raises(InputError, match=refused):
        registry.open_transport("ucx", group)


def test_what_is_not_yes_or_no(monkeypatch):
    monkeypatch.setenv(networks.VARIABLE, "yes")
    with pytest.raises(InputError, match="LANTERNE_TRUSTED_NETWORK: got 'yes', expected 0 or 1"):
        networks.is_trusted()
    monkeypatch.delenv(networks.VARIABLE)
    assert not networks.is_trusted()


@pytest.mark.parametrize(("states", "expected"), [((), False), (("1: DOWN",), False), (("1: DOWN", "4: ACTIVE"), True)])
def test_rdma(tmp_path, states, expected):
    for number, state in enumerate(states):
        folder = tmp_path / "mlx5_0" / "ports" / str(number)
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
    assert networks.has_rdma(str(tmp_path)) == expected
