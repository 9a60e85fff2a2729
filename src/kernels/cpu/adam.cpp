// SPDX-License-Identifier: Apache-2.0
// adam(), momentum(), moments() and frozen_update().
#include "thinwire/kernels/adam.h"

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adam.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/adam-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

template <class G, class L>
struct AdamStep {
  AdamStep(const AdamArrays& arrays, const G* g, L* low,
           const AdamCoefficients& coefficients)
      : params(arrays.params),
        exp_avg(arrays.exp_avg),
        exp_avg_sq(arrays.exp_avg_sq),
        grads(g),
        low_precision(low),
        c(coefficients) {}

  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(params + i, count);
    prefetch_ahead(exp_avg + i, count);
    prefetch_ahead(exp_avg_sq + i, count);
    prefetch_ahead(grads + i, count);
  }

  template <class D>
  HWY_INLINE void operator()(D d, std::size_t i) const {
    const auto p = hn::LoadU(d, params + i);
    const auto g =
        l2.add(d, hn::Mul(load(d, grads + i), hn::Set(d, c.grad_scale)), p);
    const auto m = next_momentum(d, hn::LoadU(d, exp_avg + i), g, c);
    const auto v = next_variance(d, hn::LoadU(d, exp_avg_sq + i), g, c);
    hn::StoreU(m, d, exp_avg + i);
    hn::StoreU(v, d, exp_avg_sq + i);
    const auto scaled_m = hn::Mul(m, hn::Set(d, c.exp_avg_scale));
    const auto denominator = next_denominator(d, v, epsilon, c);
    store_param(d, next_param(d, p, scaled_m, denominator, decoupled, c),
                params, low_precision, i);
  }

  float* params;
  float* exp_avg;
  float* exp_avg_sq;
  const G* grads;
  L* low_precision;
  AdamCoefficients c;
  Epsilon epsilon{c};
  Decay l2{c.l2_decay};
  Decay decoupled{c.decoupled_decay};
};

template <class G, class L>
void adam_of(const AdamArrays& arrays, const G* grads, L* low_precision,
             const AdamCoefficients& c) {
  for_each_vector(arrays.grads.size(),
                  AdamStep<G, L>(arrays, grads, low_precision, c));
}

template <class G>
void adam_of(const AdamArrays& arrays, const G* grads,
             const AdamCoefficients& c) {
  void* const low = arrays.low_precision.data();
  if (arrays.low_precision.empty()) {
    adam_of(arrays, grads, static_cast<void*>(nullptr), c);
  } else if (arrays.low_precision.dtype() == DType::kFloat16) {
    adam_of(arrays, grads, static_cast<Half*>(low), c);
  } else {
    adam_of(arrays, grads, static_cast<BFloat16*>(low), c);
  }
}

void run_adam(const AdamArrays& arrays, const AdamCoefficients& c) {
  const void* const grads = arrays.grads.data();
  switch (arrays.grads.dtype()) {
    case DType::kFloat16:
      return adam_of(arrays, static_cast<const Half*>(grads), c);
    case DType::kBFloat16:
      return adam_of(arrays, static_cast<const BFloat16*>(grads), c);
    default:
      return adam_of(arrays, static_cast<const float*>(grads), c);
  }
}

template <class G>
struct MomentumStep {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(exp_avg + i, count);
    prefetch_ahead(grads + i, count);
  }

  template <class D>
  HWY_INLINE void operator()(D d, std::size_t i) const {
    const auto g = hn::Mul(load(d, grads + i), hn::Set(d, c.grad_scale));
    const auto m = next_momentum(d, hn::LoadU(d, exp_avg + i), g, c);
    hn::StoreU(m, d, exp_avg + i);
  }

  float* exp_avg;
  const G* grads;
  AdamCoefficients c;
};

template <class G>
void momentum_of(float* exp_avg, ConstView grads, const AdamCoefficients& c) {
  for_each_vector(
      grads.size(),
      MomentumStep<G>{exp_avg, static_cast<const G*>(grads.data()), c});
}

void run_momentum(float* exp_avg, ConstView grads, const AdamCoefficients& c) {
  switch (grads.dtype()) {
    case DType::kFloat16:
      return momentum_of<Half>(exp_avg, grads, c);
    case DType::kBFloat16:
      return momentum_of<BFloat16>(exp_avg, grads, c);
    default:
      return momentum_of<float>(exp_avg, grads, c);
  }
}

