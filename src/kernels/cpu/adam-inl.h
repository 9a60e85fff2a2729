// SPDX-License-Identifier: Apache-2.0
// Parts that the exact and the 1-bit kernels of Adam share, for one SIMD
// target. Every operation is rounded in the order of thinwire/kernels/adam.h.

#if defined(THINWIRE_KERNELS_CPU_ADAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_CPU_ADAM_INL_H_
#undef THINWIRE_KERNELS_CPU_ADAM_INL_H_
#else
#define THINWIRE_KERNELS_CPU_ADAM_INL_H_
#endif

#include <cstddef>
#include <type_traits>

#include "kernels/cpu/vectors-inl.h"
#include "thinwire/kernels/adam.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

template <class D>
HWY_INLINE hn::Vec<D> next_momentum(D d, hn::Vec<D> m, hn::Vec<D> grad,
                                    const AdamCoefficients& c) {
  return hn::Add(hn::Mul(m, hn::Set(d, c.beta1)),
                 hn::Mul(hn::Set(d, c.one_minus_beta1), grad));
}

template <class D>
HWY_INLINE hn::Vec<D> next_variance(D d, hn::Vec<D> v, hn::Vec<D> grad,
                                    const AdamCoefficients& c) {
  return hn::Add(hn::Mul(v, hn::Set(d, c.beta2)),
                 hn::Mul(hn::Mul(hn::Set(d, c.one_minus_beta2), grad), grad));
}

/// Places the denominator's epsilon inside or outside the root. Adding -0.0 in
/// the other place changes nothing and avoids a branch.
struct Epsilon {
  explicit Epsilon(const AdamCoefficients& c)
      : inside(c.epsilon_inside_sqrt ? c.epsilon : -0.0f),
        outside(c.epsilon_inside_sqrt ? -0.0f : c.epsilon) {}
  float inside;
  float outside;
};

template <class D>
HWY_INLINE hn::Vec<D> next_denominator(D d, hn::Vec<D> v, Epsilon epsilon,
                                       const AdamCoefficients& c) {
  const auto scaled = hn::Mul(v, hn::Set(d, c.exp_avg_sq_scale));
  return hn::Add(hn::Sqrt(hn::Add(scaled, hn::Set(d, epsilon.inside))),
                 hn::Set(d, epsilon.outside));
}

/// A term factor * p that is added only if the factor is not 0, because 0 * p
/// would turn an infinite p into NaN. The choice is made once, so loops branch
/// on a constant.
struct Decay {
  explicit Decay(float f) : factor(f), used(f != 0) {}

  template <class D>
  HWY_INLINE hn::Vec<D> add(D d, hn::Vec<D> sum, hn::Vec<D> p) const {
    return used ? hn::Add(sum, hn::Mul(hn::Set(d, factor), p)) : sum;
  }

  float factor;
  bool used;
};

/// Computes the last two lines of the definition, with `scaled_m` = m *
/// exp_avg_scale.
template <class D>
HWY_INLINE hn::Vec<D> next_param(D d, hn::Vec<D> p, hn::Vec<D> scaled_m,
                                 hn::Vec<D> denominator, Decay decoupled,
                                 const AdamCoefficients& c) {
  const auto u = decoupled.add(d, hn::Div(scaled_m, denominator), p);
  return hn::Add(p, hn::Mul(hn::Set(d, c.minus_learning_rate), u));
}

/// Stores p, and also p rounded to L unless L is void.
template <class D, class L>
HWY_INLINE void store_param(D d, hn::Vec<D> p, float* params, L* low_precision,
                            std::size_t i) {
  hn::StoreU(p, d, params + i);
  if constexpr (!std::is_void_v<L>) store(d, p, low_precision + i);
}

/// Calls f with a typed pointer to the elements, or with a void pointer if
/// there are none. `f` calls a function of this target and contains no loop.
template <class F>
void visit_low_precision(const View& low_precision, const F& f) {
  if (low_precision.empty()) {
    f(static_cast<void*>(nullptr));
  } else if (low_precision.dtype() == DType::kFloat16) {
    f(low_precision.as<Half>().data());
  } else {
    f(low_precision.as<BFloat16>().data());
  }
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_CPU_ADAM_INL_H_
