#!/usr/bin/env python3
"""A peer of pepd, written from docs/protocol.md alone: it calls a hub, and checks what it gets.

    tests/interop/pepd_peer.py --key FILE --psk FILE --hub-key BASE64 --hub ADDRESS:PORT
                               --server ADDRESS:PORT --client ADDRESS --document FILE

The server, which the hub reaches, returns what it gets. The document, docs/protocol.md, has test
vectors, which the script computes first. It exits with 1 at the first answer that differs from the
document. Names are those of the document.
"""

import argparse
import base64
import copy
import hashlib
import hmac
import ipaddress
import os
import random
import socket
import struct
import sys
import time

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

# Datagrams
VERSION = 2
INITIATION, RESPONSE, COOKIE, CONFIRMATION, DATA = 1, 2, 3, 4, 5
TERMS_LEN = 96
INITIATION_LEN = 229
RESPONSE_LEN = 169
CONFIRMATION_NUMBER = 2**64 - 2
CONTINUES = 0x01
# Frames
PADDING, REPORT, SEGMENT, PROBE, MTU_PROBE, MTU_ACK, CLOSE = 0, 1, 2, 3, 4, 5, 6
PATH_CHALLENGE, PATH_RESPONSE, CODED = 7, 8, 0x0A
LATER_FRAMES = range(0x20, 0x40)
# Flags of a report
HIGHEST, MARKED, FROM, EXTENT, LATER_FIELDS = 0x01, 0x02, 0x04, 0x08, 0x80
# Parts
OPEN, DATA_REST, DATA_COUNTED, DATA_END, DATA_COUNTED_END = 0x40, 0x42, 0x43, 0x44, 0x45
RESET, CREDIT, SESSION_CREDIT, RECLASS, HOLD = 0x46, 0x47, 0x48, 0x49, 0x4A
LATER_PARTS = range(0x60, 0x80)
BULK = 2

PATIENCE = 20.0
HEADERS = 28  # of IPv4 and UDP
LEAVE_OUT = 50  # of so many packet numbers, this end leaves out one on average


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


def later(kinds):
    """Returns a frame or part of a later version."""
    content = os.urandom(random.randrange(8))
    return bytes([random.choice(kinds)]) + number(len(content)) + content


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

    def signed(self):
        value = self.number()
        return value // 2 if value % 2 == 0 else -(value + 1) // 2

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

    def __init__(self, private, responder, psk, ephemeral=None):
        self.static = X25519PrivateKey.from_private_bytes(private)
        self.ephemeral = X25519PrivateKey.from_private_bytes(ephemeral or os.urandom(32))
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


# Handshake


class Terms:
    """What one end accepts and states in the handshake."""

    FORM = ">BBQQHIQQQQQ"

    def __init__(self, session=None, next_number=0, counter=0):
        self.version, self.flags = VERSION, 0 if session is None else CONTINUES
        self.session, self.next = session or 0, next_number
        self.packet_max, self.streams_max = 1400, 100
        self.stream_credit = self.session_credit = 1 << 30
        self.rate = 20_000_000
        self.counter, self.owner = counter, 0

    @property
    def continues(self):
        """The session that continues."""
        return self.session if self.flags & CONTINUES else None

    def emit(self):
        fields = (self.version, self.flags, self.session, self.next, self.packet_max)
        fields += (self.streams_max, self.stream_credit, self.session_credit, self.rate)
        out = struct.pack(self.FORM, *fields, self.counter, self.owner)
        return out.ljust(TERMS_LEN, b"\0")

    @classmethod
    def parse(cls, data):
        terms = cls()
        fields = struct.unpack_from(cls.FORM, data)
        terms.version, terms.flags, terms.session, terms.next, terms.packet_max = fields[:5]
        terms.streams_max, terms.stream_credit, terms.session_credit, terms.rate = fields[5:9]
        terms.counter, terms.owner = fields[9:]
        return terms

    def offers_nothing(self):
        """Returns true if all terms are zeros, except for the version and the counter."""
        others = self.emit()[1:48] + self.emit()[56:]
        return others == bytes(len(others))


