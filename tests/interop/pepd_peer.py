#!/usr/bin/env python3
"""A peer of pepd, written from docs/protocol.md alone: it calls a hub, and checks what it gets.

    tests/interop/pepd_peer.py --key FILE --psk FILE --hub-key BASE64 --hub ADDRESS:PORT
                               --server ADDRESS:PORT --client ADDRESS

The server, which the hub reaches, returns what it gets. The script exits with 1 at the first
answer that differs from the document. Names are those of the document.
"""

import argparse
import base64
import hashlib
import hmac
import ipaddress
import os
import socket
import struct
import sys
import time

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

# Datagrams
VERSION = 1
INITIATION, RESPONSE, COOKIE, CONFIRMATION, DATA = 1, 2, 3, 4, 5
TERMS_LEN = 48
INITIATION_LEN = 133 + TERMS_LEN
RESPONSE_LEN = 73 + TERMS_LEN
CONFIRMATION_NUMBER = 2**64 - 2
CONTINUES = 0x01
# Frames
PADDING, REPORT, SEGMENT, PROBE, MTU_PROBE, MTU_ACK, CLOSE = 0, 1, 2, 3, 4, 5, 6
PATH_CHALLENGE, PATH_RESPONSE, CODED = 7, 8, 0x0A
# Parts
OPEN, DATA_REST, DATA_COUNTED, DATA_END, DATA_COUNTED_END = 0x40, 0x42, 0x43, 0x44, 0x45
RESET, CREDIT, SESSION_CREDIT, RECLASS = 0x46, 0x47, 0x48, 0x49
BULK = 2

PATIENCE = 20.0
HEADERS = 28  # of IPv4 and UDP


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def step(text):
    print(text, flush=True)


# Variable-length integers (RFC 9000, section 16)


def number(value):
    for bits, length in ((6, 1), (14, 2), (30, 4), (62, 8)):
        if value < 1 << bits:
            return (value | (length.bit_length() - 1) << (8 * length - 2)).to_bytes(length, "big")
    raise ValueError(value)


