// SPDX-License-Identifier: Apache-2.0
// Kernels adam(), momentum(), moments(), frozen_update() and denominator().
#include "thinwire/kernels/adam.h"

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adam.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
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

void run_adam(const AdamArrays& arrays, const AdamCoefficients& c) {
  visit_floats(arrays.grads, [&]<class G>(const G* grads) {
    visit_low_precision(arrays.low_precision, [&]<class L>(L* low) {
      run_vectors<AdamStep<G, L>>(arrays.grads.size(), arrays, grads, low, c);
    });
  });
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

void run_momentum(float* exp_avg, ConstView grads, const AdamCoefficients& c) {
  visit_floats(grads, [&]<class G>(const G* g) {
    run_vectors<MomentumStep<G>>(grads.size(), exp_avg, g, c);
  });
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

void run_moments(float* exp_avg, float* exp_avg_sq, ConstView grads,
                 const AdamCoefficients& c) {
  visit_floats(grads, [&]<class G>(const G* g) {
    run_vectors<MomentsStep<G>>(grads.size(), exp_avg, exp_avg_sq, g, c);
  });
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
  visit_low_precision(arrays.low_precision, [&]<class L>(L*) {
    run_vectors<FrozenStep<L>>(arrays.size, arrays, c);
  });
}

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

HWY_EXPORT(run_adam);
HWY_EXPORT(run_momentum);
HWY_EXPORT(run_frozen_update);
HWY_EXPORT(run_moments);
HWY_EXPORT(run_denominator);

void adam(const AdamArrays& arrays, const AdamCoefficients& c) {
  require_grads(arrays.grads);
  require_low_precision(arrays.low_precision, arrays.grads.size());
  THINWIRE_DISPATCH(run_adam)(arrays, c);
}

void momentum(float* exp_avg, ConstView grads, const AdamCoefficients& c) {
  require_grads(grads);
  THINWIRE_DISPATCH(run_momentum)(exp_avg, grads, c);
}

void moments(float* exp_avg, float* exp_avg_sq, ConstView grads,
             const AdamCoefficients& c) {
  require_grads(grads);
  THINWIRE_DISPATCH(run_moments)(exp_avg, exp_avg_sq, grads, c);
}

void frozen_update(const FrozenUpdateArrays& arrays,
                   const AdamCoefficients& c) {
  require_low_precision(arrays.low_precision, arrays.size);
  THINWIRE_DISPATCH(run_frozen_update)(arrays, c);
}

void denominator(const float* exp_avg_sq, float* denominator, std::size_t size,
                 const AdamCoefficients& c) {
  THINWIRE_DISPATCH(run_denominator)(exp_avg_sq, denominator, size, c);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
