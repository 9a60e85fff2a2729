// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "apps/thinwire/bench/interleave.h"
#include "apps/thinwire/bench/limits.h"
#include "thinwire/core/thread_pool.h"

namespace thinwire::apps::bench {

/// One line of the result: something that goes over arrays in memory.
struct Row {
  std::string name;
  double bytes_per_element = 0;  ///< Logical traffic, see rows.cpp.
  Limit limit = Limit::kAdd;
  /// It reads and hardly writes: compared with Limit::kRead as well.
  bool only_reads = false;
  /// Allocates and fills the arrays; what it returns goes over them once. The
  /// pool must outlive that.
  std::function<Variant(std::size_t elements, ThreadPool& pool)> prepare;
  /// What the kernels are made to do; as everywhere else, where not set.
  std::optional<bool> prefetch{};

  /// The name without "@prefetch_on" or "@prefetch_off".
  [[nodiscard]] std::string stem() const;
};

/// A row that has no prefetch of its own, with prefetching and without.
[[nodiscard]] std::array<Row, 2> by_prefetch(const Row& row);

/// Every row of this version that needs no other rank.
[[nodiscard]] std::span<const Row> rows();

/// rows() takes these from optimizer_rows.cpp.
[[nodiscard]] Variant prepare_norm_during_backward(std::size_t elements,
                                                   ThreadPool& pool);
[[nodiscard]] Variant prepare_onebit_adam(std::size_t elements,
                                          ThreadPool& pool);
[[nodiscard]] Variant prepare_onebit_lamb(std::size_t elements,
                                          ThreadPool& pool);
[[nodiscard]] Variant prepare_local_step(std::size_t elements,
                                         ThreadPool& pool);
[[nodiscard]] Variant prepare_sync_step(std::size_t elements, ThreadPool& pool);

[[nodiscard]] Variant prepare_onebit_adam_bf16_residual(std::size_t elements,
                                                        ThreadPool& pool);

/// And these from codec_rows.cpp.
[[nodiscard]] Variant prepare_encode(std::size_t elements, ThreadPool& pool);
[[nodiscard]] Variant prepare_decode(std::size_t elements, ThreadPool& pool);
[[nodiscard]] Variant prepare_momentum_encode(std::size_t elements,
                                              ThreadPool& pool);
[[nodiscard]] Variant prepare_serve(std::size_t elements, ThreadPool& pool);
[[nodiscard]] Variant prepare_apply(std::size_t elements, ThreadPool& pool);

/// And these from mixed_precision_rows.cpp.
[[nodiscard]] Variant prepare_mixed_fp16(std::size_t elements,
                                         ThreadPool& pool);
[[nodiscard]] Variant prepare_mixed_bf16(std::size_t elements,
                                         ThreadPool& pool);
[[nodiscard]] Variant prepare_mixed_accumulated(std::size_t elements,
                                                ThreadPool& pool);

/// And these from zero_rows.cpp.
[[nodiscard]] Variant prepare_zero_fp16(std::size_t elements, ThreadPool& pool);
[[nodiscard]] Variant prepare_zero_bf16(std::size_t elements, ThreadPool& pool);
[[nodiscard]] Variant prepare_zero_accumulated(std::size_t elements,
                                               ThreadPool& pool);
[[nodiscard]] Variant prepare_host_step(std::size_t elements, ThreadPool& pool);
[[nodiscard]] Variant prepare_offloaded_step(std::size_t elements,
                                             ThreadPool& pool);

/// Values in (-1, 1), none of them 0, the same in every run.
[[nodiscard]] Buffer random_values(std::size_t elements, std::uint32_t seed);

}  // namespace thinwire::apps::bench
