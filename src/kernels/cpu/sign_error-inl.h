// SPDX-License-Identifier: Apache-2.0
// What is written over the error of a block, and its sum, for one SIMD target.

#if defined(THINWIRE_KERNELS_CPU_SIGN_ERROR_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_CPU_SIGN_ERROR_INL_H_
#undef THINWIRE_KERNELS_CPU_SIGN_ERROR_INL_H_
#else
#define THINWIRE_KERNELS_CPU_SIGN_ERROR_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/ordered_sum-inl.h"
#include "kernels/cpu/signs-inl.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/kernels/sign_compress.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

inline Term term_of(SignNorm norm) {
  return norm == SignNorm::kSquares ? Term::kSquare : Term::kAbs;
}

// What is added to the error, X, has begin_word(w), for w = 0, 1, ..., and then
// at(tag, j) for the elements j of that word; prefetch(i, count), if it reads
// arrays of floats.

template <class X>
struct AddPart {
  template <class D>
  HWY_INLINE void operator()(D d, std::size_t j) const {
    hn::StoreU(hn::Add(x.at(d, j), hn::LoadU(d, error + j)), d, error + j);
  }

  const X& x;
  float* error;
};

/// error = x + error, 0 where masked, for the elements of a word.
template <class X>
struct AddWord {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_for<true>(x, i, count);
    prefetch_ahead(error + i, count);
  }
  HWY_INLINE void operator()(std::size_t w, std::size_t count) {
    x.begin_word(w);
    const AddPart<X> part{x, error + w * 32};
    for_each_part(count, part);
    zero_masked(part.error, active_word(active, w), count);
  }

  X x;  // a copy that no store to `error` can alias
  float* error;
  const std::uint32_t* active;
};

template <bool kPrefetch, class X>
double error_loop(const X& x, float* error, const std::uint32_t* active,
                  SignNorm norm, std::size_t size) {
  AddWord<X> word{x, error, active};
  return sum_written<kPrefetch>(size, error, term_of(norm), word);
}

/// error = x + error, 0 where masked; returns the sum that `norm` names.
template <class X>
double add_to_error(const X& values, float* error, const std::uint32_t* active,
                    SignNorm norm, std::size_t size) {
  return prefetches() ? error_loop<true>(values, error, active, norm, size)
                      : error_loop<false>(values, error, active, norm, size);
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_CPU_SIGN_ERROR_INL_H_
