"""Payloads and effects that no command created: parsed, mutated, and sealed again.

A payload is a reply of DUMP: the server's type byte, the module's type with the version of its
encoding, strings of packed fields (core/src/wire/packed_fields.rs) each after a byte with their
type, and a zero; then the version of the RDB format and a checksum, which is recomputed after
every change.
"""

import os
import random
from collections.abc import Iterator, Sequence

from support.scale import scaled

Field = int | bytes

# Number of mutated payloads in a run of the suite, number of mutated effects, and their seed. `make
# fuzz` tries a million of each kind, with a new seed every time.
MUTATIONS = int(os.environ.get("RATELIMIT_MUTATIONS") or scaled(12_000, 120_000))
SEED = os.environ.get("RATELIMIT_SEED", "")
# Number of payloads sent at a time.
BATCH = 500


def batches(name: str, share: int) -> Iterator[random.Random]:
    """Yields a random generator for every batch of one of `share` equal parts."""
    for number in range(-(-MUTATIONS // share // BATCH)):
        yield random.Random(f"{SEED} {name} {number}")


def crc64(payload: bytes) -> int:
    """Returns the checksum of a DUMP, CRC-64 (Jones)."""
    crc, table = 0, CRC_TABLE
    for byte in payload:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


def crc64_table() -> Iterator[int]:
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
        yield crc


CRC_TABLE = tuple(crc64_table())


def sealed(body: bytes, dump: bytes) -> bytes:
    """Adds the RDB version of a real dump, and the right checksum."""
    payload = body + dump[-10:-8]
    return payload + crc64(payload).to_bytes(8, "little")


def rewritten(dump: bytes, fields: list[Field], version: int | None = None) -> bytes:
    """Returns a dump of the same type with other fields."""
    head = bytearray(dump[:HEAD])
    if version is not None:
        # The name of the type has the upper 54 bits, the version of its encoding the lower ten.
        number = int.from_bytes(head[2:], "big")
        head[2:] = (number >> 10 << 10 | version).to_bytes(8, "big")
    return sealed(bytes(head) + b"".join(map(encoded, packed(fields))) + b"\x00", dump)


# Length of the type byte, and of the module's type and version as a 64-bit number.
HEAD = 10
UNSIGNED, STRING = 2, 5


def encoded(field: Field) -> bytes:
    """Encodes a field with lengths and numbers in 64 bits, which is always allowed."""
    if isinstance(field, bytes):
        return bytes([STRING, 0x81]) + len(field).to_bytes(8, "big") + field
    return bytes([UNSIGNED, 0x81]) + field.to_bytes(8, "big")


def fields(dump: bytes) -> list[Field]:
    """Parses the fields of a dump."""
    return unpacked(fields_from(dump, HEAD)[0])


# Length at which a block gets no further field.
BLOCK = 32 * 1024
# Tags of fields.
INTEGER, DISTANCE, BYTES = 0, 1, 2
# Least integer that is stored as its distance from the last integer of this size.
FAR = 1 << 40


def packed(fields: Sequence[Field]) -> list[bytes]:
    """Packs fields into blocks."""
    blocks, anchor = [bytearray()], 0
    for field in fields:
        if len(blocks[-1]) >= BLOCK:
            blocks.append(bytearray())
        if isinstance(field, bytes):
            blocks[-1] += packed_number(BYTES, len(field)) + field
        elif field < FAR:
            blocks[-1] += packed_number(INTEGER, field)
        else:
            distance = (field - anchor + (1 << 63)) % (1 << 64) - (1 << 63)
            twice = 2 * distance
            blocks[-1] += packed_number(DISTANCE, twice if distance >= 0 else ~twice)
            anchor = field
    return [bytes(block) for block in blocks if block]


def packed_number(tag: int, number: int) -> bytes:
    """Packs a tag of two bits and a number: five bits in the first byte, seven in each other."""
    packed, number = [tag | (number & 31) << 2], number >> 5
    while number:
        packed[-1] |= 0x80
        packed, number = [*packed, number & 0x7F], number >> 7
    return bytes(packed)


def unpacked(blocks: Sequence[Field]) -> list[Field]:
    """Parses the fields in blocks."""
    found: list[Field] = []
    anchor = 0
    for block in blocks:
        assert isinstance(block, bytes)
        offset = 0
        while offset < len(block):
            tag, value, shift = block[offset] & 3, block[offset] >> 2 & 31, 5
            while block[offset] & 0x80:
                offset += 1
                value, shift = value | (block[offset] & 0x7F) << shift, shift + 7
            offset += 1
            if tag == BYTES:
                found.append(block[offset : offset + value])
                offset += value
            elif tag == INTEGER:
                found.append(value)
            else:
                anchor = (anchor + (~(value >> 1) if value & 1 else value >> 1)) % (1 << 64)
                found.append(anchor)
    return found


def fields_from(dump: bytes, offset: int) -> tuple[list[Field], bytes]:
    """Parses fields from `offset` on. Returns the fields and the rest."""
    found: list[Field] = []
    while dump[offset]:
        kind, offset = dump[offset], offset + 1
        if dump[offset] == 0xC3:
            length, offset = number(dump, offset + 1)
            _, offset = number(dump, offset)
            found.append(decompressed(dump[offset : offset + length]))
        elif dump[offset] >= 0xC0:
            # A string of digits is encoded as an integer of 8, 16 or 32 bits.
            length, offset = 1 << (dump[offset] & 3), offset + 1
            integer = int.from_bytes(dump[offset : offset + length], "little", signed=True)
            found.append(str(integer).encode())
        else:
            length, offset = number(dump, offset)
            if kind == UNSIGNED:
                found.append(length)
                continue
            found.append(dump[offset : offset + length])
        offset += length
    return found, dump[offset + 1 :]


def decompressed(packed: bytes) -> bytes:
    """Decompresses LZF: literal runs, and references to earlier bytes."""
    text, offset = bytearray(), 0
    while offset < len(packed):
        head, offset = packed[offset], offset + 1
        if head < 32:
            text += packed[offset : offset + head + 1]
            offset += head + 1
            continue
        length = head >> 5
        if length == 7:
            length, offset = length + packed[offset], offset + 1
        back, offset = ((head & 31) << 8 | packed[offset]) + 1, offset + 1
        for _ in range(length + 2):
            text.append(text[-back])
    return bytes(text)


def number(dump: bytes, offset: int) -> tuple[int, int]:
    """Decodes a number of 6, 14, 32 or 64 bits. Returns the number and the offset after it."""
    first = dump[offset]
    if first < 0x40:
        return first, offset + 1
    if first < 0x80:
        return (first & 0x3F) << 8 | dump[offset + 1], offset + 2
    end = offset + (5 if first == 0x80 else 9)
    return int.from_bytes(dump[offset + 1 : end], "big"), end


# Numbers at which arithmetic may fail, tried with their neighbours.
EDGES = (0, 1, 2**8, 2**16, 2**31, 2**32, 2**53, 2**63, 2**64 - 1)


def other_number(rng: random.Random, value: int) -> int:
    """Returns an extreme number, a neighbour of the value, or a random number, in 64 bits."""
    match rng.randrange(6):
        case 0:
            other = rng.choice(EDGES) + rng.choice((-1, 0, 0, 1))
        case 1 | 2:
            other = value + rng.choice((-1, 1))
        case 3:
            other = value ^ 1 << rng.randrange(64)
        case 4:
            other = rng.getrandbits(rng.randint(1, 64))
        case _:
            other = rng.randint(0, 2 * value + 2)
    return min(max(other, 0), 2**64 - 1)


def other_string(rng: random.Random, value: bytes) -> bytes:
    """Returns a name of extreme length, or nearly the same name."""
    edges = (b"", b"\x00", b"7", bytes(256), bytes(257), b"\xff" * 255)
    near = (value[:-1], value + b"\x00", value[::-1])
    return rng.choice(edges + near)


def changed_fields(
    rng: random.Random, original: Sequence[Field], others: Sequence[Field]
) -> list[Field]:
    """Changes one to three fields, sometimes adding or removing one."""
    mutated = list(original)
    for _ in range(rng.choice((1, 1, 2, 3))):
        offset = rng.randrange(len(mutated)) if mutated else 0
        match rng.randrange(12) if mutated else 0:
            case 0:
                mutated.insert(offset, rng.choice(others))
            case 1:
                del mutated[offset]
            case 2:
                other = rng.randrange(len(mutated))
                mutated[offset], mutated[other] = mutated[other], mutated[offset]
            case 3:
                mutated[offset] = rng.choice(others)
            case _:
                field = mutated[offset]
                other = other_number if isinstance(field, int) else other_string
                mutated[offset] = other(rng, field)
    return mutated


def changed_bytes(rng: random.Random, body: bytes, first: int = 0) -> bytes:
    """Changes one to three bytes from `first` on, sometimes adding or removing some."""
    mutated = bytearray(body)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if len(mutated) <= first:
            break
        offset = rng.randrange(first, len(mutated))
        match rng.randrange(8):
            case 0:
                del mutated[offset : offset + rng.randint(1, 12)]
            case 1:
                mutated[offset:offset] = rng.randbytes(rng.randint(1, 12))
            case 2:
                mutated[offset] = rng.choice((0, 1, 2, 5, 0x7F, 0x80, 0x81, 0xFF))
            case _:
                mutated[offset] ^= 1 << rng.randrange(8)
    return bytes(mutated)


def changed_words(rng: random.Random, text: str, others: Sequence[str]) -> str:
    """Changes one to three words of an effect, sometimes adding or removing one."""
    words = text.split(" ")
    for _ in range(rng.choice((1, 1, 2, 3))):
        offset = rng.randrange(len(words))
        match rng.randrange(12):
            case 0:
                words.insert(offset, rng.choice(others))
            case 1 if len(words) > 1:
                del words[offset]
            case 2:
                other = rng.randrange(len(words))
                words[offset], words[other] = words[other], words[offset]
            case 3:
                words[offset] = rng.choice(others)
            case _ if words[offset].isdigit():
                words[offset] = str(other_number(rng, int(words[offset])))
            case _:
                words[offset] = str(other_number(rng, 1))
    return " ".join(words)
