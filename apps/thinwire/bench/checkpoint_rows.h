// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "apps/thinwire/bench/interleave.h"
#include "apps/thinwire/bench/result.h"

namespace thinwire::apps::bench {

/// A row that writes or reads files, and its limit.
struct CheckpointRow {
  struct Work {
    Variant row;
    Variant limit;
    double bytes_per_element = 0;
    int threads = 1;
  };

  std::string name;
  std::string_view limit;
  bool in_memory = false;  ///< /dev/shm, otherwise the current directory.
  std::size_t most_elements = 0;  ///< A larger size would show nothing else.
  /// Prepares work in `folder`, which must outlive the returned work.
  std::function<Work(std::size_t elements, const std::string& folder)> prepare;
};

/// Returns every row of this version.
[[nodiscard]] std::span<const CheckpointRow> checkpoint_rows();

/// Returns why this machine cannot run the row, such as missing space, or an
/// empty text.
[[nodiscard]] std::string why_not(const CheckpointRow& row,
                                  std::size_t elements);

/// Measures in a folder of its own and removes it.
[[nodiscard]] Result measure(const CheckpointRow& row,
                             const Settings& settings);

}  // namespace thinwire::apps::bench