class Keys:
    """Keys of one handshake. The hub's packets under them have numbers from `next` on."""

    def __init__(self, index, hub_index, ours, theirs, next_number):
        self.index, self.hub_index, self.next = index, hub_index, next_number
        self.ours, self.theirs = AESGCM(ours), AESGCM(theirs)

    def confirmation(self):
        header = bytes([CONFIRMATION]) + self.hub_index
        return header + self.ours.encrypt(nonce(CONFIRMATION_NUMBER), b"", header)

    def seal(self, packet_number, packet):
        header = bytes([DATA]) + self.hub_index + struct.pack(">I", packet_number & 0xFFFFFFFF)
        return header + self.ours.encrypt(nonce(packet_number), packet, header)

    def open(self, packet_number, data):
        return self.theirs.decrypt(nonce(packet_number), data[9:], data[:9])


class Initiation:
    """A handshake that this end begins."""

    def __init__(self, noise, index, terms, cookie=None):
        self.index, self.counter, self.hub_key = index, terms.counter, noise.responder
        message = bytes([INITIATION]) + index + noise.first(terms.emit())
        self.mac1 = hmac256(sha256(b"pepd mac1" + self.hub_key), message)[:16]
        message += self.mac1
        message += hmac256(cookie, message)[:16] if cookie else bytes(16)
        check(len(message) == INITIATION_LEN, "length of the initiation")
        self.message, self.noise = message, noise

    def cookie(self, data):
        key = sha256(b"pepd cookie" + self.hub_key)
        return AESGCM(key).decrypt(data[5:17], data[17:], self.mac1)

    def read(self, data):
        """Returns the terms and the keys of a response, and the name of a session that it starts.

        A response can be read again."""
        check(len(data) == RESPONSE_LEN, "length of the response")
        noise = copy.copy(self.noise)
        own = hmac256(sha256(b"pepd mac1" + raw(noise.static.public_key())), data[:-16])
        check(own[:16] == data[-16:], "mac1 of the response")
        payload, ours, theirs = noise.second(data[9:-16])
        terms = Terms.parse(payload)
        check(terms.version == VERSION, f"version {terms.version}")
        keys = Keys(self.index, data[1:5], ours, theirs, terms.next)
        return terms, keys, struct.unpack(">Q", noise.h[:8])[0]


