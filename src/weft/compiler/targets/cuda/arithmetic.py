"""Two functions of float64 that need integers: exact remainders, great angles less π/2s."""

from __future__ import annotations

FMOD = """
define internal double @fmod(double %x, double %y) nounwind {
entry:
  %bits.x = bitcast double %x to i64
  %bits.y = bitcast double %y to i64
  %size.x = and i64 %bits.x, 9223372036854775807
  %size.y = and i64 %bits.y, 9223372036854775807
  %endless = icmp uge i64 %size.x, 9218868437227405312
  %strange = icmp ugt i64 %size.y, 9218868437227405312
  %nothing = icmp eq i64 %size.y, 0
  %bad = or i1 %endless, %strange
  %none = or i1 %bad, %nothing
  br i1 %none, label %undefined, label %compare
undefined:
  %product = fmul double %x, %y
  %nan = fdiv double %product, %product
  ret double %nan
compare:
  %less = icmp ult i64 %size.x, %size.y
  br i1 %less, label %same, label %divide
same:
  ret double %x
divide:
  %field.x = lshr i64 %size.x, 52
  %field.y = lshr i64 %size.y, 52
  %part.x = and i64 %size.x, 4503599627370495
  %part.y = and i64 %size.y, 4503599627370495
  %whole.x = or i64 %part.x, 4503599627370496
  %whole.y = or i64 %part.y, 4503599627370496
  %normal.x = icmp ne i64 %field.x, 0
  %normal.y = icmp ne i64 %field.y, 0
  %m.x = select i1 %normal.x, i64 %whole.x, i64 %part.x
  %m.y = select i1 %normal.y, i64 %whole.y, i64 %part.y
  %e.x = select i1 %normal.x, i64 %field.x, i64 1
  %e.y = select i1 %normal.y, i64 %field.y, i64 1
  %first = urem i64 %m.x, %m.y
  %apart = sub i64 %e.x, %e.y
  br label %loop
loop:
  %rest = phi i64 [ %first, %divide ], [ %rest.next, %shift ]
  %left = phi i64 [ %apart, %divide ], [ %left.next, %shift ]
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %shift, label %done
shift:
  %few = icmp slt i64 %left, 10
  %by = select i1 %few, i64 %left, i64 10
  %moved = shl i64 %rest, %by
  %rest.next = urem i64 %moved, %m.y
  %left.next = sub i64 %left, %by
  br label %loop
done:
  %number = uitofp i64 %rest to double
  %exponent = sub i64 %e.y, 1075
  %half = ashr i64 %exponent, 1
  %other = sub i64 %exponent, %half
  %half.field = add i64 %half, 1023
  %other.field = add i64 %other, 1023
  %half.bits = shl i64 %half.field, 52
  %other.bits = shl i64 %other.field, 52
  %half.power = bitcast i64 %half.bits to double
  %other.power = bitcast i64 %other.bits to double
  %scaled = fmul double %number, %half.power
  %result = fmul double %scaled, %other.power
  %signed = call double @llvm.copysign.f64(double %result, double %x)
  ret double %signed
}
declare double @llvm.copysign.f64(double, double)
"""
"""The remainder of a division that cuts towards zero: mantissas as integers, 10 bits at a time."""

_WORDS = 20
"""The words of 2/π that the greatest exponent needs, and two more."""

