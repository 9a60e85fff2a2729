// SPDX-License-Identifier: Apache-2.0
// Kernels sign_split(), sign_decode() and sign_update().
#include "thinwire/kernels/sign_compress.h"

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sign_compress.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/adam-inl.h"
#include "kernels/cpu/signs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

struct SplitPart {
  template <class D>
  HWY_INLINE void operator()(D d, std::size_t j) {
    const auto c = hn::LoadU(d, error + j);
    const auto s = hn::Set(d, scale);
    const auto negative = hn::Lt(c, hn::Zero(d));
    const auto sent = hn::IfThenElse(negative, hn::Neg(s), s);
    hn::StoreU(hn::Sub(c, sent), d, error + j);
    negatives |= word_of(d, negative, j);
  }

  float* error;
  float scale;
  std::uint32_t negatives = 0;
};

struct SplitWord {
  HWY_INLINE void operator()(std::size_t w, std::uint32_t active,
                             std::size_t count) const {
    SplitPart part{error + w * 32, scale};
    for_each_part(count, part);
    const std::uint32_t inside = kAllActive >> (32 - count);
    words[w] = ~(part.negatives & active) & inside;
    zero_masked(part.error, active, count);
  }

  float* error;
  float scale;
  std::uint32_t* words;
};

void run_sign_split(float* error, float scale, std::uint32_t* words,
                    const std::uint32_t* active, std::size_t size) {
  const SplitWord word{error, scale, words};
  for_each_word(size, active, word);
}

struct DecodePart {
  template <class D>
  HWY_INLINE void operator()(D d, std::size_t j) const {
    hn::StoreU(signed_value(d, scale, word, j), d, out + j);
  }

  float* out;
  float scale;
  std::uint32_t word;
};

struct DecodeWord {
  HWY_INLINE void operator()(std::size_t w, std::uint32_t active,
                             std::size_t count) const {
    const DecodePart part{out + w * 32, signs.scale, signs.words[w]};
    for_each_part(count, part);
    zero_masked(part.out, active, count);
  }

  Signs signs;
  float* out;
};

void run_sign_decode(Signs signs, const std::uint32_t* active, float* out,
                     std::size_t size) {
  const DecodeWord word{signs, out};
  for_each_word(size, active, word);
}

template <class L>
struct UpdateWord {
  UpdateWord(Signs mean, const FrozenUpdateArrays& arrays,
             const AdamCoefficients& coefficients)
      : words(mean.words),
        params(arrays.params),
        denominator(arrays.denominator),
        low_precision(static_cast<L*>(arrays.low_precision.data())),
        c(coefficients),
        scaled(mean.scale * c.exp_avg_scale),
        scaled_zero(0.0f * c.exp_avg_scale) {}

  HWY_INLINE void prefetch(std::size_t i, std::size_t count) const {
    prefetch_ahead(params + i, count);
    prefetch_ahead(denominator + i, count);
  }

  HWY_INLINE void operator()(std::size_t w, std::uint32_t active,
                             std::size_t count) const {
    const Part part{*this, words[w], active, w * 32};
    for_each_part(count, part);
  }

  struct Part {
    template <class D>
    HWY_INLINE void operator()(D d, std::size_t j) const {
      const std::size_t i = first + j;
      auto scaled_m = signed_value(d, of.scaled, word, j);
      if (HWY_UNLIKELY(active != kAllActive)) {
        scaled_m = hn::IfThenElse(lanes_of(d, active, j), scaled_m,
                                  hn::Set(d, of.scaled_zero));
      }
      const auto next =
          next_param(d, hn::LoadU(d, of.params + i), scaled_m,
                     hn::LoadU(d, of.denominator + i), of.decoupled, of.c);
      store_param(d, next, of.params, of.low_precision, i);
    }

    const UpdateWord& of;
    std::uint32_t word;
    std::uint32_t active;
    std::size_t first;
  };

  const std::uint32_t* words;
  float* params;
  const float* denominator;
  L* low_precision;
  AdamCoefficients c;
  Decay decoupled{c.decoupled_decay};
  float scaled;       // m * exp_avg_scale if m is +scale
  float scaled_zero;  // m * exp_avg_scale if m is masked
};

template <class L>
void update_of(Signs mean, const std::uint32_t* active,
               const FrozenUpdateArrays& arrays, const AdamCoefficients& c) {
  const UpdateWord<L> word(mean, arrays, c);
  for_each_word(arrays.size, active, word);
}

void run_sign_update(Signs mean, const std::uint32_t* active,
                     const FrozenUpdateArrays& arrays,
                     const AdamCoefficients& c) {
  visit_low_precision(arrays.low_precision, [&]<class L>(L*) {
    update_of<L>(mean, active, arrays, c);
  });
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_sign_split);
HWY_EXPORT(run_sign_decode);
HWY_EXPORT(run_sign_update);

void sign_split(float* error, float scale, std::uint32_t* words,
                const std::uint32_t* active, std::size_t size) {
  THINWIRE_DISPATCH(run_sign_split)(error, scale, words, active, size);
}

void sign_decode(Signs signs, const std::uint32_t* active, float* out,
                 std::size_t size) {
  THINWIRE_DISPATCH(run_sign_decode)(signs, active, out, size);
}

void sign_update(Signs mean, const std::uint32_t* active,
                 const FrozenUpdateArrays& arrays, const AdamCoefficients& c) {
  require_low_precision(arrays.low_precision, arrays.size);
  THINWIRE_DISPATCH(run_sign_update)(mean, active, arrays, c);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
