// SPDX-License-Identifier: Apache-2.0
// Vectors of floats, and arrays in fp32, fp16 or bf16, for one SIMD target.

// Highway's guard for headers that are compiled once per target.
#if defined(THINWIRE_KERNELS_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_CPU_VECTORS_INL_H_
#undef THINWIRE_KERNELS_CPU_VECTORS_INL_H_
#else
#define THINWIRE_KERNELS_CPU_VECTORS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "core/visit_floats.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "thinwire/core/dtype.h"
#include "thinwire/kernels/processor.h"

// Below AVX2, Highway's own fp16 conversions truncate and lose inf and NaN.
// From AVX2 on it uses F16C.
#undef THINWIRE_HARDWARE_FP16
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
#define THINWIRE_HARDWARE_FP16 1
#else
#define THINWIRE_HARDWARE_FP16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that every width divides a group of 16 elements.
using Float = hn::CappedTag<float, 16>;
// A single lane, with which the same code processes the remaining elements.
using OneFloat = hn::CappedTag<float, 1>;
inline constexpr std::size_t kLanes = hn::MaxLanes(Float());

template <class D>
using Uint = hn::RebindToUnsigned<D>;
template <class D>
using Int = hn::RebindToSigned<D>;
template <class D>
using Uint16 = hn::Rebind<std::uint16_t, D>;

// ------------------------------------------------------------------ 16 bits
template <class D>
HWY_INLINE hn::Vec<Uint<D>> load_16_bits(D, const void* p) {
  return hn::PromoteTo(
      Uint<D>(), hn::LoadU(Uint16<D>(), static_cast<const std::uint16_t*>(p)));
}

// Takes `bits` below 2^16.
template <class D>
HWY_INLINE void store_16_bits(D, hn::Vec<Uint<D>> bits, void* p) {
  hn::StoreU(hn::DemoteTo(Uint16<D>(), hn::BitCast(Int<D>(), bits)),
             Uint16<D>(), static_cast<std::uint16_t*>(p));
}

// ------------------------------------------------------------------ loading
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* p) {
  return hn::LoadU(d, p);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const BFloat16* p) {
  return hn::BitCast(d, hn::ShiftLeft<16>(load_16_bits(d, p)));
}

#if THINWIRE_HARDWARE_FP16

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Half* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  const auto bits = hn::LoadU(Uint16<D>(), &p->bits);
  return hn::PromoteTo(d, hn::BitCast(d16, bits));
}

#else

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Half* p) {
  const Int<D> di;
  const auto half = hn::BitCast(di, load_16_bits(d, p));
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(di, 0x8000)));
  // Moves exponent and fraction to their places in a float; the exponent bias
  // still differs by 112.
  const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(di, 0x7fff)));
  const auto rebias = hn::Set(di, 112 << 23);
  const auto normal = hn::Add(magnitude, rebias);
  const auto inf_or_nan = hn::Add(normal, rebias);
  // A subnormal f * 2^-24 equals (1 + f / 2^10) * 2^-14 - 2^-14 exactly.
  const auto one_up = hn::Add(normal, hn::Set(di, 1 << 23));
  const auto subnormal =
      hn::BitCast(di, hn::Sub(hn::BitCast(d, one_up), hn::Set(d, 0x1p-14f)));
  const auto is_finite = hn::Lt(magnitude, hn::Set(di, 31 << 23));
  const auto is_subnormal = hn::Lt(magnitude, hn::Set(di, 1 << 23));
  const auto bits = hn::IfThenElse(
      is_subnormal, subnormal, hn::IfThenElse(is_finite, normal, inf_or_nan));
  // Makes NaNs quiet, as F16C does.
  const auto is_nan = hn::Gt(magnitude, hn::Set(di, 31 << 23));
  const auto quiet = hn::IfThenElseZero(is_nan, hn::Set(di, 1 << 22));
  return hn::BitCast(d, hn::Or(hn::Or(bits, quiet), sign));
}

#endif

// ------------------------------------------------------------------ storing
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> value, float* p) {
  hn::StoreU(value, d, p);
}

// Rounds explicitly, because Highway's conversion to bf16 truncates.
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> value, BFloat16* p) {
  const Uint<D> du;
  const auto bits = hn::BitCast(du, value);
  // Adds half of the last kept place, or just less if that place is even.
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x40'0000));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  const auto result = hn::IfThenElse(is_nan, quiet, rounded);
  store_16_bits(d, hn::ShiftRight<16>(result), p);
}

#if THINWIRE_HARDWARE_FP16

