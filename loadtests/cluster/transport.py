"""One end of a simulated connection: an asyncio transport over a kernel's buffers.

The upper half is asyncio's contract, as in its selector transports and uvloop: `pause_writing` above the high-water
mark, pausable reading, `eof_received`, half-closed connections, and `connection_lost` exactly once and never within a
call of the protocol. The lower half is the kernel: send and receive buffers (together the window), end of stream,
resets.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import socket
import struct
from asyncio.transports import _FlowControlMixin
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from loadtests.cluster.loop import SimLoop
    from loadtests.cluster.network import Address, Host, Network

Packet = Literal["data", "fin", "rst", "ack"]
DATA: Packet = "data"
FIN: Packet = "fin"
RST: Packet = "rst"
ACK: Packet = "ack"

SEND_BYTES = 65_536
MIN_RECEIVE_BYTES = 1152  # half of what Linux makes of a smaller SO_RCVBUF
WINDOW_BYTES = SEND_BYTES + 131_072
"""The kernels' buffers of one direction: 64 KiB to send and 128 KiB received, Linux' initial sizes."""
RESETS = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: close sends a reset."""
TCP_INFO = getattr(socket, "TCP_INFO", 11)  # Linux
READ_BYTES = 262_144
"""The most bytes of one read, as in uvloop and asyncio."""


class SimSocket:
    """A transport's socket. Only SO_LINGER without time and SO_RCVBUF have an effect; it tells of TCP_INFO."""

    family = socket.AF_INET

    def __init__(self, transport: SimTransport, sockname: Address, peername: Address) -> None:
        self._transport = transport
        self._sockname, self._peername = sockname, peername

    def getsockname(self) -> Address:
        return self._sockname

    def getpeername(self) -> Address:
        return self._peername

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if level == socket.SOL_SOCKET and option == socket.SO_LINGER:
            self._transport.resets = value == RESETS
        elif level == socket.SOL_SOCKET and option == socket.SO_RCVBUF:
            self._transport.peer.window = SEND_BYTES + max(int(value), MIN_RECEIVE_BYTES)

    def getsockopt(self, level: int, option: int, size: int = 0) -> bytes:
        """A `tcp_info` in which only `tcpi_last_data_recv` is set. Raises OSError for any other option."""
        if (level, option) != (socket.IPPROTO_TCP, TCP_INFO):
            raise OSError(errno.ENOPROTOOPT, "Protocol not available")
        transport = self._transport
        ago_ms = int((transport.loop.simulation.now - transport.last_data_at) * 1000)
        return struct.pack("=52xI48x", ago_ms)[:size]

    def fileno(self) -> int:
        return -1


