// SPDX-License-Identifier: Apache-2.0
// denominator() and floor_denominator().
#include "thinwire/kernels/adam.h"

#include <cmath>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/denominator.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/adam-inl.h"
#include "thinwire/kernels/norm.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

struct DenominatorStep {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(exp_avg_sq + i, count);
  }

  template <class D>
  HWY_INLINE void operator()(D d, std::size_t i) const {
    const auto v = hn::LoadU(d, exp_avg_sq + i);
    hn::StoreU(next_denominator(d, v, epsilon, c), d, denominator + i);
  }

  const float* exp_avg_sq;
  float* denominator;
  Epsilon epsilon;
  AdamCoefficients c;
};

void run_denominator(const float* exp_avg_sq, float* denominator,
                     std::size_t size, const AdamCoefficients& c) {
  for_each_vector(size,
                  DenominatorStep{exp_avg_sq, denominator, Epsilon(c), c});
}

struct RaiseStep {
  HWY_INLINE void prefetch(std::size_t, std::size_t) const {}

  // Not Max(), of which targets differ about NaN.
  template <class D>
  HWY_INLINE void operator()(D d, std::size_t i) const {
    const auto least = hn::Set(d, floor);
    const auto value = hn::LoadU(d, denominator + i);
    hn::StoreU(hn::IfThenElse(hn::Lt(value, least), least, value), d,
               denominator + i);
  }

  float* denominator;
  float floor;
};

void run_raise(float* denominator, std::size_t size, float floor) {
  for_each_vector(size, RaiseStep{denominator, floor});
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_denominator);
HWY_EXPORT(run_raise);

void denominator(const float* exp_avg_sq, float* denominator, std::size_t size,
                 const AdamCoefficients& c) {
  HWY_DYNAMIC_DISPATCH(run_denominator)(exp_avg_sq, denominator, size, c);
}

float floor_denominator(float* denominator, std::size_t size, double fraction) {
  if (fraction == 0 || size == 0) return 0;
  const ConstView values(denominator, size, DType::kFloat32);
  const double rms =
      std::sqrt(sum_of_squares(values) / static_cast<double>(size));
  const auto floor = static_cast<float>(fraction * rms);
  HWY_DYNAMIC_DISPATCH(run_raise)(denominator, size, floor);
  return floor;
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