# The session


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
        # Counter of the newest initiation: an end that has lost its numbers begins at 0.
        self.sent = 0
        self.session, self.terms = None, None
        self.keys = {}
        self.current = None
        self.origin = time.monotonic()
        # Sending
        self.next_packet, self.next_segment, self.next_stream = 0, 0, 0
        self.left_out = set()
        self.unacknowledged = {}
        self.streams = {}
        # Receiving
        self.highest, self.reports = None, 0
        self.arrivals, self.bytes = {}, 0
        self.below, self.segments = 0, set()
        self.answers_challenges = True
        self.challenges, self.answers = [], set()
        self.hub_keys_seen, self.closed = set(), None

    @staticmethod
    def new_socket():
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def clock(self):
        return int((time.monotonic() - self.origin) * 1e6) + 1

    # Handshake

    def initiate(self, version=VERSION):
        """Returns a new initiation."""
        self.sent += 1
        next_number = 0 if self.session is None else self.next_packet
        terms = Terms(self.session, next_number, self.sent)
        terms.version = version
        noise = Noise(self.private, self.hub_key, self.psk)
        return Initiation(noise, os.urandom(4), terms, self.cookie)

    def ask(self, initiation):
        """Sends an initiation. Returns the response, or nothing if it is time for another one."""
        self.socket.sendto(initiation.message, self.hub)
        again = time.monotonic() + 1
        while (data := self.receive(again)) is not None:
            if data[0] == COOKIE and data[1:5] == initiation.index:
                self.cookie = initiation.cookie(data)
                return None
            if data[0] == RESPONSE and data[5:9] == initiation.index:
                return data
            self.on_datagram(data)
        return None

    def call(self, version=VERSION):
        """Calls the hub until it answers. Returns the initiation and the response."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            initiation = self.initiate(version)
            if (response := self.ask(initiation)) is not None:
                return initiation, response
        raise AssertionError("the hub does not answer")

    def shake_hands(self):
        """Calls the hub until it offers keys. Returns the hub's terms."""
        for _ in range(4):
            initiation, response = self.call()
            terms, _, _ = initiation.read(response)
            if terms.counter == initiation.counter:
                return self.accept(initiation, response)
            self.sent = max(self.sent, self.refusal(initiation, response))
        raise AssertionError("the hub offers nothing, whatever the counter")

    @staticmethod
    def refusal(initiation, response):
        """Returns the counter of a response that offers nothing."""
        terms, _, _ = initiation.read(response)
        check(terms.counter > initiation.counter, f"counter {terms.counter} of a response")
        check(terms.offers_nothing(), "terms in a response that offers nothing")
        return terms.counter

    def accept(self, initiation, response):
        terms, self.current, name = initiation.read(response)
        check(terms.counter == initiation.counter, "the response offers keys")
        check(terms.continues in (None, self.session), "a session of another name")
        if terms.continues is None:
            self.session, self.terms = name, terms
        self.keys[initiation.index] = self.current
        self.socket.sendto(self.current.confirmation(), self.hub)
        return terms

    # Sending

    def send(self, packet):
        if self.reports and random.randrange(LEAVE_OUT) == 0:
            self.left_out.add(self.next_packet)
            self.next_packet += 1
        datagram = self.current.seal(self.next_packet, packet)
        self.next_packet += 1
        self.socket.sendto(datagram, self.hub)
        return len(datagram)

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
            segment = bytes([SEGMENT]) + struct.pack(">I", seq & 0xFFFFFFFF) + parts
            self.send(later(LATER_FRAMES) + segment + later(LATER_PARTS))

    def report(self):
        flags, highest = LATER_FIELDS, b""
        if self.highest is not None:
            flags, arrived = flags | HIGHEST, self.arrivals[self.highest]
            highest = number(self.highest) + number(arrived) + number(self.clock() - arrived)
        out = bytes([REPORT, flags]) + highest
        out += number(len(self.arrivals)) + number(self.bytes) + number(self.below)
        gaps, fields = self.gaps(), os.urandom(3)
        out += self.losses(gaps) + self.ranges() + self.listed(gaps)
        return out + number(len(fields)) + fields

    def gaps(self):
        """Returns the numbers before and after each gap."""
        numbers = sorted(self.arrivals)
        return [(a, b) for a, b in zip(numbers, numbers[1:]) if b > a + 1]

    def losses(self, gaps):
        """Returns looked-at, lost and bursts."""
        # The numbers below this one have been looked at.
        end = (self.highest or 0) - 63
        looked_at, lost, bursts = max(end - min(self.arrivals, default=0), 0), 0, 0
        for before, after in gaps:
            missing = max(min(after, end) - before - 1, 0)
            if after - before > 257:
                looked_at -= missing
            elif missing:
                lost, bursts = lost + missing, bursts + 1
        return number(looked_at) + number(lost) + number(bursts)

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

    def listed(self, gaps):
        out, newest = b"", gaps[-16:]
        number_before, at_before = self.highest or 0, self.arrivals.get(self.highest, 0)
        for before, after in newest:
            at, after_at = self.arrivals[before], self.arrivals[after]
            out += self.signed(before - number_before) + number(after - before - 2)
            out += self.signed(at - at_before) + self.signed(after_at - at)
            number_before, at_before = before, at
        return number(len(newest)) + out

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
        low, after_highest = struct.unpack(">I", data[5:9])[0], 0
        if self.highest is not None:
            after_highest = self.highest + 1
        expected = max(after_highest, keys.next)
        packet_number = expected + (low - expected + 2**31) % 2**32 - 2**31
        try:
            packet = keys.open(packet_number, data)
        except InvalidTag:
            raise AssertionError(f"packet {packet_number} is not sealed as it should be") from None
        check(packet_number not in self.arrivals, "a packet number comes twice")
        self.hub_keys_seen.add(keys.index)
        self.arrivals[packet_number] = self.clock()
        self.bytes += len(data)
        self.highest = max(packet_number, after_highest - 1)
        self.on_frames(Reader(packet))

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
            elif kind == PATH_RESPONSE:
                self.answers.add(packet.take(8))
            elif kind in LATER_FRAMES:
                packet.take(packet.number())
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
        self.reports += 1
        flags, highest = packet.fixed(8), -1
        known = HIGHEST | MARKED | FROM | EXTENT | LATER_FIELDS
        check(flags & ~known == 0, f"flags {flags:#x} of a report")
        if flags & HIGHEST:
            highest, _, _ = packet.number(), packet.number(), packet.number()
            self.check_received(highest)
        sent = highest + 1 - sum(1 for left_out in self.left_out if left_out < highest)
        packets, _ = packet.number(), packet.number()
        check(packets <= sent, "more packets have arrived than were sent")
        if flags & MARKED:
            packet.number()
        below = packet.number()
        check(below <= self.next_segment, "a report about a segment that was never sent")
        if flags & FROM:
            packet.number()
        if flags & EXTENT:
            packet.number()
        looked_at, lost, bursts = packet.number(), packet.number(), packet.number()
        check(bursts <= lost <= looked_at <= max(highest - 63, 0), "losses of a report")
        has = set()
        at = below
        for i in range(packet.number()):
            start = at + packet.number() + (0 if i == 0 else 1)
            at = start + packet.number() + 1
            has.update(range(start, at))
        check(at <= self.next_segment, "a report about a segment that was never sent")
        before = max(highest, 0)
        for _ in range(packet.number()):
            before += packet.signed()
            self.check_received(before)
            self.check_received(before + packet.number() + 2)
            packet.number(), packet.number()
        if flags & LATER_FIELDS:
            packet.take(packet.number())
        for seq in [seq for seq in self.unacknowledged if seq < below or seq in has]:
            del self.unacknowledged[seq]

    def check_received(self, packet_number):
        """Checks a number that the hub reports as received."""
        check(0 <= packet_number < self.next_packet, "a report about a packet that was never sent")
        check(packet_number not in self.left_out, "a report about a number that was left out")

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
        if kind in LATER_PARTS:
            parts.take(parts.number())
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
        elif kind == HOLD:
            parts.number()
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

    def open(self, header):
        name = self.next_stream
        self.next_stream += 2
        self.streams[name] = Stream(min(self.terms.stream_credit, Terms().stream_credit))
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
    check(terms.continues is None, "a first handshake begins a session")
    step(f"handshake {peer.sent}: session {peer.session:016x}, rate {terms.rate} bit/s")

    inventory = peer.open(peer.inventory())
    peer.write(inventory, b"", end=True)
    peer.run(lambda: peer.streams[inventory].length == 0, "the end of the flow inventory")
    first = peer.open(peer.stream_header(server, (client, 40001)))
    peer.echo(first, b"hello")
    peer.echo(first, os.urandom(20_000))
    step(f"stream {first}: {peer.streams[first].sent} bytes came back")

    begun, old = peer.session, peer.current
    terms = peer.shake_hands()
    check(terms.continues == begun == peer.session, "new keys continue the session")
    check(terms.next > 0, "packet numbers go on")
    peer.echo(first, os.urandom(20_000))
    check(peer.current.index in peer.hub_keys_seen, "the hub sends under the new keys")
    check(peer.current.index != old.index, "an index of its own")
    step(f"new keys: the session goes on, the hub's numbers from {terms.next} on")

    recover(peer, first)
    repeat(peer, first)
    call_with_another_version(peer, first)
    roam(peer, first)

    second = peer.open(peer.stream_header(server, (client, 40002)))
    peer.echo(second, b"another stream", end=True)
    peer.echo(first, b"the end", end=True)
    step("both streams ended in order")
    peer.run(lambda: not peer.unacknowledged, "acknowledgements")
    peer.send(peer.report() + bytes([CLOSE, 0]) + number(3) + b"bye")
    step(f"closed; {len(peer.left_out)} of {peer.next_packet} packet numbers left out")


