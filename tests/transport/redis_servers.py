"""Real Redis or Valkey servers, and Sentinels, for tests; a test is skipped where none is on PATH."""

import shutil
import subprocess
from contextlib import ExitStack, contextmanager

import pytest
from processes import free_port, wait_until

SERVER = shutil.which("redis-server") or shutil.which("valkey-server")
needs_redis = pytest.mark.skipif(SERVER is None, reason="no redis-server or valkey-server on PATH: ./run setup redis")
NAME = "jobs"


@contextmanager
def redis_server(folder, *words, port=None):
    """Run a server on loopback, without a disk: yield its port and its process."""
    port = port or free_port()
    command = [SERVER, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: answers(port)), f"no server at port {port}"
        yield port, process
    finally:
        process.kill()
        process.wait()


def answers(port, *words):
    """Return what the server at `port` answers to the command `words`, PING without; False where it does not."""
    import redis

    try:
        with redis.Redis(port=port, socket_timeout=1) as client:
            return client.execute_command(*(words or ["PING"]))
    except (redis.AuthenticationError, redis.ResponseError):
        return True
    except redis.RedisError:
        return False


@contextmanager
def sentinels(folder):
    """Run a master, its replica, and three Sentinels that fail over in a second: yield their ports and the master."""
    with ExitStack() as stack:
        port, master = stack.enter_context(redis_server(folder))
        replica, _ = stack.enter_context(redis_server(folder, "--replicaof", f"127.0.0.1 {port}"))
        assert wait_until(lambda: answers(replica, "ROLE")[3] == b"connected")
        ports = []
        for number in range(3):
            own = free_port()
            path = folder / f"sentinel{number}.conf"
            path.write_text(
                f"port {own}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor {NAME} 127.0.0.1 {port} 2\n"
                f"sentinel down-after-milliseconds {NAME} 1000\nsentinel failover-timeout {NAME} 5000\n"
            )
            process = subprocess.Popen([SERVER, str(path), "--sentinel"], stdout=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            ports.append(own)
        known = {"slaves": 1, "sentinels": len(ports)}
        assert wait_until(lambda: all(map(_knows, ports, [known] * len(ports)))), "the Sentinels do not know each other"
        yield ports, master


def _knows(port, expected):
    """Return whether the Sentinel at `port` knows as many replicas and Sentinels as `expected`."""
    found = answers(port, "INFO", "sentinel")
    return bool(found) and expected.items() <= found["master0"].items()
