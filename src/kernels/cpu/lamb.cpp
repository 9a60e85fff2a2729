// SPDX-License-Identifier: Apache-2.0
// Kernels lamb_moments() and lamb_update().
#include "thinwire/kernels/lamb.h"

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/lamb.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/adam-inl.h"
#include "kernels/cpu/ordered_sum-inl.h"
#include "kernels/cpu/signs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

/// The update (m * exp_avg_scale) / d plus the decay.
struct Update {
  explicit Update(const AdamCoefficients& c)
      : exp_avg_scale(c.exp_avg_scale), decoupled(c.decoupled_decay) {}

  template <class D>
  HWY_INLINE hn::Vec<D> of(D d, hn::Vec<D> p, hn::Vec<D> m,
                           hn::Vec<D> denominator) const {
    const auto scaled_m = hn::Mul(m, hn::Set(d, exp_avg_scale));
    return decoupled.add(d, hn::Div(scaled_m, denominator), p);
  }

  float exp_avg_scale;
  Decay decoupled;
};

template <class G>
struct MomentsWord {
  MomentsWord(const AdamArrays& arrays, const AdamCoefficients& coefficients)
      : params(arrays.params),
        exp_avg(arrays.exp_avg),
        exp_avg_sq(arrays.exp_avg_sq),
        grads(static_cast<const G*>(arrays.grads.data())),
        c(coefficients) {}

  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(params + i, count);
    prefetch_ahead(exp_avg + i, count);
    prefetch_ahead(exp_avg_sq + i, count);
    prefetch_ahead(grads + i, count);
  }

  /// Writes the terms of the sums, p and u.
  HWY_INLINE void operator()(std::size_t w, std::size_t count, float* p,
                             float* u) const {
    const Part part{*this, w * 32, p, u};
    for_each_part(count, part);
  }

  struct Part {
    template <class D>
    HWY_INLINE void operator()(D d, std::size_t j) const {
      const std::size_t i = first + j;
      const AdamCoefficients& c = of.c;
      const auto p = hn::LoadU(d, of.params + i);
      const auto scaled_g =
          hn::Mul(load(d, of.grads + i), hn::Set(d, c.grad_scale));
      const auto g = of.l2.add(d, scaled_g, p);
      const auto m = next_momentum(d, hn::LoadU(d, of.exp_avg + i), g, c);
      const auto v = next_variance(d, hn::LoadU(d, of.exp_avg_sq + i), g, c);
      hn::StoreU(m, d, of.exp_avg + i);
      hn::StoreU(v, d, of.exp_avg_sq + i);
      hn::StoreU(p, d, p_terms + j);
      const auto denominator = next_denominator(d, v, of.epsilon, c);
      hn::StoreU(of.update.of(d, p, m, denominator), d, u_terms + j);
    }

    const MomentsWord& of;
    std::size_t first;
    float* p_terms;
    float* u_terms;
  };

  const float* params;
  float* exp_avg;
  float* exp_avg_sq;
  const G* grads;
  AdamCoefficients c;
  Epsilon epsilon{c};
  Decay l2{c.l2_decay};
  Update update{c};
};

template <class G>
void lamb_moments_of(const AdamArrays& arrays, const AdamCoefficients& c,
                     std::size_t first_chunk, LambSums* sums) {
  const MomentsWord<G> word(arrays, c);
  two_sums_of_squares(arrays.grads.size(), first_chunk, word, [&](TwoSums sum) {
    *sums++ = {sum.first, sum.second};
  });
}

void run_lamb_moments(const AdamArrays& arrays, const AdamCoefficients& c,
                      std::size_t first_chunk, LambSums* sums) {
  visit_floats(arrays.grads, [&]<class G>(const G*) {
    lamb_moments_of<G>(arrays, c, first_chunk, sums);
  });
}

template <class L>
struct UpdateStep {
  UpdateStep(const AdamArrays& arrays, const AdamCoefficients& coefficients)
      : params(arrays.params),
        exp_avg(arrays.exp_avg),
        exp_avg_sq(arrays.exp_avg_sq),
        low_precision(static_cast<L*>(arrays.low_precision.data())),
        c(coefficients) {}

  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(params + i, count);
    prefetch_ahead(exp_avg + i, count);
    prefetch_ahead(exp_avg_sq + i, count);
  }

  template <class D>
  HWY_INLINE void operator()(D d, std::size_t i) const {
    const auto p = hn::LoadU(d, params + i);
    const auto scaled_m =
        hn::Mul(hn::LoadU(d, exp_avg + i), hn::Set(d, c.exp_avg_scale));
    const auto denominator =
        next_denominator(d, hn::LoadU(d, exp_avg_sq + i), epsilon, c);
    store_param(d, next_param(d, p, scaled_m, denominator, decoupled, c),
                params, low_precision, i);
  }

  float* params;
  const float* exp_avg;
  const float* exp_avg_sq;
  L* low_precision;
  AdamCoefficients c;
  Epsilon epsilon{c};
  Decay decoupled{c.decoupled_decay};
};

void run_lamb_update(const AdamArrays& arrays, const AdamCoefficients& c) {
  visit_low_precision(arrays.low_precision, [&]<class L>(L*) {
    run_vectors<UpdateStep<L>>(arrays.grads.size(), arrays, c);
  });
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_lamb_moments);
HWY_EXPORT(run_lamb_update);

void lamb_moments(const AdamArrays& arrays, const AdamCoefficients& c,
                  std::size_t first_chunk, std::span<LambSums> sums) {
  require_lamb_sums(arrays.grads, first_chunk, sums.size());
  THINWIRE_DISPATCH(run_lamb_moments)(arrays, c, first_chunk, sums.data());
}

void lamb_update(const AdamArrays& arrays, const AdamCoefficients& c) {
  require_low_precision(arrays.low_precision, arrays.grads.size());
  THINWIRE_DISPATCH(run_lamb_update)(arrays, c);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