def recover(peer, name):
    """Initiates with counters that are too low."""
    heard, session = peer.sent, peer.session
    for counter, answer in ((1, heard), (heard, heard + 1)):
        peer.sent = counter - 1
        said = peer.refusal(*peer.call())
        check(said == answer, f"{said} instead of {answer} in answer to counter {counter}")
    peer.echo(name, b"the keys in use stay")

    peer.sent = 0
    terms = peer.shake_hands()
    check(terms.continues == session, "the session goes on")
    check(peer.sent == heard + 1, "the first counter above that of the hub is accepted")
    peer.echo(name, b"new keys")
    check(peer.current.index in peer.hub_keys_seen, "the hub sends under the new keys")
    step(f"counters: the hub has heard {heard}, keys offered for {peer.sent}")


def repeat(peer, name):
    """Sends an initiation again, before and after this end has proved the keys."""
    initiation, response = peer.call()
    check(peer.ask(initiation) == response, "a copy gets the same response")
    peer.accept(initiation, response)
    peer.echo(name, b"proof")
    said = peer.refusal(initiation, peer.ask(initiation) or b"")
    check(said == initiation.counter + 1, "the counter in answer to a recording")
    step("copies: the same response before the proof, no offer after it")


def call_with_another_version(peer, name):
    initiation, response = peer.call(VERSION + 1)
    terms, _, _ = initiation.read(response)
    check(terms.offers_nothing(), "nothing is offered to another version")
    peer.echo(name, b"the session goes on")
    step(f"version {VERSION + 1}: the hub names {terms.version}")


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

    token = os.urandom(8)
    peer.send(bytes([PATH_CHALLENGE]) + token)
    peer.run(lambda: token in peer.answers, "the answer to a challenge")
    check(peer.answers == {token}, "a token that was never sent")
    step("roaming: the hub answers a challenge")


