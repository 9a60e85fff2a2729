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

/// Allocates and fills arrays, and returns a function that runs over them once.
/// The pool must outlive that function.
using Prepare = std::function<Variant(std::size_t elements, ThreadPool& pool)>;

/// One line of the result, which reads or writes arrays in memory.
struct Row {
  std::string name;
  double bytes_per_element = 0;  ///< Logical traffic, see rows.cpp.
  Prepare prepare;
  Limit limit = Limit::kAdd;
  /// Whether the row hardly writes and is compared with Limit::kRead as well.
  bool only_reads = false;
  /// Forces prefetch in the kernels; unset, the process's choice holds.
  std::optional<bool> prefetch{};

  /// Returns the name without "@prefetch_on" or "@prefetch_off".
  [[nodiscard]] std::string stem() const;
};

/// Returns a row that sets no prefetch, with prefetch and without.
[[nodiscard]] std::array<Row, 2> by_prefetch(const Row& row);

/// Returns every row of this version that needs no other rank.
[[nodiscard]] std::span<const Row> rows();

/// These are in step_rows.cpp. Adam's gradients are of type `grads`; a `model`
/// in 16 bits is one of mixed precision.
[[nodiscard]] Prepare adam_step(DType grads, DType model = DType::kFloat32);
[[nodiscard]] Prepare lamb_step();
[[nodiscard]] Prepare zero_step(DType dtype, int backwards = 1);
[[nodiscard]] Prepare onebit_adam_step(DType residuals = DType::kFloat32);
[[nodiscard]] Prepare onebit_lamb_step();
Variant prepare_local_step(std::size_t elements, ThreadPool& pool);
Variant prepare_sync_step(std::size_t elements, ThreadPool& pool);
Variant prepare_norm(std::size_t elements, ThreadPool& pool);
Variant prepare_norm_during_backward(std::size_t elements, ThreadPool& pool);

/// These are in codec_rows.cpp.
Variant prepare_encode(std::size_t elements, ThreadPool& pool);
Variant prepare_decode(std::size_t elements, ThreadPool& pool);
Variant prepare_momentum_encode(std::size_t elements, ThreadPool& pool);
Variant prepare_serve(std::size_t elements, ThreadPool& pool);
Variant prepare_apply(std::size_t elements, ThreadPool& pool);

/// Returns values in (-1, 1), none of them 0, the same in every run.
[[nodiscard]] Buffer random_values(std::size_t elements, std::uint32_t seed);

}  // namespace thinwire::apps::bench
