// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/adam.h"

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/denominator.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/adam-inl.h"

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

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_denominator);

void denominator(const float* exp_avg_sq, float* denominator, std::size_t size,
                 const AdamCoefficients& c) {
  HWY_DYNAMIC_DISPATCH(run_denominator)(exp_avg_sq, denominator, size, c);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
