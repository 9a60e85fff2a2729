// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign_compress.h"

#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sign_encode_average.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/sign_encode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

/// Sums over the ranks, kWords words at a time.
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

  /// Adds in rank order, at most kRanks in one pass over the words.
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

float run_sign_encode_average(std::span<const Signs> received,
                              float inverse_count, const SignBlock& block) {
  alignas(64) float sums[Average::kWords * 32];
  return encode(
      Average{received, inverse_count, sign_words(block.residual.size()), sums},
      block);
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_sign_encode_average);

float sign_encode_average(std::span<const Signs> received, float inverse_count,
                          const SignBlock& block) {
  require_block(block);
  return THINWIRE_DISPATCH(run_sign_encode_average)(received, inverse_count,
                                                    block);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
