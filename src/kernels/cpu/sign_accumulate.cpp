// SPDX-License-Identifier: Apache-2.0
// sign_accumulate() and sign_average(): what is written over the error.
#include "thinwire/kernels/sign_compress.h"

#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sign_accumulate.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/adam-inl.h"
#include "kernels/cpu/ordered_sum-inl.h"
#include "kernels/cpu/signs-inl.h"
#include "thinwire/kernels/norm.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

// What can be added to the error. Each has begin_word(w), for w = 0, 1, ...,
// which also asks for memory ahead, and then at(tag, j) for the elements j of
// that word.

struct NoValues {
  HWY_INLINE void begin_word(std::size_t) {}
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t) const {
    return hn::Zero(d);
  }
};

struct Values {
  explicit Values(const float* x) : values(x) {}
  HWY_INLINE void begin_word(std::size_t w) {
    first = w * 32;
    prefetch_ahead(values + first, 32);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t j) const {
    return hn::LoadU(d, values + first + j);
  }

  const float* values;
  std::size_t first = 0;
};

template <class G>
struct Momentum {
  explicit Momentum(const SignInput& input)
      : grads(static_cast<const G*>(input.grads.data())),
        exp_avg(input.exp_avg),
        c(*input.coefficients) {}

  HWY_INLINE void begin_word(std::size_t w) {
    first = w * 32;
    prefetch_ahead(grads + first, 32);
    prefetch_ahead(exp_avg + first, 32);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t j) const {
    const auto g =
        hn::Mul(load(d, grads + first + j), hn::Set(d, c.grad_scale));
    return next_momentum(d, hn::LoadU(d, exp_avg + first + j), g, c);
  }

  const G* grads;
  const float* exp_avg;
  AdamCoefficients c;
  std::size_t first = 0;
};

template <class G>
struct MeanMomentum {
  explicit MeanMomentum(const SignInput& input)
      : grads(static_cast<const G*>(input.grads.data())),
        words(input.mean.words),
        c(*input.coefficients),
        decayed(input.mean.scale * c.beta1) {}

  HWY_INLINE void begin_word(std::size_t w) {
    first = w * 32;
    word = words[w];
    prefetch_ahead(grads + first, 32);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t j) const {
    const auto g =
        hn::Mul(load(d, grads + first + j), hn::Set(d, c.grad_scale));
    return hn::Add(signed_value(d, decayed, word, j),
                   hn::Mul(hn::Set(d, c.one_minus_beta1), g));
  }

  const G* grads;
  const std::uint32_t* words;
  AdamCoefficients c;
  float decayed;  // rounding is symmetric: (-scale) * beta1 is its negative
  std::size_t first = 0;
  std::uint32_t word = 0;
};

/// Sums over the ranks, for kWords words at a time.
struct Average {
  static constexpr std::size_t kWords = 32;
  static constexpr std::size_t kRanks = 16;

  HWY_INLINE void begin_word(std::size_t w) {
    first = w % kWords * 32;
    if (first == 0) add_up(w, std::min(kWords, num_words - w));
  }
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t j) const {
    return hn::LoadU(d, sums + first + j);
  }

  /// In rank order, but no more than kRanks in one go over the words.
  HWY_INLINE void add_up(std::size_t begin, std::size_t count) {
    std::size_t r = 0;
    do {
      const auto some = received.subspan(r, std::min(kRanks, num_ranks() - r));
      float terms[kRanks];
      for (std::size_t k = 0; k < some.size(); ++k) {
        terms[k] = some[k].scale * inverse_count;
      }
      for (std::size_t w = 0; w < count; ++w) {
        add_up_word(some, terms, begin + w, r == 0, sums + w * 32);
      }
      r += some.size();
    } while (r < num_ranks());
  }

  HWY_INLINE void add_up_word(std::span<const Signs> some, const float* terms,
                              std::size_t w, bool from_zero, float* out) const {
    const Float d;
    hn::Vec<Float> sum[32 / kLanes];
    for (std::size_t k = 0; k < 32 / kLanes; ++k) {
      sum[k] = from_zero ? hn::Zero(d) : hn::Load(d, out + k * kLanes);
    }
    for (std::size_t r = 0; r < some.size(); ++r) {
      const auto term = hn::Set(d, terms[r]);
      const auto word = hn::Set(Uint<Float>(), some[r].words[w]);
      for (std::size_t k = 0; k < 32 / kLanes; ++k) {
        sum[k] = hn::Add(sum[k], signed_value(d, term, word, k * kLanes));
      }
    }
    for (std::size_t k = 0; k < 32 / kLanes; ++k) {
      hn::Store(sum[k], d, out + k * kLanes);
    }
  }

  std::size_t num_ranks() const { return received.size(); }

  std::span<const Signs> received;
  float inverse_count;
  std::size_t num_words;
  float* sums;  // kWords * 32
  std::size_t first = 0;
};

template <class X>
struct AddPart {
  template <class D>
  HWY_INLINE void operator()(D d, std::size_t j) const {
    hn::StoreU(hn::Add(x.at(d, j), hn::LoadU(d, error + j)), d, error + j);
  }

  const X& x;
  float* error;
};

/// error = x + error, 0 where masked, for the `count` elements of word w.
template <class X>
HWY_INLINE void add_word(X& x, float* error, const std::uint32_t* active,
                         std::size_t w, std::size_t count) {
  x.begin_word(w);
  prefetch_ahead(error + w * 32, 32);
  const AddPart<X> part{x, error + w * 32};
  for_each_part(count, part);
  zero_masked(part.error, active_word(active, w), count);
}

/// Sums are taken from what was just written, which the core still holds.
template <class X>
double add_to_error(const X& values, float* error, const std::uint32_t* active,
                    SignNorm norm, std::size_t size) {
  X x = values;  // a copy that no store to `error` can alias
  const Term term = norm == SignNorm::kSquares ? Term::kSquare : Term::kAbs;
  double total = 0;
  for (std::size_t begin = 0; begin < size; begin += kSumChunk) {
    const std::size_t end = std::min(begin + kSumChunk, size);
    OrderedSum sum(term);
    std::size_t i = begin;
    for (; i + 32 <= end; i += 32) {
      add_word(x, error, active, i / 32, 32);
      sum.add_group(error + i);
      sum.add_group(error + i + 16);
    }
    if (i < end) add_word(x, error, active, i / 32, end - i);
    if (i + 16 <= end) {
      sum.add_group(error + i);
      i += 16;
    }
    total += sum.total(error + i, end - i);
  }
  return total;
}

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

double run_sign_average(std::span<const Signs> received, float inverse_count,
                        float* error, const std::uint32_t* active,
                        SignNorm norm, std::size_t size) {
  alignas(64) float sums[Average::kWords * 32];
  return add_to_error(Average{received, inverse_count, sign_words(size), sums},
                      error, active, norm, size);
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_sign_accumulate);
HWY_EXPORT(run_sign_average);

double sign_accumulate(const SignInput& input, float* error,
                       const std::uint32_t* active, SignNorm norm,
                       std::size_t size) {
  require_input(input, size);
  if (input.factor != 1 || input.denominator != nullptr) {
    return ref::sign_accumulate(input, error, active, norm, size);
  }
  return HWY_DYNAMIC_DISPATCH(run_sign_accumulate)(input, error, active, norm,
                                                   size);
}

double sign_average(std::span<const Signs> received, float inverse_count,
                    float* error, const std::uint32_t* active, SignNorm norm,
                    std::size_t size) {
  return HWY_DYNAMIC_DISPATCH(run_sign_average)(received, inverse_count, error,
                                                active, norm, size);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