class SimTransport(_FlowControlMixin):
    """One end. `kernel_*` are actions of the operating system, even for a stopped process."""

    def __init__(
        self, loop: SimLoop, network: Network, number: int, host: Host, peername: Address, sockname: Address
    ) -> None:
        extra = {"peername": peername, "sockname": sockname, "socket": SimSocket(self, sockname, peername)}
        super().__init__(extra, loop)
        self.loop = loop
        self.host = host
        self.number = number
        self.peer: SimTransport = self
        self.last_arrival = 0.0
        self.last_data_at = 0.0
        self.opaque = False  # its bytes are not digested
        self.silent = False  # half-open: nothing gets through, and neither end knows
        self.window = network.window_bytes
        self.resets = False  # when it is closed, in every case
        self._network = network
        self._context = contextvars.copy_context()
        self._protocol: Any = None
        self._buffered = False
        # the process's half
        self._to_send = bytearray()
        self._eof = self._closing = False
        self._lost = 0  # writes since the connection was lost
        self._paused = False
        self._reading = False  # a read is scheduled
        # the kernel's half
        self._unread: deque[bytes] = deque()
        self._on_the_way = 0  # bytes sent and not read by the other process
        self._fin_sent = self._fin_came = self._fin_delivered = False
        self._error: OSError | None = None  # a reset has arrived
        self._closed = False

    def join(self, other: SimTransport) -> None:
        self.peer, other.peer = other, self

    def begin(self, protocol: asyncio.BaseProtocol, made: asyncio.Future[None] | None = None) -> None:
        """Give it to the process. Earlier data is read after `connection_made`; `made` is resolved after that."""
        self._context = contextvars.copy_context()
        self.set_protocol(protocol)
        self._soon(self._made, made)

    def _made(self, made: asyncio.Future[None] | None) -> None:
        self._protocol.connection_made(self)
        self._read_soon()
        if made is not None and not made.done():
            made.set_result(None)

    def _soon(self, callback: Any, *arguments: Any) -> None:
        self.loop.call_soon(callback, *arguments, context=self._context)

    # asyncio's transport

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._protocol)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._closing and not self._paused

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused and not self._closing:
            self._paused = False
            self._read_soon()

    def get_write_buffer_size(self) -> int:
        return len(self._to_send)

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data:
            return
        if self._lost:
            self._lost += 1
            return
        if self._error is not None:
            self._force_close(self._error)
            return
        if self._to_send:
            self._to_send += data
        else:
            room = self.window - self._on_the_way
            if len(data) <= room:
                self._carry(bytes(data))
                return
            if room > 0:
                self._carry(bytes(data[:room]))
                data = data[room:]
            self._to_send += data
        self._maybe_pause_protocol()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if self._closing or self._eof:
            return
        self._eof = True
        if not self._to_send:
            self._send_fin()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._to_send:
            self._lost += 1
            self._soon(self._report_lost, None)

    def abort(self) -> None:
        self._force_close(None)

    def _force_close(self, error: BaseException | None) -> None:
        if self._lost:
            return
        self._to_send.clear()
        self._closing = True
        self._lost += 1
        self._soon(self._report_lost, error)

    def _report_lost(self, error: BaseException | None) -> None:
        try:
            if self._protocol is not None:
                self._protocol.connection_lost(error)
        finally:
            self.kernel_close()

    # Sending

    def _carry(self, data: bytes) -> None:
        self._on_the_way += len(data)
        self._network.send(self, DATA, data)

    def _send_fin(self) -> None:
        if not self._fin_sent:
            self._fin_sent = True
            self._network.send(self, FIN)

    def _write_ready(self) -> None:
        if self._lost or not self._to_send:
            return
        room = self.window - self._on_the_way
        if room > 0:
            data = bytes(self._to_send[:room])
            del self._to_send[:room]
            self._carry(data)
        self._maybe_resume_protocol()
        if not self._to_send:
            if self._closing:
                self._lost += 1
                self._soon(self._report_lost, None)
            elif self._eof:
                self._send_fin()

    # Receiving

    def arrive(self, kind: Packet, data: bytes) -> None:
        """In the kernel: a packet of the other end arrives."""
        if self._closed:
            if kind == DATA:
                self._network.send(self, RST)
            return
        if kind == DATA:
            self._unread.append(data)
            self.last_data_at = self._network.simulation.now
        elif kind == FIN:
            self._fin_came = True
        elif kind == RST:
            self._error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            if self._to_send:
                self._soon(self._force_close, self._error)
        elif self._to_send:
            self._soon(self._write_ready)
        if kind != ACK:
            self._read_soon()

    def _read_soon(self) -> None:
        something = self._unread or self._error is not None or (self._fin_came and not self._fin_delivered)
        if something and not self._reading and not self._paused and self._protocol is not None:
            self._reading = True
            self._soon(self._read_ready)

    def _read_ready(self) -> None:
        self._reading = False
        if self._paused or self._closing or self._lost:
            return
        if self._unread:
            self._hand_over(self._take())
            self._read_soon()
        elif self._error is not None:
            self._force_close(self._error)
        elif self._fin_came and not self._fin_delivered:
            self._fin_delivered = True
            try:
                keep_open = self._protocol.eof_received()
            except Exception as error:
                self._fatal("eof_received", error)
                return
            if not keep_open:
                self.close()

    def _take(self) -> bytes:
        """One read: all data, or by chance a part of it."""
        unread = self._unread
        data = unread.popleft() if len(unread) == 1 else b"".join(unread)
        unread.clear()
        limit = READ_BYTES
        chance = self._network.simulation.rng
        if self._network.short_reads and not self.opaque and chance.random() < self._network.short_reads:
            limit = chance.randint(1, len(data))
        if len(data) > limit:
            unread.append(data[limit:])
            data = data[:limit]
        peer = self.peer
        peer._on_the_way -= len(data)
        if peer._to_send and not peer._closed:
            self._network.send(self, ACK)
        return data

    def _hand_over(self, data: bytes) -> None:
        protocol = self._protocol
        try:
            if not self._buffered:
                protocol.data_received(data)
                return
            while data:
                buffer = protocol.get_buffer(len(data))
                count = min(len(buffer), len(data))
                buffer[:count] = data[:count]
                data = data[count:]
                protocol.buffer_updated(count)
                if data and (self._paused or self._closing):
                    self._unread.appendleft(data)
                    self.peer._on_the_way += len(data)
                    return
        except Exception as error:
            self._fatal("data_received", error)

    def _fatal(self, call: str, error: Exception) -> None:
        """A call of the protocol has failed: report it and end the connection, as real loops do."""
        self.loop.call_exception_handler(
            {
                "message": f"Fatal error: protocol.{call}() call failed.",
                "exception": error,
                "transport": self,
                "protocol": self._protocol,
            }
        )
        self._force_close(error)

    # The kernel

    def kernel_close(self) -> None:
        """Close the socket, by its process or with it. Unread bytes cause a reset."""
        if self._closed:
            return
        self._closed = True
        self._network.connections.pop(self, None)
        if self._error is None:
            if self._unread or self.resets:
                self._network.send(self, RST)
            else:
                self._send_fin()
        self._unread.clear()

    def kernel_abort(self) -> None:
        if not self._closed:
            self._closed = True
            self._network.connections.pop(self, None)
            self._network.send(self, RST)
            self._unread.clear()

    def reset(self) -> None:
        """A fault: a middlebox resets the connection at both ends."""
        for end in (self, self.peer):
            if not end._closed:
                end.arrive(RST, b"")

    def __repr__(self) -> str:
        state = "closed" if self._closed else "closing" if self._closing else "open"
        return f"<SimTransport #{self.number} of {self.host.name} {state}, {len(self._to_send)} to send>"
