// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/checkpoint/options.h"

/// Functions that read checkpoints without ranks, a model or an optimizer.
/// Local.
namespace thinwire::checkpoint {

/// One directory, as described by its manifest.
struct Description {
  std::string path;
  bool complete = false;
  std::string problem{};  ///< Reason if incomplete; the rest is then empty.
  std::string id{}, run{}, written{}, library{};
  std::string optimizer{}, semantics{}, phase{}, precision{};
  std::int64_t save_index = 0;
  std::int64_t step = 0;
  int world = 0;
  int zero_stage = 0;
  std::int64_t steps_behind = 0;  ///< Local steps that the weights lack.
  std::uint64_t parameters = 0;   ///< Number of elements.
  std::uint64_t bytes = 0;        ///< Size of all files.
};

/// Describes one checkpoint, or all checkpoints in a root, newest first and
/// incomplete ones last. Reads manifests only. Throws Error(kUnavailable) if
/// there is no checkpoint.
[[nodiscard]] std::vector<Description> inspect(const std::string& path);

/// A damaged range of bytes.
struct Damage {
  std::string file;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string what{};  ///< Tensors in the range, or another problem.
};
struct Verdict {
  std::vector<Damage> damages;
  std::uint64_t bytes = 0;  ///< Bytes read.
  /// NaN and infinite values, which do not count as damage.
  std::uint64_t nonfinite = 0;
  [[nodiscard]] bool good() const noexcept { return damages.empty(); }
};
/// Reads every byte of a checkpoint, and returns the damaged ranges. If the
/// manifest is damaged, reads nothing else. Throws Error(kUnavailable) if a
/// file cannot be read, although it may be undamaged.
[[nodiscard]] Verdict verify(const std::string& path,
                             const Progress& progress = {});

}  // namespace thinwire::checkpoint
