"""The byte formats of the DeepSeek tensors, decoded from their bits. Shares no code with a reference."""

import numpy as np

NAN = float("nan")


def e2m1(code: int) -> float:
    """Sign, two bits of exponent (bias 1), one of mantissa; exponent 0 is subnormal; no NaN, no infinity."""
    sign, exponent, mantissa = code >> 3, (code >> 1) & 3, code & 1
    magnitude = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    return -magnitude if sign else magnitude


def e4m3(byte: int) -> float:
    """Sign, four bits of exponent (bias 7), three of mantissa; S.1111.111 is NaN, there is no infinity."""
    sign, exponent, mantissa = byte >> 7, (byte >> 3) & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return NAN
    magnitude = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -magnitude if sign else magnitude


def e8m0(byte: int) -> float:
    """A power of two with bias 127; 255 is NaN, there is no zero."""
    return NAN if byte == 255 else 2.0 ** (byte - 127)


E4M3 = [e4m3(byte) for byte in range(256)]
E8M0 = [e8m0(byte) for byte in range(256)]
FP4_PAIR = [(e2m1(byte & 15), e2m1(byte >> 4)) for byte in range(256)]  # elements 2j and 2j + 1 of byte j

E4M3_NUMBERS = [byte for byte in range(256) if byte & 0x7F != 0x7F]


def decoded(table: list, carrier) -> np.ndarray:
    """float64 values of int8 carriers through one of the tables above; pairs unfold the last axis."""
    values = np.array(table)[np.asarray(carrier).view(np.uint8)]
    return values.reshape(*values.shape[:-2], -1) if values.ndim > np.ndim(carrier) else values
