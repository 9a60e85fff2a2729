// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/prefetch.h"
#include "support/guarded.h"
#include "support/values.h"
#include "thinwire/kernels/cpu_target.h"
#include "thinwire/kernels/sign_compress.h"

/// Cases of kernel tests: every SIMD target of this machine, at lengths around
/// every vector, word and block, aligned and not, with and without prefetching.
namespace thinwire::test {

/// Forces a target for one scope.
class ForcedTarget {
 public:
  explicit ForcedTarget(const std::string& name) {
    kernels::force_cpu_target(name);
  }
  ~ForcedTarget() { kernels::force_cpu_target(""); }
  ForcedTarget(const ForcedTarget&) = delete;
  ForcedTarget& operator=(const ForcedTarget&) = delete;
};

/// Forces prefetching on or off for one scope.
class ForcedPrefetch {
 public:
  explicit ForcedPrefetch(bool on) { kernels::force_prefetch(on); }
  ~ForcedPrefetch() { kernels::force_prefetch(std::nullopt); }
  ForcedPrefetch(const ForcedPrefetch&) = delete;
  ForcedPrefetch& operator=(const ForcedPrefetch&) = delete;
};

/// How arrays are aligned, and how loops read them.
struct Access {
  std::size_t skip = 0;  ///< elements by which arrays miss their alignment
  bool prefetch = false;
};

/// (target, length, access)
using KernelCase = std::tuple<std::string, std::size_t, Access>;

class KernelTest : public ::testing::TestWithParam<KernelCase> {
 protected:
  const std::size_t size = std::get<1>(GetParam());
  const std::size_t skip = std::get<2>(GetParam()).skip;

  /// Calls `call(kernel, span...)` with a kernel and with its definition, for
  /// which the arrays begin alike. The kernel's are guarded and miss their
  /// alignment. Afterwards all must be alike.
  template <class Call, class... T>
  void compare(auto* kernel, auto* reference, const Call& call,
               const std::vector<T>&... arrays) const {
    std::tuple<Guarded<T>...> got(Guarded<T>(arrays, skip)...);
    std::tuple<std::vector<T>...> want(arrays...);
    std::apply([&](auto&... array) { call(kernel, array.span()...); }, got);
    std::apply([&](auto&... array) { call(reference, std::span(array)...); },
               want);
    const auto expect_same = [](auto& a, auto& b, std::size_t number) {
      EXPECT_TRUE(a.is(b)) << "array " << number;
    };
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      (expect_same(std::get<i>(got), std::get<i>(want), i), ...);
    }
    (std::index_sequence_for<T...>());
  }

 private:
  ForcedTarget target_{std::get<0>(GetParam())};
  ForcedPrefetch prefetch_{std::get<2>(GetParam()).prefetch};
};

inline auto kernel_cases_at(const std::vector<std::size_t>& lengths) {
  return ::testing::Combine(
      ::testing::ValuesIn(kernels::cpu_targets()), ::testing::ValuesIn(lengths),
      ::testing::Values(Access{0, false}, Access{0, true}, Access{1, true},
                        Access{3, false}));
}

/// Cases for kernels of many forms, whose loops other kernels have tested
/// already.
inline auto few_kernel_cases() {
  return kernel_cases_at({0, 1, 7, 15, 31, 32, 33, 255, 1025});
}

inline auto kernel_cases(const std::vector<std::size_t>& more_lengths = {}) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  // Otherwise minutes of arithmetic would be repeated with the same accesses.
  (void)more_lengths;
  return few_kernel_cases();
#else
  std::vector<std::size_t> lengths = {0,  1,   7,    15,   16,   17,   31,  32,
                                      33, 255, 1000, 1023, 1024, 1025, 4097};
  lengths.insert(lengths.end(), more_lengths.begin(), more_lengths.end());
  return kernel_cases_at(lengths);
#endif
}

/// Masks for `size` elements: none; random; nearly nothing masked; everything
/// masked. Bits past the end are arbitrary.
inline std::vector<std::vector<std::uint32_t>> masks(std::size_t size) {
  const std::size_t words = kernels::sign_words(size);
  std::vector<std::uint32_t> mostly_whole(words, 0xffff'ffffu);
  for (std::size_t w = 0; w < words; w += 3) mostly_whole[w] = 0xfffe'7fffu;
  return {{},
          random_words(words, 11),
          mostly_whole,
          std::vector<std::uint32_t>(words, 0u)};
}

/// Returns the argument of kernels, which is null without a mask.
inline const std::uint32_t* active(const std::vector<std::uint32_t>& mask) {
  return mask.empty() ? nullptr : mask.data();
}

inline std::string case_name(const ::testing::TestParamInfo<KernelCase>& info) {
  return std::get<0>(info.param) + "_n" +
         std::to_string(std::get<1>(info.param)) + "_skip" +
         std::to_string(std::get<2>(info.param).skip) +
         (std::get<2>(info.param).prefetch ? "_prefetch" : "");
}

}  // namespace thinwire::test
