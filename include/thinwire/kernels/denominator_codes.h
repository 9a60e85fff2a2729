// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "thinwire/core/dtype.h"
#include "thinwire/kernels/adam.h"
#include "thinwire/kernels/lamb.h"

/// Denominators in 8 or 4 bits, and the update that multiplies by their
/// inverses. A cell has at most 1024 elements, which share a range of
/// logarithms. Code 0 stands for an element that takes no part, and code 1 + k
/// stands for 2^(low + k step). Every operation is rounded to its type in the
/// order given. Logarithms and powers are fixed polynomials, so that results do
/// not depend on a processor or library. Every function processes one cell on
/// one thread.
namespace thinwire::kernels {

/// Range of logarithms of one cell.
struct CodeRange {
  float low = 0;   ///< log2 of the smallest denominator.
  float step = 0;  ///< Step between adjacent codes, >= 0.

  bool operator==(const CodeRange&) const = default;
};

/// Returns the largest k: 254 for 8 bits, 14 for 4 bits.
[[nodiscard]] constexpr int most_code_steps(int bits) noexcept {
  return (1 << bits) - 2;
}

/// Returns the number of bytes of a cell's codes. An 8-bit code is one byte.
/// With 4 bits, 32 consecutive codes share 16 bytes: the first 16 are in the
/// lower halves, the others in the upper halves.
[[nodiscard]] constexpr std::size_t code_bytes(std::size_t size,
                                               int bits) noexcept {
  return bits == 8 ? size : size / 32 * 16 + (size % 32 < 16 ? size % 32 : 16);
}

/// Returns the code of one element of a cell.
[[nodiscard]] constexpr int code_at(const std::uint8_t* codes, std::size_t i,
                                    int bits) noexcept {
  if (bits == 8) return codes[i];
  const std::uint8_t pair = codes[i / 32 * 16 + i % 16];
  return i % 32 < 16 ? pair & 15 : pair >> 4;
}
constexpr void set_code(std::uint8_t* codes, std::size_t i, int bits,
                        int code) noexcept {
  if (bits == 8) {
    codes[i] = static_cast<std::uint8_t>(code);
    return;
  }
  std::uint8_t& pair = codes[i / 32 * 16 + i % 16];
  const int kept = i % 32 < 16 ? pair & 0xf0 : pair & 0x0f;
  pair = static_cast<std::uint8_t>(kept | (i % 32 < 16 ? code : code << 4));
}

/// Returns log2 of x > 0, in double, to about 1e-15, and -1023 for 0. With x =
/// 2^e m, m in (sqrt(1/2), sqrt(2)], it evaluates by Horner:
///   t = (m - 1) / (m + 1),   ck = 2 / ((2k + 1) ln 2)
///   e + t (c0 + c1 t^2 + ... + c10 t^20)
[[nodiscard]] double log2(float x);

/// Returns 2^-y, accurate to 2e-7, as P(f) 2^i. P is the polynomial with the
/// coefficients kPowerOf2, evaluated by Horner's rule. i is the integer nearest
/// to -y (ties to even) within [-126, 126], and f = -y - i.
[[nodiscard]] float inverse_power_of_2(float y);
inline constexpr std::array<float, 7> kPowerOf2 = {
    0x1.000000p+0f, 0x1.62e430p-1f,  0x1.ebfbe0p-3f, 0x1.c6af6cp-5f,
    0x1.3b2a54p-7f, 0x1.5f0890p-10f, 0x1.44138ap-13f};

/// Tables that give 1 / 2^(low + k step) as fl(coarse[k / 16] fine[k mod 16]):
///   coarse[j] = inverse_power_of_2(fl(low + fl(float(16 j) step)))
///   fine[j]   = inverse_power_of_2(fl(float(j) step))
struct InverseTables {
  alignas(64) std::array<float, 16> coarse;
  alignas(64) std::array<float, 16> fine;

  /// Returns the inverse of code 1 + k.
  [[nodiscard]] float inverse(int k) const {
    return coarse[static_cast<std::size_t>(k) / 16] *
           fine[static_cast<std::size_t>(k) % 16];
  }
};
[[nodiscard]] InverseTables inverse_tables(const CodeRange& range);

/// Computes in double the range and the codes of a cell's denominators d > 0.
/// `active` (sign_compress.h) selects the elements that take part.
///   low  = float(log2(min d)),  step = float((log2(max d) - low) / most steps)
///   code = 0 where masked, else 1 + (step = 0 ? 0 :
///          nearest((log2(d) - low) / step), ties to even, within the steps)
/// Writes code_bytes() bytes; if no element takes part, the range is {0, 0}.
/// Throws Error(kInvalidArgument) unless bits are 8 or 4.
CodeRange encode_denominators(const float* d, const std::uint32_t* active,
                              std::size_t size, int bits, std::uint8_t* codes);
/// Returns the code, never 0, that `d` has in a cell's range.
[[nodiscard]] int code_of(float d, const CodeRange& range, int bits);

/// Parameters and codes of a cell. No arrays overlap.
struct CodedUpdateArrays {
  float* params = nullptr;       ///< In and out, or null if split.
  BFloat16* high = nullptr;      ///< In and out: upper half of split_float().
  std::uint16_t* low = nullptr;  ///< In and out: lower half.
  const std::uint8_t* codes = nullptr;
  CodeRange range{};
  int bits = 8;
  std::size_t size = 0;
};

/// Applies the update of frozen_update() by codes, with R from
/// InverseTables::inverse:
///   w = m * exp_avg_scale            m a value, or +-scale
///   u = w * R, 0 where the code is 0
///   if decoupled_decay != 0:  u = u + decoupled_decay * p
///   p = p + minus_learning_rate * u
/// `m` is values or signs (lamb.h). With signs and codes of 8 bits, reads 5 1/8
/// bytes per parameter and writes 4. Throws Error(kInvalidArgument) unless bits
/// are 8 or 4, and if a form is missing.
void sign_update_coded(const MomentumForm& m, const CodedUpdateArrays& arrays,
                       const AdamCoefficients& c);

namespace ref {
CodeRange encode_denominators(const float* d, const std::uint32_t* active,
                              std::size_t size, int bits, std::uint8_t* codes);
void sign_update_coded(const MomentumForm& m, const CodedUpdateArrays& arrays,
                       const AdamCoefficients& c);
}  // namespace ref

}  // namespace thinwire::kernels
