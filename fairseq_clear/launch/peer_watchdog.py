"""TCP connections through which the workers of a run notice within a minute that one of them is lost.

torchrun's elastic agent does not replace this module: after the loss of a node, the agents of the other nodes continued for
90 seconds and more while their workers were outside any collective (measured with torch 2.13).
"""

import logging
import os
import secrets
import selectors
import socket
import threading
from contextlib import suppress

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)

EXIT_LOST = 76  # a worker was killed, or its node is lost
SECONDS_TO_CONNECT = 60.0
SECONDS_TO_SETTLE = 3.0
# The kernel sends keep-alive probes after 10 idle seconds, 5 seconds apart, and gives up after 4: 30 seconds for a lost node.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}


class PeerWatchdog:
    """One TCP connection between the first worker and each other worker, on which a worker announces its exit code.

    A NCCL collective waits for a lost worker until its timeout. The timeout must be long, because workers also wait while the
    first one validates and saves. The kernel keeps a connection alive for a busy process, drops it for a lost node, and closes
    it for a killed process. If a connection ends without an exit code, this process exits with code 76; if it ends with a code
    other than 0, this process exits with that code. An error of one worker therefore ends all of them.
    """

    def __init__(self, host: str, device: torch.device) -> None:
        """Connect the workers to the first one, at ``host``. A collective on ``device``: every worker must call it."""
        self.rank, self.peers = dist.get_rank(), dict[socket.socket, str]()
        server = _listen(dist.get_world_size()) if self.rank == 0 else None
        opened = (server.getsockname()[1], secrets.randbits(62)) if server else (0, 0)
        place = torch.tensor(opened, device=device)
        dist.broadcast(place, 0)
        port, secret = place.tolist()
        greeting = secret.to_bytes(8, "big")  # of a worker of this run, unlike a port scanner
        if server:
            server.settimeout(SECONDS_TO_CONNECT)
            while len(self.peers) < dist.get_world_size() - 1:
                peer, _ = server.accept()
                peer.settimeout(SECONDS_TO_CONNECT)
                if _receive(peer, len(greeting)) == greeting:
                    self.peers[peer] = f"worker {int.from_bytes(_receive(peer, 4), 'big')}"
                else:
                    peer.close()
            server.close()
        else:
            peer = socket.create_connection((host, port), SECONDS_TO_CONNECT)
            peer.sendall(greeting + self.rank.to_bytes(4, "big"))
            self.peers[peer] = "worker 0"
        for peer in self.peers:
            _keep_alive(peer)
        self._thread = threading.Thread(target=self._watch, name="peer watchdog", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Wait after an error of this process, so that it exits with code 76 if the loss of another worker was the cause."""
        self._thread.join(SECONDS_TO_SETTLE)

    def leave(self, code: int) -> None:
        """Tell the other workers that this one exits, and its exit code."""
        for peer in list(self.peers):
            with suppress(OSError):
                peer.sendall(bytes([code & 0xFF]))

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for connection in self.peers:
                selector.register(connection, selectors.EVENT_READ, connection)
            while selector.get_map():
                for key, _ in selector.select():
                    peer: socket.socket = key.data
                    word = _receive(peer, 1)
                    selector.unregister(peer)
                    if word == b"\0":
                        continue
                    name = self.peers.pop(peer)
                    if word:
                        self._end(word[0], f"{name} ended with exit code {word[0]}, so this one does too")
                    else:
                        self._end(EXIT_LOST, f"{name} is lost: it was killed, or its node is down")

    def _end(self, code: int, why: str) -> None:
        logger.error("worker %d: %s", self.rank, why)
        self.leave(code)
        logging.shutdown()
        os._exit(code)  # the main thread may be blocked in a collective


def _listen(backlog: int) -> socket.socket:
    """A server for IPv4, and for IPv6 where the machine has it."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=backlog, dualstack_ipv6=both)


def _receive(peer: socket.socket, size: int) -> bytes:
    """Receive ``size`` bytes; fewer if the connection has ended."""
    received = b""
    with suppress(OSError):
        while len(received) < size and (more := peer.recv(size - len(received))):
            received += more
    return received


def _keep_alive(peer: socket.socket) -> None:
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
