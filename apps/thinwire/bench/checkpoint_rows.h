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

/// A row that writes or reads files, and what it is compared with.
struct CheckpointRow {
  struct Work {
    Variant row;
    Variant limit;
    double bytes_per_element = 0;
    int threads = 1;
  };

  std::string name;
  std::string_view limit;
  bool in_memory = false;         ///< /dev/shm, else the current directory.
  std::size_t most_elements = 0;  ///< With more it would show nothing else.
  /// Writes into `folder`, which must outlive what it returns.
  std::function<Work(std::size_t elements, const std::string& folder)> prepare;
};

/// Every row of this version.
[[nodiscard]] std::span<const CheckpointRow> checkpoint_rows();

/// What is missing for it on this machine: no room, say; empty: nothing.
[[nodiscard]] std::string why_not(const CheckpointRow& row,
                                  std::size_t elements);

struct CheckpointSettings {
  std::size_t elements = 0;
  int rounds = 1;
};
/// In a folder of its own, of which nothing is left.
[[nodiscard]] Result measure(const CheckpointRow& row,
                             const CheckpointSettings& settings);

}  // namespace thinwire::apps::bench
