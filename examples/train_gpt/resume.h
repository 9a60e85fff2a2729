// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "examples/train_gpt/options/options.h"
#include "examples/train_gpt/run_folder.h"
#include "thinwire/checkpoint/options.h"

namespace thinwire::train_gpt {

/// The application's part of a checkpoint: progress of a run that the engine
/// does not know.
struct Position {
  std::int64_t step = 0;           ///< Steps taken, including skipped ones.
  std::int64_t next_sequence = 0;  ///< See TextData::sequences_from.
  std::uint64_t seed = 0;
  std::uint64_t data_hash = 0;
  // ---- on rank 0
  Totals totals{};
  std::int64_t saves = 0;  ///< Including the checkpoint with this value.
  double save_seconds = 0;
};

/// Returns the values of a checkpoint. `is_first` is whether this is rank 0.
[[nodiscard]] checkpoint::Extra extra_of(const Position& position,
                                         bool is_first);
/// Returns the values that a checkpoint has saved. Throws
/// Error(kCorruptCheckpoint) naming the checkpoint if it is not from a run of
/// this program.
[[nodiscard]] Position position_of(const checkpoint::LoadReport& report,
                                   bool is_first);

/// Throws Error(kInvalidArgument) if a run cannot continue from `saved`. This
/// is so if `saved` has other data or another seed than `now`, without
/// resume_new_data, or if it is past the last step.
void require_resumable(const Position& saved, const Position& now,
                       const Options& options, const std::string& path);

}  // namespace thinwire::train_gpt
