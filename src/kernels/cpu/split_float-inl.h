// SPDX-License-Identifier: Apache-2.0
// Conversions between a float and its two halves, for one SIMD target.

#if defined(THINWIRE_KERNELS_CPU_SPLIT_FLOAT_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_CPU_SPLIT_FLOAT_INL_H_
#undef THINWIRE_KERNELS_CPU_SPLIT_FLOAT_INL_H_
#else
#define THINWIRE_KERNELS_CPU_SPLIT_FLOAT_INL_H_
#endif

#include <cstdint>

#include "kernels/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

template <class D>
HWY_INLINE hn::Vec<D> load_split(D d, const BFloat16* high,
                                 const std::uint16_t* low) {
  const Int<D> di;
  const auto rest = hn::BitCast(di, hn::ShiftLeft<16>(load_16_bits(d, low)));
  const auto upper = hn::BitCast(di, hn::ShiftLeft<16>(load_16_bits(d, high)));
  return hn::BitCast(d, hn::Add(upper, hn::ShiftRight<16>(rest)));
}

template <class D>
HWY_INLINE void store_split(D d, hn::Vec<D> value, BFloat16* high,
                            std::uint16_t* low) {
  const Uint<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto rounded = hn::Add(bits, hn::Set(du, 0x8000));
  store_16_bits(d, hn::ShiftRight<16>(rounded), high);
  store_16_bits(d, hn::And(bits, hn::Set(du, 0xffff)), low);
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_CPU_SPLIT_FLOAT_INL_H_