class Reader:
    """The rest of a packet."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def __bool__(self):
        return self.at < len(self.data)

    def take(self, count):
        check(self.at + count <= len(self.data), "the packet ends within a frame")
        self.at += count
        return self.data[self.at - count : self.at]

    def fixed(self, bits):
        return int.from_bytes(self.take(bits // 8), "big")

    def number(self):
        first = self.fixed(8)
        length = 1 << (first >> 6)
        rest = int.from_bytes(self.take(length - 1), "big")
        return (first & 0x3F) << (8 * (length - 1)) | rest

    def rest(self):
        return self.take(len(self.data) - self.at)


# Cryptography


def sha256(data):
    return hashlib.sha256(data).digest()


def hmac256(key, data):
    return hmac.new(key, data, hashlib.sha256).digest()


def nonce(value):
    return bytes(4) + struct.pack(">Q", value)


def raw(public):
    return public.public_bytes(Encoding.Raw, PublicFormat.Raw)


class Noise:
    """The initiator of Noise_IKpsk2_25519_AESGCM_SHA256."""

    NAME = b"Noise_IKpsk2_25519_AESGCM_SHA256"
    PROLOGUE = b"pepd tunnel"

    def __init__(self, private, responder, psk):
        self.static = X25519PrivateKey.from_private_bytes(private)
        self.ephemeral = X25519PrivateKey.generate()
        self.responder, self.psk = responder, psk
        # The name has 32 bytes, as many as a hash.
        self.h = self.ck = self.NAME
        self.key, self.count = None, 0
        self.mix_hash(self.PROLOGUE)
        self.mix_hash(responder)

    def mix_hash(self, data):
        self.h = sha256(self.h + data)

    def hkdf(self, material, count):
        root, out = hmac256(self.ck, material), [b""]
        for i in range(count):
            out.append(hmac256(root, out[-1] + bytes([i + 1])))
        return out[1:]

    def mix_key(self, material):
        self.ck, self.key = self.hkdf(material, 2)
        self.count = 0

    def exchange(self, private, public):
        self.mix_key(private.exchange(X25519PublicKey.from_public_bytes(public)))

    def seal(self, text):
        sealed = AESGCM(self.key).encrypt(nonce(self.count), text, self.h)
        self.count += 1
        self.mix_hash(sealed)
        return sealed

    def open(self, sealed):
        text = AESGCM(self.key).decrypt(nonce(self.count), sealed, self.h)
        self.count += 1
        self.mix_hash(sealed)
        return text

    def first(self, payload):
        ephemeral = raw(self.ephemeral.public_key())
        self.mix_hash(ephemeral)
        self.mix_key(ephemeral)
        self.exchange(self.ephemeral, self.responder)
        static = self.seal(raw(self.static.public_key()))
        self.exchange(self.static, self.responder)
        return ephemeral + static + self.seal(payload)

    def second(self, message):
        """Returns the payload, and the keys of the initiator and of the responder."""
        ephemeral = message[:32]
        self.mix_hash(ephemeral)
        self.mix_key(ephemeral)
        self.exchange(self.ephemeral, ephemeral)
        self.exchange(self.static, ephemeral)
        self.ck, hashed, self.key = self.hkdf(self.psk, 3)
        self.mix_hash(hashed)
        self.count = 0
        payload = self.open(message[32:])
        return payload, *self.hkdf(b"", 2)


# Terms


class Terms:
    """What one end accepts and states in the handshake."""

    FORM = ">BBQQHIQQQ"

    def __init__(self, session=None, next_number=0):
        self.version, self.session, self.next = VERSION, session, next_number
        self.packet_max, self.streams_max = 1400, 100
        self.stream_credit = self.session_credit = 1 << 30
        self.rate = 20_000_000

    def emit(self):
        flags = CONTINUES if self.session is not None else 0
        fields = (self.version, flags, self.session or 0, self.next, self.packet_max)
        credit = (self.stream_credit, self.session_credit)
        out = struct.pack(self.FORM, *fields, self.streams_max, *credit, self.rate)
        return out.ljust(TERMS_LEN, b"\0")

    @classmethod
    def parse(cls, data):
        terms = cls()
        fields = struct.unpack_from(cls.FORM, data)
        terms.version, flags, session, terms.next, terms.packet_max = fields[:5]
        terms.streams_max, terms.stream_credit, terms.session_credit, terms.rate = fields[5:]
        terms.session = session if flags & CONTINUES else None
        return terms


# The session


class Keys:
    """Keys of one handshake."""

    def __init__(self, index, hub_index, ours, theirs):
        self.index, self.hub_index = index, hub_index
        self.ours, self.theirs = AESGCM(ours), AESGCM(theirs)


class Stream:
    """A stream opened by this end: bytes received, and the credit for sending."""

    def __init__(self, credit):
        self.pieces, self.length, self.credit, self.sent = {}, None, credit, 0

    def data(self):
        """Returns the bytes that have arrived in order."""
        out, position = b"", 0
        for start in sorted(self.pieces):
            if start > position:
                break
            out += self.pieces[start][position - start :]
            position = len(out)
        return out


class Peer:
    """This end: the initiator, which calls a hub."""

    def __init__(self, private, psk, hub_key, hub):
        self.private, self.psk, self.hub_key, self.hub = private, psk, hub_key, hub
        self.socket = self.new_socket()
        self.cookie = None
        self.session = None
        self.keys = {}
        self.current = None
        self.origin = time.monotonic()
        # Sending
        self.next_packet, self.next_segment, self.next_stream = 0, 0, 0
        self.unacknowledged = {}
        self.streams = {}
        # Receiving
        self.highest, self.arrived = None, 0
        self.packets, self.bytes = set(), 0
        self.below, self.segments, self.gaps = 0, set(), []
        self.answers_challenges = True
        self.challenges, self.hub_keys_seen, self.closed = [], set(), None

    @staticmethod
    def new_socket():
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def clock(self):
        return int((time.monotonic() - self.origin) * 1e6) + 1

    # Handshake

    def initiation(self):
        index = os.urandom(4)
        noise = Noise(self.private, self.hub_key, self.psk)
        terms = Terms(self.session, self.next_packet if self.session is not None else 0)
        message = bytes([INITIATION]) + index + noise.first(terms.emit())
        mac1 = hmac256(sha256(b"pepd mac1" + self.hub_key), message)[:16]
        message += mac1
        message += hmac256(self.cookie, message)[:16] if self.cookie else bytes(16)
        check(len(message) == INITIATION_LEN, "length of the initiation")
        return message, index, noise, mac1

    def shake_hands(self):
        """Calls the hub until it answers. Returns the hub's terms."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            message, index, noise, mac1 = self.initiation()
            self.socket.sendto(message, self.hub)
            again = time.monotonic() + 1
            while (data := self.receive(again)) is not None:
                if data[0] == COOKIE and data[1:5] == index:
                    key = sha256(b"pepd cookie" + self.hub_key)
                    self.cookie = AESGCM(key).decrypt(data[5:17], data[17:], mac1)
                    break
                if data[0] == RESPONSE and data[5:9] == index:
                    return self.on_response(data, index, noise)
                self.on_datagram(data)
        raise AssertionError("the hub does not answer")

    def on_response(self, data, index, noise):
        check(len(data) == RESPONSE_LEN, "length of the response")
        own = hmac256(sha256(b"pepd mac1" + raw(noise.static.public_key())), data[:-16])
        check(own[:16] == data[-16:], "mac1 of the response")
        payload, ours, theirs = noise.second(data[9:-16])
        terms = Terms.parse(payload)
        check(terms.version == VERSION, f"version {terms.version}")
        check(terms.session in (None, self.session), "a session of another name")
        if terms.session is None:
            self.session = struct.unpack(">Q", noise.h[:8])[0]
        self.current = Keys(index, data[1:5], ours, theirs)
        self.keys[index] = self.current
        self.confirm()
        return terms

    def confirm(self):
        header = bytes([CONFIRMATION]) + self.current.hub_index
        tag = self.current.ours.encrypt(nonce(CONFIRMATION_NUMBER), b"", header)
        self.socket.sendto(header + tag, self.hub)

    # Sending

    def send(self, packet):
        header = bytes([DATA]) + self.current.hub_index
        header += struct.pack(">I", self.next_packet & 0xFFFFFFFF)
        sealed = self.current.ours.encrypt(nonce(self.next_packet), packet, header)
        self.next_packet += 1
        self.socket.sendto(header + sealed, self.hub)
        return len(header + sealed)

    def send_segment(self, parts):
        self.unacknowledged[self.next_segment] = (0.0, parts)
        self.next_segment += 1

    def send_due(self):
        """Sends segments that nothing has acknowledged for 0.3 s, a few at a time."""
        now = time.monotonic()
        late = [seq for seq, (at, _) in self.unacknowledged.items() if now - at > 0.3]
        for seq in late[:16]:
            parts = self.unacknowledged[seq][1]
            self.unacknowledged[seq] = (now, parts)
            self.send(bytes([SEGMENT]) + struct.pack(">I", seq & 0xFFFFFFFF) + parts)

    def report(self):
        out = bytes([REPORT, 0 if self.highest is None else 1])
        if self.highest is not None:
            out += number(self.highest) + number(self.arrived) + number(self.clock() - self.arrived)
        out += number(len(self.packets)) + number(self.bytes) + number(self.below)
        missing = sum(gap[1] for gap in self.gaps)
        out += number(len(self.packets) + missing) + number(missing) + number(len(self.gaps))
        return out + self.ranges() + self.listed_gaps()

    def ranges(self):
        out, count, at = b"", 0, self.below
        for seq in sorted(self.segments):
            if seq >= at and seq - 1 not in self.segments and count < 60:
                end = seq
                while end + 1 in self.segments:
                    end += 1
                first = count == 0
                out += number(seq - at - (0 if first else 1)) + number(end - seq)
                at, count = end + 1, count + 1
        return number(count) + out

    def listed_gaps(self):
        newest = self.gaps[-16:]
        out, before_number, before_at = number(len(newest)), self.highest or 0, self.arrived
        for before, missing, at, after_at in newest:
            out += self.signed(before - before_number) + number(missing - 1)
            out += self.signed(at - before_at) + self.signed(after_at - at)
            before_number, before_at = before, at
        return out

    @staticmethod
    def signed(value):
        return number(2 * value if value >= 0 else -2 * value - 1)

    # Receiving

    def receive(self, until):
        left = until - time.monotonic()
        if left <= 0:
            return None
        self.socket.settimeout(left)
        try:
            return self.socket.recv(9216)
        except TimeoutError:
            return None

    def on_datagram(self, data):
        if data[0] != DATA:
            return
        keys = self.keys.get(data[1:5])
        check(keys is not None, "a packet for an index that was never given")
        low, expected = struct.unpack(">I", data[5:9])[0], (self.highest or 0) + 1
        packet_number = expected + (low - expected + 2**31) % 2**32 - 2**31
        try:
            packet = keys.theirs.decrypt(nonce(packet_number), data[9:], data[:9])
        except InvalidTag:
            raise AssertionError(f"packet {packet_number} is not sealed as it should be") from None
        check(packet_number not in self.packets, "a packet number comes twice")
        self.hub_keys_seen.add(keys.index)
        self.note(packet_number, len(data))
        self.on_frames(Reader(packet))

    def note(self, packet_number, length):
        now = self.clock()
        self.packets.add(packet_number)
        self.bytes += length
        if self.highest is None or packet_number > self.highest:
            if self.highest is not None and packet_number > self.highest + 1:
                missing = packet_number - self.highest - 1
                self.gaps.append((self.highest, missing, self.arrived, now))
            self.highest, self.arrived = packet_number, now

    def on_frames(self, packet):
        while packet:
            kind = packet.fixed(8)
            if kind == REPORT:
                self.on_report(packet)
            elif kind == MTU_PROBE:
                self.send(bytes([MTU_ACK]) + packet.take(2))
            elif kind == MTU_ACK:
                packet.take(2)
            elif kind == PATH_CHALLENGE:
                self.challenges.append(packet.take(8))
                if self.answers_challenges:
                    self.send(bytes([PATH_RESPONSE]) + self.challenges[-1])
            elif kind == CLOSE:
                code = packet.fixed(8)
                self.closed = (code, packet.take(packet.number()).decode())
            elif kind == SEGMENT:
                self.on_segment(packet.fixed(32), Reader(packet.rest()))
            elif kind == CODED:
                packet.take(1)
                # A sliding window's data packet has five bytes before its content, a repair packet
                # helps a receiver that lacks others.
                if packet.fixed(8) == 0x20:
                    packet.take(4)
                    self.on_frames(Reader(packet.rest()))
                packet.rest()
            else:
                check(kind in (PADDING, PROBE), f"frame {kind:#x} is not in the document")

    def on_report(self, packet):
        flags = packet.fixed(8)
        check(flags & ~0x0F == 0, f"flags {flags:#x} of a report")
        if flags & 1:
            highest, _, _ = packet.number(), packet.number(), packet.number()
            check(highest < self.next_packet, "a report about a packet that was never sent")
        packet.number(), packet.number()
        if flags & 2:
            packet.number()
        below = packet.number()
        check(below <= self.next_segment, "a report about a segment that was never sent")
        if flags & 4:
            packet.number()
        if flags & 8:
            packet.number()
        packet.number(), packet.number(), packet.number()
        has = set()
        at = below
        for i in range(packet.number()):
            start = at + packet.number() + (0 if i == 0 else 1)
            at = start + packet.number() + 1
            has.update(range(start, at))
        for _ in range(4 * packet.number()):
            packet.number()
        for seq in [seq for seq in self.unacknowledged if seq < below or seq in has]:
            del self.unacknowledged[seq]

    def on_segment(self, low, parts):
        seq = self.below + (low - self.below + 2**31) % 2**32 - 2**31
        if seq < self.below or seq in self.segments:
            return
        self.segments.add(seq)
        while self.below in self.segments:
            self.segments.remove(self.below)
            self.below += 1
        while parts:
            self.on_part(parts.fixed(8), parts)

    def on_part(self, kind, parts):
        if kind == SESSION_CREDIT:
            parts.number()
            return
        number_of_stream = parts.number()
        stream = self.streams.get(number_of_stream)
        if kind in (DATA_REST, DATA_COUNTED, DATA_END, DATA_COUNTED_END):
            position = parts.number()
            counted = kind in (DATA_COUNTED, DATA_COUNTED_END)
            data = parts.take(parts.number()) if counted else parts.rest()
            if stream is not None:
                stream.pieces[position] = max(stream.pieces.get(position, b""), data, key=len)
                if kind in (DATA_END, DATA_COUNTED_END):
                    stream.length = position + len(data)
        elif kind == OPEN:
            # The hub's flow inventory: a stream that both ends finish without a byte.
            check(number_of_stream % 2 == 1, "a stream of the responder has an odd number")
            parts.take(1)
            parts.take(parts.number())
            self.send_segment(bytes([DATA_COUNTED_END]) + number(number_of_stream) + bytes(2))
        elif kind == RESET:
            code = parts.fixed(8)
            raise AssertionError(f"the hub resets stream {number_of_stream} with code {code}")
        elif kind == CREDIT:
            until = parts.number()
            if stream is not None:
                stream.credit = max(stream.credit, until)
        else:
            check(kind == RECLASS, f"part {kind:#x} is not in the document")
            parts.take(1)

    # Doing something

    def run(self, done, what):
        """Sends and receives until a condition holds."""
        end = time.monotonic() + PATIENCE
        while not done():
            check(self.closed is None, f"the hub closes the session: {self.closed}")
            check(time.monotonic() < end, f"{what}: not within {PATIENCE:.0f} s")
            self.send_due()
            self.send(self.report())
            until = time.monotonic() + 0.01
            while (data := self.receive(until)) is not None:
                self.on_datagram(data)

    def stream_header(self, server, client):
        version, flags, dscp, name = 2, 0, 0, b"interop"
        head = bytes([version, flags, dscp, len(name)]) + os.urandom(15) + b"\1"
        ends = b""
        for address, port in (server, client):
            ends += ipaddress.ip_address(address).packed + struct.pack(">H", port)
        return head + ends + name

    @staticmethod
    def inventory():
        """The stream header of a flow inventory without flows."""
        return bytes([2, 32, 0, 0]) + bytes(8)

    def open(self, header, terms):
        name = self.next_stream
        self.next_stream += 2
        self.streams[name] = Stream(terms.stream_credit)
        opening = bytes([OPEN]) + number(name) + bytes([BULK]) + number(len(header)) + header
        self.send_segment(opening)
        return name

    def write(self, name, data, end):
        stream = self.streams[name]
        for at in range(0, max(len(data), 1), 1000):
            piece = data[at : at + 1000]
            last = end and at + 1000 >= len(data)
            kind = DATA_COUNTED_END if last else DATA_COUNTED
            check(stream.sent + len(piece) <= stream.credit, "credit for the data")
            place = number(name) + number(stream.sent) + number(len(piece))
            self.send_segment(bytes([kind]) + place + piece)
            stream.sent += len(piece)

    def echo(self, name, data, end=False):
        """Sends data, and checks that it comes back."""
        stream = self.streams[name]
        before = stream.sent
        self.write(name, data, end)
        self.run(lambda: len(stream.data()) >= stream.sent, "the echo")
        check(stream.data()[before:] == data, "the echo has other bytes")
        if end:
            self.run(lambda: stream.length == stream.sent, "the end of the echo")