template <class D>
HWY_INLINE void store(D, hn::Vec<D> value, Half* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  const auto half = hn::DemoteTo(d16, value);
  hn::StoreU(hn::BitCast(Uint16<D>(), half), Uint16<D>(), &p->bits);
}

#else

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> value, Half* p) {
  const Uint<D> du;
  const Int<D> di;
  // Magnitudes are positive as signed integers, so comparisons are valid.
  const auto magnitude =
      hn::And(hn::BitCast(di, value), hn::Set(di, 0x7fff'ffff));
  const auto sign =
      hn::And(hn::ShiftRight<16>(hn::BitCast(du, value)), hn::Set(du, 0x8000));
  // Adjusts the exponent bias by 112 and adds half of the last kept place, or
  // just less if that place is even.
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
  const auto normal = hn::ShiftRight<13>(
      hn::Add(hn::Sub(magnitude, hn::Set(di, (112 << 23) - 0xfff)), odd));
  // Adding 0.5 rounds to a multiple of 2^-24, the smallest subnormal.
  const auto half = hn::Set(d, 0.5f);
  const auto subnormal =
      hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(d, magnitude), half)),
              hn::BitCast(di, half));
  const auto nan =
      hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 0x3ff)),
             hn::Set(di, 0x7e00));
  const auto is_subnormal = hn::Lt(magnitude, hn::Set(di, 113 << 23));
  const auto is_large = hn::Gt(magnitude, hn::Set(di, (143 << 23) - 1));
  const auto is_nan = hn::RebindMask(di, hn::IsNaN(value));
  auto result = hn::IfThenElse(is_subnormal, subnormal, normal);
  result = hn::IfThenElse(is_large, hn::Set(di, 0x7c00), result);
  result = hn::IfThenElse(is_nan, nan, result);
  store_16_bits(d, hn::Or(hn::BitCast(du, result), sign), p);
}

#endif

// -------------------------------------------------------------- prefetching
/// Number of elements that kernels prefetch ahead. The hardware's own
/// prefetchers restart on every 4 KiB page, which is one block. Half a block
/// ahead, the next block arrives before this one is done.
inline constexpr std::size_t kAhead = 512;
inline constexpr std::size_t kCacheLine = 64;

/// Prefetches the elements kAhead after the `count` elements at p. The array
/// may already have ended there, because a prefetch never faults.
template <class T>
HWY_INLINE void prefetch_ahead(const T* p, std::size_t count) {
  const auto begin = reinterpret_cast<std::uintptr_t>(p) + kAhead * sizeof(T);
  for (std::size_t byte = 0; byte < count * sizeof(T); byte += kCacheLine) {
    hwy::Prefetch(reinterpret_cast<const T*>(begin + byte));
  }
}

// Every loop that prefetches exists with and without prefetch(). The choice is
// made once, before the loop begins.

/// True if a loop's body has prefetch(i, count). The loop calls it regularly to
/// request the elements kAhead further on.
template <class Body>
inline constexpr bool kCanPrefetch = requires(const Body& body, std::size_t i) {
  body.prefetch(i, i);
};

/// Calls body.prefetch(i, count) if it exists and the loop prefetches.
template <bool kPrefetch, class Body>
HWY_INLINE void prefetch_for(const Body& body, std::size_t i,
                             std::size_t count) {
  if constexpr (kPrefetch && kCanPrefetch<Body>) body.prefetch(i, count);
}

// ---------------------------------------------------------- all the elements
template <bool kPrefetch, class Body>
HWY_INLINE void vector_loop(std::size_t size, const Body& body) {
  const Float d;
  std::size_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    prefetch_for<kPrefetch>(body, i, 4 * kLanes);
    body(d, i);
    body(d, i + kLanes);
    body(d, i + 2 * kLanes);
    body(d, i + 3 * kLanes);
  }
  for (; i + kLanes <= size; i += kLanes) body(d, i);
  for (; i < size; ++i) body(OneFloat(), i);
}

/// Calls body(tag, i) for the elements of `size`, one vector of the tag's lanes
/// at a time. Out of cache, four vectors per iteration are never slower than
/// one or eight, and on some machines 2 % faster.
template <class Body>
HWY_INLINE void for_each_vector(std::size_t size, const Body& body) {
  if (kCanPrefetch<Body> && prefetches()) {
    vector_loop<true>(size, body);
  } else {
    vector_loop<false>(size, body);
  }
}

/// Runs Body{args...} over all elements, as a function of this target that a
/// lambda may call. Clang compiles a lambda's own code without the target's
/// instructions. The body is created here, so that no store can alias it.
template <class Body, class... Args>
void run_vectors(std::size_t size, const Args&... args) {
  for_each_vector(size, Body{args...});
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_CPU_VECTORS_INL_H_
