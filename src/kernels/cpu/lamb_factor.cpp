// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/lamb.h"

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/lamb_factor.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/adam-inl.h"
#include "kernels/cpu/ordered_sum-inl.h"
#include "kernels/cpu/signs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

/// Either form of a momentum. Decided in the loop, which divides anyway: that
/// spares a loop for each pair of forms.
struct EitherMomentum {
  explicit EitherMomentum(const MomentumForm& form)
      : values(form.values), signs(form.signs) {}

  HWY_INLINE void begin_word(std::size_t w) {
    if (values == nullptr) {
      word = signs.words[w];
    } else {
      first = values + w * 32;
      prefetch_ahead(first, 32);
    }
  }
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t j) const {
    return values == nullptr ? signed_value(d, signs.scale, word, j)
                             : hn::LoadU(d, first + j);
  }

  const float* values;
  Signs signs;
  const float* first = nullptr;
  std::uint32_t word = 0;
};

struct FactorWord {
  FactorWord(const LambFactorArrays& arrays,
             const AdamCoefficients& coefficients)
      : a(arrays), c(coefficients) {}

  /// Terms of the sums: the update without decay, and with it.
  HWY_INLINE void operator()(std::size_t w, std::size_t count, float* plain,
                             float* update) {
    exp_avg.begin_word(w);
    previous.begin_word(w);
    prefetch_ahead(a.fresh + w * 32, 32);
    prefetch_ahead(a.denominator + w * 32, 32);
    if (decoupled.used) prefetch_ahead(a.params + w * 32, 32);
    const Part part{*this, w * 32, active_word(a.active, w), plain, update};
    for_each_part(count, part);
  }

  struct Part {
    template <class D>
    HWY_INLINE void operator()(D d, std::size_t j) const {
      const std::size_t i = first + j;
      const AdamCoefficients& c = of.c;
      auto m = of.exp_avg.at(d, j);
      auto m_before = of.previous.at(d, j);
      if (HWY_UNLIKELY(active != kAllActive)) {
        m = hn::IfThenElseZero(lanes_of(d, active, j), m);
        m_before = hn::IfThenElseZero(lanes_of(d, active, j), m_before);
      }
      const auto change = hn::Sub(m, hn::Mul(hn::Set(d, c.beta1), m_before));
      const auto g = hn::Div(change, hn::Set(d, c.one_minus_beta1));
      const auto fresh = next_variance(d, hn::LoadU(d, of.a.fresh + i), g, c);
      hn::StoreU(fresh, d, of.a.fresh + i);
      const auto denominator = hn::LoadU(d, of.a.denominator + i);
      keep_largest(d, j, denominator,
                   next_denominator(d, fresh, of.epsilon, c));
      if (!of.decoupled.used) return;
      const auto u =
          hn::Div(hn::Mul(m, hn::Set(d, c.exp_avg_scale)), denominator);
      hn::StoreU(u, d, plain + j);
      const auto p = hn::LoadU(d, of.a.params + i);
      hn::StoreU(of.decoupled.add(d, u, p), d, update + j);
    }

    // A quotient that rounds to more than `largest` is more than it, so that
    // frozen is at least the rounded product: few vectors need the division.
    template <class D>
    HWY_INLINE void keep_largest(D d, std::size_t j, hn::Vec<D> frozen,
                                 hn::Vec<D> fresh) const {
      const auto least = hn::Set(d, of.a.floor);
      const auto raised = hn::IfThenElse(hn::Lt(fresh, least), least, fresh);
      const auto largest = hn::Set(d, of.largest);
      const auto reached = hn::Mul(largest, hn::Abs(raised));
      if (HWY_LIKELY(hn::AllFalse(d, hn::Ge(hn::Abs(frozen), reached)))) return;
      auto ratio = hn::Div(frozen, raised);
      if (HWY_UNLIKELY(active != kAllActive)) {
        ratio = hn::IfThenElseZero(lanes_of(d, active, j), ratio);
      }
      const auto more = hn::IfThenElse(hn::Gt(ratio, largest), ratio, largest);
      of.largest = hn::GetLane(hn::MaxOfLanes(d, more));
    }

    FactorWord& of;
    std::size_t first;
    std::uint32_t active;
    float* plain;
    float* update;
  };

  LambFactorArrays a;
  AdamCoefficients c;
  EitherMomentum exp_avg{a.exp_avg};
  EitherMomentum previous{a.previous};
  Epsilon epsilon{c};
  Decay decoupled{c.decoupled_decay};
  float largest = 0;
};

struct WithoutSums {
  HWY_INLINE void operator()(std::size_t w, std::uint32_t /*active*/,
                             std::size_t count) const {
    float unused[32];
    word(w, count, unused, unused);
  }

  FactorWord& word;
};

LambFactorSums run_lamb_factor(const LambFactorArrays& arrays,
                               const AdamCoefficients& c) {
  FactorWord word(arrays, c);
  LambFactorSums result;
  if (word.decoupled.used) {
    const TwoSums sums = two_sums_of_squares(arrays.size, word);
    result.plain = sums.first;
    result.update = sums.second;
  } else {
    const WithoutSums without{word};
    for_each_word(arrays.size, arrays.active, without);
  }
  result.ratio = word.largest;
  return result;
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_lamb_factor);

LambFactorSums lamb_factor(const LambFactorArrays& arrays,
                           const AdamCoefficients& c) {
  require_momentum("exp_avg", arrays.exp_avg, arrays.size);
  require_momentum("previous", arrays.previous, arrays.size);
  return HWY_DYNAMIC_DISPATCH(run_lamb_factor)(arrays, c);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