# The conversation


def converse(peer, server, client):
    terms = peer.shake_hands()
    check(terms.session is None, "a first handshake begins a session")
    step(f"handshake: session {peer.session:016x}, rate {terms.rate} bit/s")

    inventory = peer.open(peer.inventory(), terms)
    peer.write(inventory, b"", end=True)
    peer.run(lambda: peer.streams[inventory].length == 0, "the end of the flow inventory")
    first = peer.open(peer.stream_header(server, (client, 40001)), terms)
    peer.echo(first, b"hello")
    peer.echo(first, os.urandom(20_000))
    step(f"stream {first}: {peer.streams[first].sent} bytes came back")

    begun, old = peer.session, peer.current
    terms = peer.shake_hands()
    check(terms.session == begun == peer.session, "new keys continue the session")
    check(terms.next > 0, "packet numbers go on")
    peer.echo(first, os.urandom(20_000))
    check(peer.current.index in peer.hub_keys_seen, "the hub sends under the new keys")
    check(peer.current.index != old.index, "an index of its own")
    step(f"new keys: the session goes on, the hub's numbers from {terms.next} on")

    roam(peer, first)

    second = peer.open(peer.stream_header(server, (client, 40002)), terms)
    peer.echo(second, b"another stream", end=True)
    peer.echo(first, b"the end", end=True)
    step("both streams ended in order")
    peer.run(lambda: not peer.unacknowledged, "acknowledgements")
    peer.send(bytes([CLOSE, 0]) + number(3) + b"bye")
    step("closed")