# Test vectors


def vectors(path):
    """Returns the test vectors of the document by name."""
    with open(path, encoding="utf-8") as file:
        block = file.read().split("\n## Test vectors\n")[1].split("```")[1]
    values, name = {}, ""
    for line in block.splitlines()[1:]:
        label, _, digits = line.strip().rpartition("  ")
        name = label.strip() or name
        values[name] = values.get(name, b"") + bytes.fromhex(digits)
    return values


def compute(vector):
    """Computes the test vectors as the initiator."""
    private = vector["initiator's private key"]
    responder = vector["responder's public key"]
    ephemeral = vector["initiator's ephemeral key"]
    noise = Noise(private, responder, vector["pre-shared key"], ephemeral)
    public = raw(noise.static.public_key())
    check(public == vector["initiator's public key"], "the initiator's public key")
    terms = Terms.parse(vector["terms of both"])
    check(terms.emit() == vector["terms of both"], "the terms")
    check(terms.counter == 5, "the counter")

    initiation = Initiation(noise, bytes([0, 1, 2, 3]), terms)
    check(initiation.message == vector["INITIATION"], "the INITIATION")
    theirs, keys, name = initiation.read(vector["RESPONSE"])
    check(theirs.emit() == vector["terms of both"], "the responder's terms")
    check(keys.hub_index == bytes([4, 5, 6, 7]), "the responder's index")
    check(struct.pack(">Q", name) == vector["name of the session"], "the name of the session")
    check(keys.confirmation() == vector["CONFIRMATION"], "the CONFIRMATION")
    check(keys.seal(0, bytes([PROBE])) == vector["DATA, number 0: PROBE"], "the DATA")
    step(f"{len(vector)} test vectors")


def key(path):
    with open(path, encoding="ascii") as file:
        lines = [line.strip() for line in file]
    return base64.b64decode(next(line for line in lines if line and not line.startswith("#")))


def endpoint(text):
    address, port = text.rsplit(":", 1)
    return address, int(port)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("key", "psk", "hub-key", "hub", "server", "client", "document"):
        parser.add_argument(f"--{name}", required=True)
    words = parser.parse_args()
    hub_key = base64.b64decode(words.hub_key)
    peer = Peer(key(words.key), key(words.psk), hub_key, endpoint(words.hub))
    try:
        compute(vectors(words.document))
        converse(peer, endpoint(words.server), words.client)
    except AssertionError as error:
        step(f"mismatch: {error}")
        sys.exit(1)


main()
