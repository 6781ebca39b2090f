"""The store's Members without sockets: ranks, guards and those who wait are connections that are asked and told."""

from types import SimpleNamespace

from lanterne.transport.store.decision_log import Decisions
from lanterne.transport.store.handler import Connection, Refusal
from lanterne.transport.store.membership.members import Members
from lanterne.transport.store.terms import Terms
from lanterne.transport.wire import Kind, pack_ranks, unpack_ranks

TERMS = Terms("1.0", "tcp", "a model")


class World:
    """The store of a job of three ranks, of which rank 1 has died; or of those `ranks` that join."""

    term, machine = 0, SimpleNamespace(now_s=lambda: 0.0)

    def __init__(self, died=(1,), ranks=range(3), lease=None):
        self.routes, self.timers = {}, []
        self.answers, self.refusals, self.notices = {}, {}, []
        self.members = Members(self, Decisions(self, lease, 0, lease.decided if lease else b""))
        self.members.route = None
        self.ranks = {rank: self.client(f"rank {rank}") for rank in ranks}
        for rank, client in self.ranks.items():
            self.ask(client, Kind.JOIN, rank, 3)
        for rank in died:
            self.close(self.ranks[rank])
        self.answers.clear()

    # -- what Members need of the store

    def route(self, kind, types, function):
        self.routes[kind] = function

    def after(self, delay_s, function):
        if delay_s:
            self.timers.append(function)
        else:
            function()

    def reply(self, connection, request_id, fields=()):
        assert connection.name not in self.answers, f"{connection.name} is answered twice"
        self.answers[connection.name] = list(fields)

    def send(self, connection, kind, request_id, fields=()):
        if kind == Kind.ERROR:
            self.refusals[connection.name] = fields[0].decode()
        else:
            self.notices.append((connection.name, kind, list(fields)))

    # -- what happens

    def client(self, name):
        class Named(Connection):
            pass

        client = Named(None)
        client.name = name
        return client

    def ask(self, client, kind, *fields):
        try:
            answer = self.routes[kind](client, 1, *fields)
        except Refusal as error:
            self.refusals[client.name] = str(error)
            return
        if answer is not None:
            self.reply(client, 1, answer)

    def close(self, client):
        self.members.connection_closed(client)

    def apply(self, name, place, terms=TERMS, number=-1):
        client = self.client(name)
        self.ask(client, Kind.APPLY, place, number, terms.pack(), 60_000)
        return client

    def grow(self, rank, ranks=(0, 2), terms=TERMS, key=b"grow"):
        self.ask(self.ranks[rank], Kind.GROW, key, pack_ranks(ranks), terms.pack(), 1000)


class Guarded(World):
    """The store of a job of three ranks below guards; those of `others` see to more processes."""

    def __init__(self, others=0):
        super().__init__(died=())
        self.guards = {number: self.client(f"guard {number}") for number in range(3 + others)}
        for number, guard in self.guards.items():
            self.ask(guard, Kind.GUARD, number, 3, 0)
        self.answers.clear()

    def close(self, client):
        """Its init has failed, and its guard has nothing to say."""
        super().close(client)
        self.timers.pop()()

    def give_up(self, rank):
        self.close(self.ranks[rank])

    def end(self, rank, code=1):
        self.ask(self.guards[rank], Kind.ENDED, rank, code, b"failed")
        del self.answers[f"guard {rank}"]

    def begin_again(self, rank, place=None):
        return self.apply(f"again {rank}", rank if place is None else place, number=rank)

    @property
    def entered(self):
        """By process: (epoch, world size, rank, newcomers)."""
        found = {}
        for name, answer in self.answers.items():
            if name.startswith("again"):
                size, rank, *newcomers = unpack_ranks(answer[2])
                found[int(name[6:])] = answer[0], size, rank, newcomers
        return found
