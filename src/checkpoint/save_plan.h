// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "checkpoint/commit/root.h"
#include "checkpoint/whole_model.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/core/buffer.h"

namespace thinwire::checkpoint {

/// Plans the files and attachments of one rank, and rank 0's manifest, which
/// still lacks the other ranks' own scalars. If there are several files of
/// weights, they get a model.safetensors.index.json. Elements that all ranks
/// share are written once, by one rank. A rank writes all of its own elements.
/// `training`, `whole`, `state` (its optimizer's) and `extra` must outlive the
/// use of the result. Local.
[[nodiscard]] Root::Contents plan_save(const Training& training,
                                       const WholeModel& whole,
                                       const optim::State& state,
                                       const Extra& extra,
                                       const SaveOptions& options);

/// Returns "fp32", "fp16" or "bf16".
[[nodiscard]] std::string precision_name(DType dtype);

/// Returns the file with a copy of its present contents in `memory`, aligned to
/// 64 bytes. `memory` is replaced if it is too small.
[[nodiscard]] PlannedFile snapshot_of(const PlannedFile& file, Buffer& memory);

}  // namespace thinwire::checkpoint