template <class G>
struct MomentsStep {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(exp_avg + i, count);
    prefetch_ahead(exp_avg_sq + i, count);
    prefetch_ahead(grads + i, count);
  }

  template <class D>
  HWY_INLINE void operator()(D d, std::size_t i) const {
    const auto g = hn::Mul(load(d, grads + i), hn::Set(d, c.grad_scale));
    const auto m = next_momentum(d, hn::LoadU(d, exp_avg + i), g, c);
    const auto v = next_variance(d, hn::LoadU(d, exp_avg_sq + i), g, c);
    hn::StoreU(m, d, exp_avg + i);
    hn::StoreU(v, d, exp_avg_sq + i);
  }

  float* exp_avg;
  float* exp_avg_sq;
  const G* grads;
  AdamCoefficients c;
};

template <class G>
void moments_of(float* exp_avg, float* exp_avg_sq, ConstView grads,
                const AdamCoefficients& c) {
  for_each_vector(grads.size(),
                  MomentsStep<G>{exp_avg, exp_avg_sq,
                                 static_cast<const G*>(grads.data()), c});
}

void run_moments(float* exp_avg, float* exp_avg_sq, ConstView grads,
                 const AdamCoefficients& c) {
  switch (grads.dtype()) {
    case DType::kFloat16:
      return moments_of<Half>(exp_avg, exp_avg_sq, grads, c);
    case DType::kBFloat16:
      return moments_of<BFloat16>(exp_avg, exp_avg_sq, grads, c);
    default:
      return moments_of<float>(exp_avg, exp_avg_sq, grads, c);
  }
}

template <class L>
struct FrozenStep {
  FrozenStep(const FrozenUpdateArrays& a, const AdamCoefficients& coefficients)
      : arrays(a), c(coefficients) {}

  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(arrays.params + i, count);
    prefetch_ahead(arrays.exp_avg + i, count);
    prefetch_ahead(arrays.denominator + i, count);
  }

  template <class D>
  HWY_INLINE void operator()(D d, std::size_t i) const {
    const auto p = hn::LoadU(d, arrays.params + i);
    const auto scaled_m =
        hn::Mul(hn::LoadU(d, arrays.exp_avg + i), hn::Set(d, c.exp_avg_scale));
    const auto denominator = hn::LoadU(d, arrays.denominator + i);
    store_param(d, next_param(d, p, scaled_m, denominator, decoupled, c),
                arrays.params, static_cast<L*>(arrays.low_precision.data()), i);
  }

  FrozenUpdateArrays arrays;
  AdamCoefficients c;
  Decay decoupled{c.decoupled_decay};
};

void run_frozen_update(const FrozenUpdateArrays& arrays,
                       const AdamCoefficients& c) {
  if (arrays.low_precision.empty()) {
    for_each_vector(arrays.size, FrozenStep<void>(arrays, c));
  } else if (arrays.low_precision.dtype() == DType::kFloat16) {
    for_each_vector(arrays.size, FrozenStep<Half>(arrays, c));
  } else {
    for_each_vector(arrays.size, FrozenStep<BFloat16>(arrays, c));
  }
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_adam);
HWY_EXPORT(run_momentum);
HWY_EXPORT(run_frozen_update);
HWY_EXPORT(run_moments);

void adam(const AdamArrays& arrays, const AdamCoefficients& c) {
  require_grads(arrays.grads);
  require_low_precision(arrays.low_precision, arrays.grads.size());
  HWY_DYNAMIC_DISPATCH(run_adam)(arrays, c);
}

void momentum(float* exp_avg, ConstView grads, const AdamCoefficients& c) {
  require_grads(grads);
  HWY_DYNAMIC_DISPATCH(run_momentum)(exp_avg, grads, c);
}

void moments(float* exp_avg, float* exp_avg_sq, ConstView grads,
             const AdamCoefficients& c) {
  require_grads(grads);
  HWY_DYNAMIC_DISPATCH(run_moments)(exp_avg, exp_avg_sq, grads, c);
}

void frozen_update(const FrozenUpdateArrays& arrays,
                   const AdamCoefficients& c) {
  require_low_precision(arrays.low_precision, arrays.size);
  HWY_DYNAMIC_DISPATCH(run_frozen_update)(arrays, c);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
