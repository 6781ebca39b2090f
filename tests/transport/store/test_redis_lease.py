"""The lease in Redis: one store leads, only it can write, and what Redis cannot do is said in one line."""

import time
from contextlib import contextmanager

import pytest
from redis_servers import NAME, needs_redis, redis_server, sentinels

from lanterne.errors import InputError, Unavailable
from lanterne.transport.store import redis_lease
from lanterne.transport.store.redis_lease import LeaseUnreachable, RedisLease, is_url

TOKEN = "0123456789abcdef"
HERE = "127.0.0.1", 99


@pytest.fixture(autouse=True)
def _redis():
    pytest.importorskip("redis")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis")) as (port, _):
        yield f"redis://127.0.0.1:{port}"


@contextmanager
def leads(url, token=TOKEN):
    """A store's lease, as it is taken at the start of a job."""
    lease = RedisLease(url, token)
    assert lease.claim(fresh=True)
    term, decided = lease.take(HERE)
    assert (term, decided) == (0, b"") and lease.save(0, b"")
    yield lease
    lease.release()


BAD = ("http://host", "redis://", "redis://:99999", "redis://host:port", "redis://a,b", "redis+sentinel://", "unix://x")


@pytest.mark.parametrize("url", [*BAD, "redis+sentinel://a:1,b:x/n", "redis+sentinel://a/name/database"])
def test_a_url_of_another_form_is_refused(url):
    assert is_url(url)
    with pytest.raises(InputError, match=r"LANTERNE_STORE: got .*, expected host:port, redis://HOST"):
        RedisLease(url, TOKEN)


def test_errors_do_not_show_the_password(monkeypatch):
    lease = RedisLease("redis://user:secret@127.0.0.1:1/0", TOKEN)
    with pytest.raises(LeaseUnreachable, match="it does not answer: ") as error:
        lease.leader()
    assert "secret" not in str(error.value) + lease.where
    with pytest.raises(InputError) as error:
        RedisLease("http://user:secret@host", TOKEN)
    assert "secret" not in str(error.value)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "redis", None)
    with pytest.raises(Unavailable, match=r"pip install 'lanterne\[redis\]'"):
        RedisLease("redis://host", TOKEN)


@needs_redis
def test_one_store_leads_and_another_goes_on_with_what_it_decided(server, monkeypatch):
    monkeypatch.setattr(redis_lease, "LEASE_MS", 200)
    other = RedisLease(server, TOKEN)
    assert other.leader() is None
    with leads(server) as first:
        assert other.leader() == (first.name, HERE) and not other.claim()
        assert first.save(0, b"it has decided this")
        time.sleep(0.3)  # It is cut off, or dead.
        assert other.leader() is None and other.claim()
        assert other.leader() == (other.name, None)
        assert not first.save(0, b"and that")
        assert other.take(("127.0.0.1", 98)) == (1, b"it has decided this") and other.save(1, b"this and more")
        time.sleep(0.3)
        # Also where the second is lost in its turn, the first knows less.
        assert not first.save(0, b"and that")
        assert RedisLease(server, TOKEN).take(HERE) == (2, b"this and more")
        other.save(1, b"")
        other.release()
    assert other.take(HERE) == (0, b"")


@needs_redis
def test_a_store_that_was_busy_goes_on_where_no_other_came(server, monkeypatch):
    monkeypatch.setattr(redis_lease, "LEASE_MS", 100)
    with leads(server) as lease:
        time.sleep(0.2)
        assert lease.leader() is None and lease.save(0, b"later") and lease.leader() == (lease.name, HERE)


@needs_redis
def test_jobs_with_other_tokens_do_not_meet(server):
    with leads(server), leads(server, "another job's token") as other:
        other.save(0, b"its own")
        assert RedisLease(server, TOKEN).take(HERE) == (1, b"")


@needs_redis
@pytest.mark.parametrize(
    ("rules", "said"),
    [(("+@all", "-eval"), "no permissions to run the 'eval' command"), (None, "invalid username-password pair")],
    ids=["no scripts", "a wrong password"],
)
def test_a_user_that_may_not_is_named_at_once(server, rules, said):
    import redis

    with redis.Redis.from_url(server) as client:
        client.execute_command("ACL", "SETUSER", "ranks", "reset", "on", ">right", "~*", *(rules or ["+@all"]))
    lease = RedisLease(server.replace("redis://", f"redis://ranks:{'right' if rules else 'wrong'}@"), TOKEN)
    with pytest.raises(Unavailable, match=said):
        lease.leader()


@needs_redis
def test_a_server_without_scripts_is_named_at_once(tmp_path):
    said = pytest.raises(Unavailable, match=r"unknown command.*expected a server that runs scripts")
    with redis_server(tmp_path, "--rename-command", "EVAL", "") as (port, _), said:
        RedisLease(f"redis://127.0.0.1:{port}", TOKEN).leader()


@needs_redis
def test_a_lease_outlives_its_master_and_heals_what_the_replica_missed(tmp_path):
    with sentinels(tmp_path) as (ports, master):
        url = f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/{NAME}"
        with leads(url) as lease:
            assert lease.save(0, b"before")
            master.kill()
            began_s, silent = time.monotonic(), 0
            while time.monotonic() < began_s + 30:
                try:
                    assert lease.save(0, b"before and after")
                    break
                except LeaseUnreachable:
                    silent += 1
                    time.sleep(0.1)
            assert silent and RedisLease(url, TOKEN).take(HERE) == (1, b"before and after")
