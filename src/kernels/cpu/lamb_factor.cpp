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

// Two momenta, and what they say of the gradient between them. Each has
// prefetch(i, count) as a loop's body has, begin_word(w), and then for the
// elements j of that word exp_avg(tag, j) and square(tag, j): (one_minus_beta2
// * g) * g of g = (m - beta1 * m_old) / one_minus_beta1, neither of them
// masked.

/// Both in any form. Decided in the loop, which divides anyway: that spares a
/// loop for each pair of forms.
class AnyMomenta {
 public:
  AnyMomenta(const LambFactorArrays& a, const AdamCoefficients& c)
      : now_(a.exp_avg), before_(a.previous), c_(c) {}

  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    now_.prefetch(i, count);
    before_.prefetch(i, count);
  }
  HWY_INLINE void begin_word(std::size_t w) {
    now_.begin_word(w);
    before_.begin_word(w);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> exp_avg(D d, std::size_t j) const {
    return now_.at(d, j);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> square(D d, std::size_t j) const {
    const auto decayed = hn::Mul(hn::Set(d, c_.beta1), before_.at(d, j));
    const auto g = hn::Div(hn::Sub(now_.at(d, j), decayed),
                           hn::Set(d, c_.one_minus_beta1));
    return hn::Mul(hn::Mul(hn::Set(d, c_.one_minus_beta2), g), g);
  }

 private:
  struct Form {
    explicit Form(const MomentumForm& form)
        : values(form.values), signs(form.signs) {}

    HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
      if (values != nullptr) prefetch_ahead(values + i, count);
    }
    HWY_INLINE void begin_word(std::size_t w) {
      if (values == nullptr) {
        word = signs.words[w];
      } else {
        first = values + w * 32;
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

  Form now_;
  Form before_;
  AdamCoefficients c_;
};

/// Both as signs: rounding is symmetric, so there are two squares in a block,
/// one for elements whose sign stayed and one for the others.
class TwoSigns {
 public:
  TwoSigns(const LambFactorArrays& a, const AdamCoefficients& c)
      : now_(a.exp_avg.signs), before_(a.previous.signs) {
    const float decayed = c.beta1 * before_.scale;
    const float same = (now_.scale - decayed) / c.one_minus_beta1;
    const float other = (now_.scale + decayed) / c.one_minus_beta1;
    stayed_ = (c.one_minus_beta2 * same) * same;
    changed_ = (c.one_minus_beta2 * other) * other;
  }

  // A block's words are one line or two.
  HWY_INLINE void prefetch(std::size_t /*i*/, std::size_t /*count*/) const {}
  HWY_INLINE void begin_word(std::size_t w) {
    word_ = now_.words[w];
    changes_ = word_ ^ before_.words[w];
  }
  template <class D>
  HWY_INLINE hn::Vec<D> exp_avg(D d, std::size_t j) const {
    return signed_value(d, now_.scale, word_, j);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> square(D d, std::size_t j) const {
    return hn::IfThenElse(lanes_of(d, changes_, j), hn::Set(d, changed_),
                          hn::Set(d, stayed_));
  }

 private:
  Signs now_;
  Signs before_;
  float stayed_;
  float changed_;
  std::uint32_t word_ = 0;
  std::uint32_t changes_ = 0;
};

template <class Momenta>
struct FactorWord {
  FactorWord(const LambFactorArrays& arrays,
             const AdamCoefficients& coefficients)
      : a(arrays), c(coefficients) {}

  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    momenta.prefetch(i, count);
    prefetch_ahead(a.fresh + i, count);
    prefetch_ahead(a.denominator + i, count);
    if (decoupled.used) prefetch_ahead(a.params + i, count);
  }

  /// Terms of the sums: the update without decay, and with it.
  HWY_INLINE void operator()(std::size_t w, std::size_t count, float* plain,
                             float* update) {
    momenta.begin_word(w);
    const Part part{*this, w * 32, active_word(a.active, w), plain, update};
    for_each_part(count, part);
  }

  struct Part {
    template <class D>
    HWY_INLINE void operator()(D d, std::size_t j) const {
      const std::size_t i = first + j;
      const AdamCoefficients& c = of.c;
      auto m = of.momenta.exp_avg(d, j);
      auto square = of.momenta.square(d, j);
      if (HWY_UNLIKELY(active != kAllActive)) {
        m = hn::IfThenElseZero(lanes_of(d, active, j), m);
        square = hn::IfThenElseZero(lanes_of(d, active, j), square);
      }
      const auto fresh = hn::Add(
          hn::Mul(hn::LoadU(d, of.a.fresh + i), hn::Set(d, c.beta2)), square);
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
  Momenta momenta{a, c};
  Epsilon epsilon{c};
  Decay decoupled{c.decoupled_decay};
  float largest = 0;
};

template <class Momenta>
struct WithoutSums {
  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    word.prefetch(i, count);
  }
  HWY_INLINE void operator()(std::size_t w, std::uint32_t /*active*/,
                             std::size_t count) const {
    float unused[32];
    word(w, count, unused, unused);
  }

  FactorWord<Momenta>& word;
};

template <class Momenta>
LambFactorSums lamb_factor_of(const LambFactorArrays& arrays,
                              const AdamCoefficients& c) {
  FactorWord<Momenta> word(arrays, c);
  LambFactorSums result;
  if (word.decoupled.used) {
    two_sums_of_squares(arrays.size, kSumChunk, word, [&](TwoSums sums) {
      result.plain += sums.first;
      result.update += sums.second;
    });
  } else {
    const WithoutSums<Momenta> without{word};
    for_each_word(arrays.size, arrays.active, without);
  }
  result.ratio = word.largest;
  return result;
}

LambFactorSums run_lamb_factor(const LambFactorArrays& arrays,
                               const AdamCoefficients& c) {
  const bool are_signs =
      arrays.exp_avg.values == nullptr && arrays.previous.values == nullptr;
  return are_signs ? lamb_factor_of<TwoSigns>(arrays, c)
                   : lamb_factor_of<AnyMomenta>(arrays, c);
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