def roam(peer, name):
    """Moves to another address while the hub has much to send, and answers its challenge late."""
    stream = peer.streams[name]
    before, data = stream.sent, os.urandom(40_000)
    peer.write(name, data, end=False)
    while any(at == 0.0 for at, _ in peer.unacknowledged.values()):
        peer.send_due()
    peer.answers_challenges = False
    peer.challenges.clear()
    old, peer.socket = peer.socket, peer.new_socket()
    sent = HEADERS + peer.send(bytes([PROBE]))
    received, end = 0, time.monotonic() + 1
    while (datagram := peer.receive(end)) is not None:
        received += HEADERS + len(datagram)
        peer.on_datagram(datagram)
    check(peer.challenges, "the new address is challenged")
    check(len(set(peer.challenges)) == 1, "a challenge is repeated with its token")
    check(received <= 3 * sent, f"{received} bytes for {sent} to an address without proof")
    step(f"roaming: {len(peer.challenges)} challenges, {received} bytes for {sent} from there")

    peer.answers_challenges = True
    peer.send(bytes([PATH_RESPONSE]) + peer.challenges.pop())
    peer.challenges.clear()
    peer.echo(name, os.urandom(20_000))
    check(stream.data()[before : before + len(data)] == data, "the echo has other bytes")
    check(not peer.challenges, "a proved address is not challenged again")
    old.close()
    step(f"roaming: proved, {stream.sent - before} bytes came back there")


def key(path):
    with open(path, encoding="ascii") as file:
        lines = [line.strip() for line in file]
    return base64.b64decode(next(line for line in lines if line and not line.startswith("#")))


def endpoint(text):
    address, port = text.rsplit(":", 1)
    return address, int(port)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("key", "psk", "hub-key", "hub", "server", "client"):
        parser.add_argument(f"--{name}", required=True)
    words = parser.parse_args()
    hub_key = base64.b64decode(words.hub_key)
    peer = Peer(key(words.key), key(words.psk), hub_key, endpoint(words.hub))
    try:
        converse(peer, endpoint(words.server), words.client)
    except AssertionError as error:
        step(f"mismatch: {error}")
        sys.exit(1)


main()
