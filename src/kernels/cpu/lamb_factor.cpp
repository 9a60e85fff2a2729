// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/lamb.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/lamb_factor.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/adam-inl.h"
#include "kernels/cpu/ordered_sum-inl.h"
#include "kernels/cpu/signs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

// Pairs of an old and a new momentum, which determine the gradient between
// them. Each class defines prefetch(i, count) and begin_word(w), as a loop's
// body does. For the elements j of that word it also defines exp_avg(tag, j)
// and square(tag, j). square() is (one_minus_beta2 * g) * g for g = (m - beta1
// * m_old) / one_minus_beta1. Neither result is masked.

/// Two momenta in any form. One loop chooses between the forms, so that no loop
/// per pair of forms is needed. The choice costs nothing beside the division.
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

/// Two momenta as signs. Because rounding is symmetric, a block has only two
/// squares: one for elements whose sign stayed and one for the others.
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

  // A block's words fill one or two cache lines.
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

/// The largest frozen / max(d_fresh, floor) so far. Only few elements need the
/// square root and the division.
class LargestRatio {
 public:
  LargestRatio(const AdamCoefficients& c, float floor)
      : c_(c), epsilon_(c), floor_(floor) {
    const float scale = c.exp_avg_sq_scale;
    // If any number is unusual, every ratio is computed.
    is_plain_ = scale > 0x1p-60f && scale < 0x1p60f && floor >= 0 &&
                epsilon_.outside >= 0 && epsilon_.inside >= 0;
    if (!is_plain_) return;
    const float above = std::max(floor - epsilon_.outside, 0.0f);
    const float inside = epsilon_.inside / scale;
    outside_ = epsilon_.outside / std::sqrt(scale);
    least_ = above / scale * above * kLess - inside;
    slack_ = 0x1p-100f - inside * kLess;
  }

  /// Returns false if no lane's ratio exceeds R, which is value(); frozen > 0.
  /// A larger ratio requires
  ///  max(sqrt(fresh * scale + inside) + outside, floor) < frozen / R
  /// which, divided by sqrt(scale) and squared, is
  ///  max(fresh, least) < (frozen / (R sqrt(scale)) - outside')^2 - inside'
  /// To outweigh all roundings together, frozen / R is raised by 2^-18 of
  /// itself, and inside' and least are lowered by the same proportion. The
  /// right side is also raised by more than subnormal numbers lose.
  template <class D>
  HWY_INLINE bool may_grow(D d, hn::Vec<D> frozen, hn::Vec<D> fresh) const {
    const auto root =
        hn::Max(hn::MulSub(frozen, hn::Set(d, inverse_), hn::Set(d, outside_)),
                hn::Zero(d));
    const auto most = hn::MulAdd(root, root, hn::Set(d, slack_));
    return !hn::AllFalse(d, hn::Le(hn::Max(fresh, hn::Set(d, least_)), most));
  }

  template <class D>
  HWY_INLINE hn::Vec<D> ratio(D d, hn::Vec<D> frozen, hn::Vec<D> fresh) const {
    const auto denominator = next_denominator(d, fresh, epsilon_, c_);
    const auto least = hn::Set(d, floor_);
    return hn::Div(
        frozen, hn::IfThenElse(hn::Lt(denominator, least), least, denominator));
  }

  template <class D>
  HWY_INLINE void keep(D d, hn::Vec<D> ratio) {
    const auto old = hn::Set(d, value_);
    const auto more = hn::IfThenElse(hn::Gt(ratio, old), ratio, old);
    value_ = hn::GetLane(hn::MaxOfLanes(d, more));
    if (is_plain_ && value_ > 0x1p-60f && value_ < 0x1p60f) {
      inverse_ = kMore / (value_ * std::sqrt(c_.exp_avg_sq_scale));
    } else {
      inverse_ = std::numeric_limits<float>::infinity();
    }
  }

  [[nodiscard]] float value() const { return value_; }

 private:
  static constexpr float kMore = 1 + 0x1p-18f;
  static constexpr float kLess = 1 - 0x1p-18f;

  AdamCoefficients c_;
  Epsilon epsilon_;
  float floor_;
  bool is_plain_;
  float outside_ = 0;
  float least_ = 0;
  float slack_ = 0;
  float value_ = 0;
  // Slightly more than 1 / (value_ sqrt(scale)). While it is infinite, every
  // element is examined.
  float inverse_ = std::numeric_limits<float>::infinity();
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

  /// Writes the terms of the sums: the update without and with decay.
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
      if (HWY_UNLIKELY(of.largest.may_grow(d, denominator, fresh))) {
        keep_largest(d, j, denominator, fresh);
      }
      if (!of.decoupled.used) return;
      const auto u =
          hn::Div(hn::Mul(m, hn::Set(d, c.exp_avg_scale)), denominator);
      hn::StoreU(u, d, plain + j);
      const auto p = hn::LoadU(d, of.a.params + i);
      hn::StoreU(of.decoupled.add(d, u, p), d, update + j);
    }

    template <class D>
    HWY_INLINE void keep_largest(D d, std::size_t j, hn::Vec<D> frozen,
                                 hn::Vec<D> fresh) const {
      auto ratio = of.largest.ratio(d, frozen, fresh);
      if (HWY_UNLIKELY(active != kAllActive)) {
        ratio = hn::IfThenElseZero(lanes_of(d, active, j), ratio);
      }
      of.largest.keep(d, ratio);
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
  Decay decoupled{c.decoupled_decay};
  LargestRatio largest{c, a.floor};
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
  result.ratio = word.largest.value();
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
  return THINWIRE_DISPATCH(run_lamb_factor)(arrays, c);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