REDUCED = """
define internal { double, double } @reduced(double %x) nounwind {
entry:
  %bits = bitcast double %x to i64
  %size = and i64 %bits, 9223372036854775807
  %finite = icmp ult i64 %size, 9218868437227405312
  br i1 %finite, label %reduce, label %endless
endless:
  %nan = fsub double %x, %x
  %no.0 = insertvalue { double, double } poison, double %nan, 0
  %no = insertvalue { double, double } %no.0, double 0.0, 1
  ret { double, double } %no
reduce:
  %field = lshr i64 %size, 52
  %part = and i64 %size, 4503599627370495
  %m = or i64 %part, 4503599627370496
  %skipped.0 = sub i64 %field, 1077
  %negative = icmp slt i64 %skipped.0, 0
  %skipped = select i1 %negative, i64 0, i64 %skipped.0
  %lacking.0 = sub i64 1077, %field
  %lacking = select i1 %negative, i64 %lacking.0, i64 0
  %word = lshr i64 %skipped, 6
  %bit = and i64 %skipped, 63
  %at0 = getelementptr i64, ptr @two_over_pi, i64 %word
  %at1 = getelementptr i64, ptr %at0, i64 1
  %at2 = getelementptr i64, ptr %at0, i64 2
  %at3 = getelementptr i64, ptr %at0, i64 3
  %t0 = load i64, ptr %at0
  %t1 = load i64, ptr %at1
  %t2 = load i64, ptr %at2
  %t3 = load i64, ptr %at3
  %w0 = call i64 @llvm.fshl.i64(i64 %t0, i64 %t1, i64 %bit)
  %w1 = call i64 @llvm.fshl.i64(i64 %t1, i64 %t2, i64 %bit)
  %w2 = call i64 @llvm.fshl.i64(i64 %t2, i64 %t3, i64 %bit)
  %long.m = zext i64 %m to i128
  %long0 = zext i64 %w0 to i128
  %long1 = zext i64 %w1 to i128
  %long2 = zext i64 %w2 to i128
  %p0 = mul i128 %long.m, %long0
  %p1 = mul i128 %long.m, %long1
  %p2 = mul i128 %long.m, %long2
  %up1 = lshr i128 %p1, 64
  %up2 = lshr i128 %p2, 64
  %h2 = trunc i128 %up2 to i64
  %l1 = trunc i128 %p1 to i64
  %middle = add i64 %l1, %h2
  %carried = icmp ult i64 %middle, %l1
  %carry = zext i1 %carried to i128
  %sum.0 = add i128 %p0, %up1
  %sum = add i128 %sum.0, %carry
  %top = trunc i128 %sum to i64
  %sum.up = lshr i128 %sum, 64
  %over = trunc i128 %sum.up to i64
  %low.top = call i64 @llvm.fshr.i64(i64 %over, i64 %top, i64 %lacking)
  %low.middle = call i64 @llvm.fshr.i64(i64 %top, i64 %middle, i64 %lacking)
  %quadrant = lshr i64 %low.top, 62
  %f0 = call i64 @llvm.fshl.i64(i64 %low.top, i64 %low.middle, i64 2)
  %f1 = shl i64 %low.middle, 2
  %above = icmp slt i64 %f0, 0
  %more = zext i1 %above to i64
  %turns = add i64 %quadrant, %more
  %not0 = xor i64 %f0, -1
  %not1 = xor i64 %f1, -1
  %g0 = select i1 %above, i64 %not0, i64 %f0
  %g1 = select i1 %above, i64 %not1, i64 %f1
  %zeros = call i64 @llvm.ctlz.i64(i64 %g0, i1 false)
  %whole.word = icmp eq i64 %zeros, 64
  %shift = and i64 %zeros, 63
  %n.0 = call i64 @llvm.fshl.i64(i64 %g0, i64 %g1, i64 %shift)
  %n = select i1 %whole.word, i64 %g1, i64 %n.0
  %number = uitofp i64 %n to double
  %exponent.0 = sub i64 959, %zeros
  %exponent = shl i64 %exponent.0, 52
  %power = bitcast i64 %exponent to double
  %fraction = fmul double %number, %power
  %angle = fmul double %fraction, 0x3FF921FB54442D18
  %angle.negative = fneg double %angle
  %signed = select i1 %above, double %angle.negative, double %angle
  %count = uitofp i64 %turns to double
  %count.negative = fneg double %count
  %signed.negative = fneg double %signed
  %left = icmp slt i64 %bits, 0
  %rest = select i1 %left, double %signed.negative, double %signed
  %quarters = select i1 %left, double %count.negative, double %count
  %yes.0 = insertvalue { double, double } poison, double %rest, 0
  %yes = insertvalue { double, double } %yes.0, double %quarters, 1
  ret { double, double } %yes
}
define internal double @reduced_rest(double %x) nounwind {
  %both = call { double, double } @reduced(double %x)
  %rest = extractvalue { double, double } %both, 0
  ret double %rest
}
define internal double @reduced_quadrant(double %x) nounwind {
  %both = call { double, double } @reduced(double %x)
  %quarters = extractvalue { double, double } %both, 1
  ret double %quarters
}
declare i64 @llvm.fshl.i64(i64, i64, i64)
declare i64 @llvm.fshr.i64(i64, i64, i64)
declare i64 @llvm.ctlz.i64(i64, i1)
"""
"""Payne and Hanek's reduction, for |x| from 2²⁰ on.

x = m·2ᵉ. Of 2/π only those digits matter whose product with 2ᵉ is below 4: three words of them,
times m, are the quadrant in two bits and then the fraction of it, with more than 60 good bits even
next to a multiple of π/2.
"""


def reduced_table() -> str:
    """The digits of 2/π after the point, in words of 64 bits."""
    bits = 64 * _WORDS
    digits = (2 << (2 * bits + 64)) // _pi(bits + 64)  # (2/π)·2ᵇⁱᵗˢ
    words = [(digits >> (bits - 64 * (k + 1))) & (2**64 - 1) for k in range(_WORDS)]
    numbers = ", ".join(f"i64 {word}" for word in words)
    return f"@two_over_pi = internal constant [{_WORDS} x i64] [{numbers}], align 8"


def _pi(bits: int) -> int:
    """π·2ᵇⁱᵗˢ by Machin's formula: 16·atan(1/5) - 4·atan(1/239)."""
    more = bits + 32
    return (16 * _arctangent(5, more) - 4 * _arctangent(239, more)) >> 32


def _arctangent(inverse: int, bits: int) -> int:
    power = total = (1 << bits) // inverse
    number, sign = 3, -1
    while power:
        power //= inverse * inverse
        total += sign * (power // number)
        number, sign = number + 2, -sign
    return total
