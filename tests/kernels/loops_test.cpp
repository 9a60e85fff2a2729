// SPDX-License-Identifier: Apache-2.0
// That loops ask memory ahead exactly where they are to: bits cannot show it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/targets.h"
// After targets.h, as every header of Highway.
#include "hwy/highway.h"
#include "kernels/cpu/ordered_sum-inl.h"
#include "kernels/cpu/sign_encode-inl.h"
#include "kernels/cpu/signs-inl.h"
#include "kernels/cpu/vectors-inl.h"
#include "support/kernel_cases.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE::loops_test {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 7, 31, 32, 33, 1025, 4097};

/// How often each element was asked for, and how often a loop came to it.
struct Visits {
  explicit Visits(std::size_t size) : asked(size), done(size) {}

  // Of whole vectors or words; what is left over is not worth a request.
  void expect(bool prefetch, std::size_t unit) const {
    const std::size_t size = done.size();
    EXPECT_EQ(done, std::vector<int>(size, 1));
    std::vector<int> want(size, 0);
    if (prefetch) std::fill_n(want.begin(), size / unit * unit, 1);
    EXPECT_EQ(asked, want);
  }

  std::vector<int> asked;
  std::vector<int> done;
};

/// A body of every kind of loop.
struct Counting {
  void prefetch(std::size_t i, std::size_t count) const {
    for (std::size_t k = i; k < i + count; ++k) ++visits.asked.at(k);
  }
  template <class D>
  void operator()(D d, std::size_t i) const {
    visit(i, hn::Lanes(d));
  }
  void operator()(std::size_t w, std::uint32_t, std::size_t count) const {
    visit(w * 32, count);
  }
  void operator()(std::size_t w, std::size_t count, float* first,
                  float* second) const {
    visit(w * 32, count);
    for (std::size_t k = 0; k < count; ++k) first[k] = second[k] = 1;
  }
  void visit(std::size_t i, std::size_t count) const {
    for (std::size_t k = i; k < i + count; ++k) ++visits.done.at(k);
  }

  Visits& visits;
};

/// The same without a prefetch() of its own.
struct Silent {
  template <class D>
  void operator()(D d, std::size_t i) const {
    body(d, i);
  }
  void operator()(std::size_t w, std::uint32_t active,
                  std::size_t count) const {
    body(w, active, count);
  }

  Counting body;
};

/// What can be added to an error.
struct Ones {
  void prefetch(std::size_t i, std::size_t count) const {
    Counting{*visits}.prefetch(i, count);
  }
  void begin_word(std::size_t w) { first = w * 32; }
  template <class D>
  hn::Vec<D> at(D d, std::size_t j) const {
    Counting{*visits}.visit(first + j, hn::Lanes(d));
    return hn::Set(d, 1.0f);
  }

  Visits* visits;
  std::size_t first = 0;
};

TEST(Loops, PrefetchEveryElementOnceOrNotAtAll) {
  for (const bool on : {false, true}) {
    const test::ForcedPrefetch forced(on);
    for (const std::size_t size : kSizes) {
      Visits vectors(size), words(size), sums(size), error(size);
      for_each_vector(size, Counting{vectors});
      vectors.expect(on, 4 * kLanes);

      const Counting word{words};
      for_each_word(size, nullptr, word);
      words.expect(on, 32);

      const Counting terms{sums};
      double total = 0;
      two_sums_of_squares(size, kSumChunk, terms,
                          [&](TwoSums sum) { total += sum.first; });
      sums.expect(on, 32);
      EXPECT_EQ(total, static_cast<double>(size));

      std::vector<float> e(size);
      std::vector<std::uint32_t> signs(sign_words(size));
      const float scale =
          encode(Ones{&error},
                 {.residual = e, .words = signs.data(), .num_active = size});
      error.expect(on, 32);
      EXPECT_EQ(scale, size == 0 ? 0 : 1);
    }
  }
}

TEST(Loops, AcceptABodyWithoutPrefetch) {
  const test::ForcedPrefetch forced(true);
  for (const std::size_t size : kSizes) {
    Visits vectors(size), words(size);
    for_each_vector(size, Silent{{vectors}});
    vectors.expect(false, 1);
    const Silent word{{words}};
    for_each_word(size, nullptr, word);
    words.expect(false, 1);
  }
}

}  // namespace
}  // namespace thinwire::kernels::HWY_NAMESPACE::loops_test
HWY_AFTER_NAMESPACE();
