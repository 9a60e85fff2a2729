// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "apps/train_gpt/options/saving.h"
#include "apps/train_gpt/report/run_record.h"
#include "thinwire/checkpoint/options.h"

namespace thinwire::train_gpt {

/// Where a run is, beside what the engine keeps: the application's part of a
/// checkpoint.
struct Position {
  std::int64_t step = 0;           ///< Taken, also skipped ones.
  std::int64_t next_sequence = 0;  ///< See TextData::sequences_from.
  std::uint64_t seed = 0;
  std::uint64_t data_hash = 0;
  // ---- of rank 0
  Totals totals{};
  std::int64_t saves = 0;  ///< With the one that holds this.
  double save_seconds = 0;
};

/// What a checkpoint is handed; `is_first`: on rank 0.
[[nodiscard]] checkpoint::Extra extra_of(const Position& position,
                                         bool is_first);
/// What it gives back. Throws Error(kCorruptCheckpoint) naming the checkpoint
/// if it is no run's of this program.
[[nodiscard]] Position position_of(const checkpoint::LoadReport& report,
                                   bool is_first);

/// Throws Error(kInvalidArgument) where a run cannot go on from `saved`: it was
/// trained on other data or with another seed than `now`, unless
/// --resume-new-data was given, or is past `steps` already.
void require_resumable(const Position& saved, const Position& now,
                       const Saving& saving, std::int64_t steps,
                       const std::string& path);

}  // namespace thinwire::train_gpt
