// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/thinwire/bench/interleave.h"
#include "apps/thinwire/bench/limits.h"
#include "apps/thinwire/bench/result.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/thread_pool.h"

namespace thinwire::apps::bench {

/// Allocates and fills arrays, and returns a function that runs over them once.
/// The pool must outlive that function.
using PrepareRow = Variant(std::size_t elements, ThreadPool& pool);
using Prepare = std::function<PrepareRow>;

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
PrepareRow prepare_local_step, prepare_sync_step, prepare_norm,
    prepare_norm_during_backward;

/// These are in codec_rows.cpp.
PrepareRow prepare_encode, prepare_decode, prepare_momentum_encode,
    prepare_serve, prepare_apply;

/// This is in low_rank_rows.cpp: a matrix of at most 4096 columns, in fp32.
[[nodiscard]] Prepare low_rank_average(std::size_t rank);

/// Returns values in (-1, 1), none of them 0, the same in every run.
[[nodiscard]] Buffer random_values(std::size_t elements, std::uint32_t seed);

/// Groups adjacent rows that differ only in Row::prefetch. A group is measured
/// in the same rounds and over the same memory.
[[nodiscard]] std::vector<std::vector<const Row*>> in_groups(
    std::span<const Row* const> rows);

/// Measures the rows of one group and their limit in turns, and the limit of
/// reading if they only read. Writes to stderr if something else kept the
/// machine busy.
[[nodiscard]] std::vector<Result> measure(std::span<const Row* const> group,
                                          const Settings& settings);

/// Writes a line to stderr if rounds of this row began on a busy machine.
void say_if_busy(const std::string& row, const Interleaved& measured);

/// One line of the result, which all ranks of a job measure together.
struct ExchangeRow {
  std::string name;
  /// Prepares like Row::prepare; the returned function is collective.
  std::function<std::function<void()>(comm::Communicator& comm,
                                      std::size_t elements, ThreadPool& pool)>
      prepare;
};

[[nodiscard]] std::span<const ExchangeRow> exchange_rows();

/// Returns the seconds of the slowest rank; all begin together.
[[nodiscard]] double slowest_seconds(comm::Communicator& comm,
                                     const std::function<void()>& body);

/// Measures a row. Collective; every rank gets the times of the slowest rank.
[[nodiscard]] Result measure(comm::Communicator& comm, const ExchangeRow& row,
                             const Settings& settings);

}  // namespace thinwire::apps::bench
