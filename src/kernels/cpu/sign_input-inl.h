// SPDX-License-Identifier: Apache-2.0
// Forms of SignInput, to which a block's residual is added, for one SIMD
// target.

#if defined(THINWIRE_KERNELS_CPU_SIGN_INPUT_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_CPU_SIGN_INPUT_INL_H_
#undef THINWIRE_KERNELS_CPU_SIGN_INPUT_INL_H_
#else
#define THINWIRE_KERNELS_CPU_SIGN_INPUT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/adam-inl.h"
#include "kernels/cpu/signs-inl.h"
#include "thinwire/kernels/sign_compress.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

// Each form has begin_word(w) for w = 0, 1, ..., and at(tag, j) for the
// elements j of that word. If it reads arrays of floats, it also has
// prefetch(i, count).

struct NoValues {
  HWY_INLINE void begin_word(std::size_t) {}
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t) const {
    return hn::Zero(d);
  }
};

struct Values {
  explicit Values(const float* x) : values(x) {}
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(values + i, count);
  }
  HWY_INLINE void begin_word(std::size_t w) { first = w * 32; }
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t j) const {
    return hn::LoadU(d, values + first + j);
  }

  const float* values;
  std::size_t first = 0;
};

/// Finishes a momentum: scales it, or turns it into a sum of updates. The loop
/// makes this choice at no cost, because it waits for memory anyway. Otherwise
/// six more loops would be necessary.
struct Finish {
  explicit Finish(const SignInput& input)
      : factor(input.factor),
        denominator(input.denominator),
        accumulated(input.accumulated),
        exp_avg_scale(input.coefficients->exp_avg_scale),
        minus_learning_rate(input.coefficients->minus_learning_rate) {}

  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    if (denominator == nullptr) return;
    prefetch_ahead(denominator + i, count);
    if (accumulated != nullptr) prefetch_ahead(accumulated + i, count);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> of(D d, hn::Vec<D> m, std::size_t i) const {
    if (denominator == nullptr) return hn::Mul(m, hn::Set(d, factor));
    const auto divisor = hn::LoadU(d, denominator + i);
    const auto u = hn::Div(hn::Mul(m, hn::Set(d, exp_avg_scale)), divisor);
    const auto sum =
        accumulated != nullptr ? hn::LoadU(d, accumulated + i) : hn::Zero(d);
    const auto next = hn::Add(sum, hn::Mul(hn::Set(d, minus_learning_rate), u));
    return hn::Mul(next, divisor);
  }

  float factor;
  const float* denominator;
  const float* accumulated;
  float exp_avg_scale;
  float minus_learning_rate;
};

template <class G>
struct Momentum {
  explicit Momentum(const SignInput& input)
      : grads(static_cast<const G*>(input.grads.data())),
        exp_avg(input.exp_avg),
        c(*input.coefficients),
        finish(input) {}

  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(grads + i, count);
    prefetch_ahead(exp_avg + i, count);
    finish.prefetch(i, count);
  }
  HWY_INLINE void begin_word(std::size_t w) { first = w * 32; }
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t j) const {
    const auto g =
        hn::Mul(load(d, grads + first + j), hn::Set(d, c.grad_scale));
    const auto m = next_momentum(d, hn::LoadU(d, exp_avg + first + j), g, c);
    return finish.of(d, m, first + j);
  }

  const G* grads;
  const float* exp_avg;
  AdamCoefficients c;
  Finish finish;
  std::size_t first = 0;
};

template <class G>
struct MeanMomentum {
  explicit MeanMomentum(const SignInput& input)
      : grads(static_cast<const G*>(input.grads.data())),
        words(input.mean.words),
        c(*input.coefficients),
        finish(input),
        decayed(input.mean.scale * c.beta1) {}

  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(grads + i, count);
    finish.prefetch(i, count);
  }
  HWY_INLINE void begin_word(std::size_t w) {
    first = w * 32;
    word = words[w];
  }
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t j) const {
    const auto g =
        hn::Mul(load(d, grads + first + j), hn::Set(d, c.grad_scale));
    const auto m = hn::Add(signed_value(d, decayed, word, j),
                           hn::Mul(hn::Set(d, c.one_minus_beta1), g));
    return finish.of(d, m, first + j);
  }

  const G* grads;
  const std::uint32_t* words;
  AdamCoefficients c;
  Finish finish;
  float decayed;  // rounding is symmetric: (-scale) * beta1 is its negative
  std::size_t first = 0;
  std::uint32_t word = 0;
};

template <class G, class Use>
auto use_gradients(const SignInput& input, const Use& use) {
  return input.exp_avg != nullptr ? use(Momentum<G>(input))
                                  : use(MeanMomentum<G>(input));
}

/// Calls use(x) with the form that `input` has.
template <class Use>
auto use_input(const SignInput& input, const Use& use) {
  if (input.values != nullptr) return use(Values(input.values));
  if (input.grads.empty()) return use(NoValues());
  return visit_floats(input.grads, [&]<class G>(const G*) {
    return use_gradients<G>(input, use);
  });
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_CPU_SIGN_INPUT_INL_H_
