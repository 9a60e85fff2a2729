// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "checkpoint/commit/root.h"
#include "checkpoint/whole_model.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/core/buffer.h"

namespace thinwire::checkpoint {

/// Plans the files and attachments of one rank, and rank 0's manifest. The
/// manifest still lacks the other ranks' own scalars. Weights in several files
/// get model.safetensors.index.json. Elements that all ranks share are written
/// once, by one rank. A rank writes all of its own elements. Local. `training`,
/// `whole`, `state` (its optimizer's) and `extra` must outlive what is read
/// from the files.
[[nodiscard]] Root::Contents plan_save(const Training& training,
                                       const WholeModel& whole,
                                       const optim::State& state,
                                       const Extra& extra,
                                       const SaveOptions& options);

/// "fp32", "fp16", "bf16".
[[nodiscard]] std::string precision_name(DType dtype);

/// The same file, with the contents that it has now: 64-byte aligned in
/// `memory`, which is made anew where it is too small.
[[nodiscard]] PlannedFile snapshot_of(const PlannedFile& file, Buffer& memory);

}  // namespace thinwire::checkpoint
