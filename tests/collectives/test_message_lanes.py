"""No owner of messages receives those of another: the user's tags, the mailbox, plans, and lanterne's own lanes."""

import numpy as np

import lanterne
from lanterne.collectives import message_lanes as lanes
from lanterne.collectives.message_lanes import Lane


def test_every_lane_has_one_owner():
    owners = [lanes.CONTROL_LANE, lanes.AGREEMENT_LANE, *lanes.USER_LANES, lanes.HEADER_LANE, lanes.DATA_LANE]
    owners += [*Lane, *lanes.PLAN_LANES, *lanes.BOARD_LANES]
    assert len(set(owners)) == len(owners)


def test_messages_of_lanternes_own_pass_receives_of_every_user_tag():
    tags = range(len(lanes.USER_LANES))

    def run(comm):
        peer = 1 - comm.rank
        users = [np.zeros(1) for _ in tags]
        waiting = [comm.start_recv(users[tag], peer, tag=tag) for tag in tags]
        own = [np.zeros(1) for _ in Lane]
        for lane, array in zip(Lane, own, strict=True):
            comm.send_recv(np.full(1, 1000.0 + lane), array, peer, tag=lane)
        for tag in tags:
            comm.send(np.full(1, float(tag)), peer, tag=tag)
        for request in waiting:
            request.wait()
        return [each[0] for each in users], [each[0] for each in own]

    expected = [float(tag) for tag in tags], [1000.0 + lane for lane in Lane]
    assert lanterne.spawn(2, run, timeout_s=20.0) == [expected] * 2
