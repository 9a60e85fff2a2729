// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign_compress.h"

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sign_accumulate.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/adam-inl.h"
#include "kernels/cpu/sign_error-inl.h"
#include "kernels/cpu/signs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

// What can be added to the error.

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

/// What becomes of a momentum: it is scaled, or stands for a sum of updates.
/// Decided in the loop, whose memory it waits for anyway: that spares six more
/// loops.
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

template <class G>
double accumulate_of(const SignInput& input, float* error,
                     const std::uint32_t* active, SignNorm norm,
                     std::size_t size) {
  return input.exp_avg != nullptr
             ? add_to_error(Momentum<G>(input), error, active, norm, size)
             : add_to_error(MeanMomentum<G>(input), error, active, norm, size);
}

double run_sign_accumulate(const SignInput& input, float* error,
                           const std::uint32_t* active, SignNorm norm,
                           std::size_t size) {
  if (input.values != nullptr) {
    return add_to_error(Values(input.values), error, active, norm, size);
  }
  if (input.grads.empty()) {
    return add_to_error(NoValues(), error, active, norm, size);
  }
  switch (input.grads.dtype()) {
    case DType::kFloat16:
      return accumulate_of<Half>(input, error, active, norm, size);
    case DType::kBFloat16:
      return accumulate_of<BFloat16>(input, error, active, norm, size);
    default:
      return accumulate_of<float>(input, error, active, norm, size);
  }
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_sign_accumulate);

double sign_accumulate(const SignInput& input, float* error,
                       const std::uint32_t* active, SignNorm norm,
                       std::size_t size) {
  require_input(input, size);
  return HWY_DYNAMIC_DISPATCH(run_sign_accumulate)(input, error, active, norm,
                                                   size);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
