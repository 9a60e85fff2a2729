// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/checkpoint/options.h"

/// Looking at checkpoints without ranks, a model or an optimizer. Local.
namespace thinwire::checkpoint {

/// One directory, as its manifest has it.
struct Description {
  std::string path;
  bool complete = false;
  std::string problem{};  ///< Why it is not; the rest is then empty.
  std::string id{}, run{}, written{}, library{};
  std::string optimizer{}, semantics{}, phase{}, precision{};
  std::int64_t save_index = 0;
  std::int64_t step = 0;
  int world = 0;
  int zero_stage = 0;
  std::int64_t steps_behind = 0;  ///< Of the weights, in local steps.
  std::uint64_t parameters = 0;   ///< Elements.
  std::uint64_t bytes = 0;        ///< Of all files.
};

/// Of a checkpoint, or of all that a ROOT holds, newest first, incomplete ones
/// last. Reads manifests only. Throws Error(kUnavailable) where there is none.
[[nodiscard]] std::vector<Description> inspect(const std::string& path);

/// What is wrong with some bytes.
struct Damage {
  std::string file;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string what{};  ///< The tensors in it, or what else is wrong.
};
struct Verdict {
  std::vector<Damage> damages;
  std::uint64_t bytes = 0;      ///< Read.
  std::uint64_t nonfinite = 0;  ///< NaN and infinity, which are data.
  [[nodiscard]] bool good() const noexcept { return damages.empty(); }
};
/// Reads every byte of a checkpoint.
[[nodiscard]] Verdict verify(const std::string& path,
                             const Progress& progress = {});

}  // namespace thinwire::checkpoint
